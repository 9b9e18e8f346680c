"""Checks of settings against each other and against the spaces."""

import numpy as np
from gymnasium.spaces import Box, Space

from fastppo.build.user_model import is_user_model
from fastppo.config import Config, default_of
from fastppo.envs.actions import check_bounds
from fastppo.envs.observations import ObservationLayout
from fastppo.envs.spaces import leaves, subspaces
from fastppo.errors import ConfigError
from fastppo.learner import Learner
from fastppo.networks.encoders import subspace_names
from fastppo.networks.heads import fixed_std
from fastppo.settings.fixes import flag


def check_heads(config: Config, act_space: Space) -> None:
    """Raise ConfigError or SpaceError for a choice of action heads that the space rules out."""
    boxes = [leaf.space for leaf in leaves(act_space) if isinstance(leaf.space, Box)]
    for name in ("std", "sde", "final_tanh", "action_scaling", "distribution"):
        value = getattr(config, name)
        if value != default_of(name) and not boxes:
            raise ConfigError(f"{name} is {value!r}, but it is for Box actions, and these are"
                              f" {act_space}", f"leave --{name} out")
    for setting, given in (
            ("action_scaling", config.action_scaling),
            ("distribution", config.distribution in ("squashed", "beta")),
            ("std", isinstance(config.std, str) and not config.action_scaling)):
        if given:
            check_bounds(act_space, setting)
    if config.sde:
        _check_sde(config, act_space)
    if config.distribution == "beta" and (config.std is not None or config.action_scaling):
        raise ConfigError("a beta distribution has no std, and lies between the bounds already",
                          "leave --std and --action_scaling out, or --distribution")
    if config.distribution == "squashed" and config.action_scaling:
        raise ConfigError("a squashed distribution lies between the bounds already",
                          "leave --action_scaling out, or --distribution")
    if config.distribution == "state_gaussian" and config.std is not None:
        raise ConfigError("the std of state_gaussian is the network's, it cannot be fixed",
                          "leave --std out, or --distribution")
    if config.final_tanh and config.distribution in ("squashed", "beta"):
        raise ConfigError("final_tanh ends the means of actions in a tanh, and a"
                          f" {config.distribution} distribution "
                          + ("has none" if config.distribution == "beta" else "does so itself"),
                          "leave --final_tanh out, or --distribution")
    state = config.distribution == "state_gaussian"
    check_needs(config, *((name, "--distribution=state_gaussian", state)
                          for name in ("min_std", "std_scale")),
                ("sde_sample_freq", "--sde=True", config.sde))
    if not 1e-3 <= config.std_scale <= 1e3:
        raise ConfigError(f"std_scale is {config.std_scale:g}, but must be from 0.001 to 1000",
                          "--std_scale=1")
    for box in boxes:
        _check_std(config, box)


def check_needs(config: Config, *needs: tuple[str, str, bool]) -> None:
    """Raise ConfigError for a setting that was changed, but does nothing without another one.

    Each of `needs` is its name, the flag that it needs, and whether that is there.
    """
    for name, needed, there in needs:
        if getattr(config, name) != default_of(name) and not there:
            raise ConfigError(f"{name} is {getattr(config, name)}, but does nothing without"
                              f" {needed}", f"{needed}, or leave --{name} out")


def _check_sde(config: Config, act_space: Space) -> None:
    if is_user_model(config.model):
        raise ConfigError("sde explores by the last features of a built-in network, and the model"
                          " is one of your own", "leave --sde out")
    if subspaces(act_space):
        raise ConfigError(f"sde is for actions that are one Box, and these are {act_space}",
                          "leave --sde out")
    if config.distribution != "gaussian" or config.std is not None:
        raise ConfigError("sde explores with a gaussian of its own",
                          "leave --distribution and --std out, or --sde=False")


def _check_std(config: Config, box: Box) -> None:
    """Raise ConfigError where the std that is given or begun with is too small or large to use."""
    name = "std"
    with np.errstate(all="ignore"):
        if config.std is None:
            name, std = "log_std_init", np.exp(np.full(1, config.log_std_init, np.float64))
        else:
            std = fixed_std(box, config)
        square = np.square(std).astype(np.float32)
    bad = std[~((square > 0) & np.isfinite(square))]
    if len(bad):
        raise ConfigError(f"{name} is {getattr(config, name)}, which is a standard deviation of"
                          f" {bad[0]:g} for actions of {box}: float32 has its square as"
                          f" {'0' if bad[0] < 1 else 'infinity'}",
                          "--log_std_init=0" if config.std is None else "leave --std out")


def check_update(config: Config) -> None:
    """Raise ConfigError for settings of the update that contradict each other."""
    check_needs(config, ("obs_limit", "--norm_obs=True", config.norm_obs),
                ("reward_limit", "--norm_rewards=True", bool(config.norm_rewards)),
                ("adam_eps", "--optimizer=adam", config.optimizer == "adam"))
    if config.adaptive_kl is not None and not isinstance(config.lr, (int, float)):
        raise ConfigError(f"--adaptive_kl={config.adaptive_kl:g} changes the learning rate by the"
                          f" KL, but lr is the schedule {config.lr}", f"--lr={default_of('lr')}")
    if isinstance(config.loss, type) and not issubclass(config.loss, Learner):
        raise ConfigError(f"the loss {config.loss!r} is a class, but no subclass of"
                          " fastppo.learner.Learner", "loss=a function (fresh, batch, coefficients)"
                          " -> (loss, statistics)")


def torch_alone(config: Config) -> str:
    """The first setting that the compiled learner does not serve, as a flag; "" for none."""
    for name in ("norm_values", "critic_lr", "grad_clipping", "optimizer", "loss"):
        value = getattr(config, name)
        if value != default_of(name):
            return f"the {name} of your own" if callable(value) else flag(name, value)
    return ""


def check_network(config: Config, seen: ObservationLayout) -> None:
    """Raise ConfigError for choices of a network that contradict each other, or the spaces."""
    if is_user_model(config.model):
        for name in ("layer_norm", "final_tanh", "shared_critic", "actor_keys", "critic_keys",
                     "rnn", "rnn_size", "hidden_sizes", "activation"):
            if getattr(config, name) != default_of(name):
                raise ConfigError(f"{name} is {getattr(config, name)!r}, but it is for built-in"
                                  " networks, and the model is one of your own",
                                  f"leave --{name} out")
    check_needs(config, ("rnn_size", "--rnn=gru", config.rnn != "none"))
    if config.shared_critic and config.actor_keys != config.critic_keys:
        raise ConfigError("actor and critic cannot share what they see with other keys each",
                          "--shared_critic=False")
    known = subspace_names(seen)
    for name in ("actor_keys", "critic_keys"):
        if (keys := getattr(config, name)) is None:
            continue
        if not known:
            raise ConfigError(f"{name} are parts of a Dict observation, but these are"
                              f" {seen.space}", f"leave --{name} out")
        if not isinstance(keys, tuple) or not keys or not {*keys} <= {*known}:
            raise ConfigError(f"{name} is {keys!r}, but must be some of {', '.join(known)}",
                              f"--{name}={','.join(known)}")
