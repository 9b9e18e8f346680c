"""From what was asked for to a resolved Config: presets, the machine, and what the spaces allow."""

import math
import secrets
from functools import partial
from numbers import Real
from typing import Any, Callable, Iterable

import numpy as np
import torch
from gymnasium.spaces import Box, Space

from . import kernels
from .actions import check_form
from .bodies import columns_of, names_of
from .config import Config, check_names, default_of
from .envs import Source, check_agreement
from .errors import ConfigError
from .heads import COMPILED, fixed_std, head_of
from .images import NETWORKS, picture
from .learner import Learner
from .measure import pays
from .models import head_options, plain
from .names import flag
from .nets import COMPILED as COMPILED_ACTIVATIONS
from .observations import Observations
from .own import is_own
from .presets import BY_PRESET, PRESETS, preset_of
from .processes import worker_count
from .remedies import call
from .spaces import check_spaces, leaves, parts

Callback = Callable[[Any, dict[str, float]], Any]
Callbacks = Callback | Iterable[Callback]


def configured(env: Any, asked: dict[str, Any]) -> Config:
    """The Config of the settings `asked` for `env`, over its preset, over the defaults."""
    check_names(asked)
    asked = {name: str(value) if isinstance(value, torch.device) else value
             for name, value in asked.items() if name not in BY_PRESET or value != "auto"}
    check_agreement(env, asked)
    if isinstance(asked.get("env_kwargs"), dict) and asked["env_kwargs"].get("render_mode"):
        raise ConfigError("env_kwargs asks for a render_mode, but environments are not drawn while"
                          " they train", "leave it out; to watch: evaluate(1, env=lambda:"
                          " gymnasium.make(..., render_mode='human'))")
    name = asked.get("env_name", "") if env is None else named(env)
    if not name:
        raise ConfigError("PPO was given no environment (the default is the command's alone)",
                          f'PPO("{default_of("env_name")}")')
    if asked.get("env_name", name) != name:
        raise ConfigError(f"PPO was given {name} and env_name={asked['env_name']!r}: only one of"
                          " them can be trained on", "leave env_name out")
    preset = asked.get("preset", "auto")
    if preset not in ("auto", "none", *PRESETS):
        raise ConfigError(f"there is no preset {preset!r}, only auto, none,"
                          f" {', '.join(PRESETS)}", "--preset=auto")
    return Config(**{**preset_of(str(name), preset), **asked, "env_name": name})


def named(env: Any) -> str:
    """What to call an environment that was given as `env`."""
    if isinstance(env, (list, tuple)):
        return named(env[0]) if env else "nothing"
    if isinstance(env, partial):
        return named(env.func)
    return env if isinstance(env, str) else getattr(env, "__qualname__", type(env).__name__)


def whole(total: Any) -> int:
    """`total` environment steps as an int; ConfigError for what is no whole number, 0 or more."""
    if isinstance(total, bool) or not isinstance(total, Real) or not 0 <= total < math.inf \
            or total != int(total):
        raise ConfigError(f"learn was asked for {total!r} steps, but they must be a whole number,"
                          " 0 or more", "ppo.learn(1_000_000)")
    return int(total)


def several(callbacks: Callbacks) -> tuple[Callback, ...]:
    """`callbacks`, one or any number of them, as a tuple; ConfigError for what cannot be called."""
    try:
        found = (callbacks,) if callable(callbacks) else tuple(callbacks)
    except TypeError:  # neither a callable nor iterable
        found = (callbacks,)
    for one in found:
        if not callable(one):
            raise ConfigError(f"learn was given the callback {one!r}, which cannot be called",
                              "ppo.learn(callbacks=[lambda ppo, stats: print(stats)])")
    return found


def resolved(source: Source) -> Config:
    """The Config for `source` with every None and "auto" decided; raises for impossible spaces."""
    config, obs_space = source.config, source.obs_space
    made = getattr(next(iter(source.factories), None), "make", None)
    check_spaces(obs_space, source.act_space,
                 call(made) if isinstance(made, partial) else config.env_name)
    check_heads(config, source.act_space)
    seen = Observations(obs_space, source.act_space)
    check_network(config, seen)
    config = config.replace(
        seed=secrets.randbits(31) if config.seed is None else config.seed,
        model=_model(config, seen), device=_device(config.device),
        torch_threads=config.torch_threads or 1,
        vec="workers" if config.vec == "auto" else config.vec)
    if config.shared_critic is None:
        config = config.replace(shared_critic=config.model in NETWORKS
                                and config.actor_keys == config.critic_keys)
    if config.norm_rewards is None:
        config = config.replace(norm_rewards=config.reward_scale == 1 and not config.clip_rewards)
    check_update(config)
    serves = _serves(config, seen)
    config = config.replace(acting=_compiled(config, "acting", serves, "local", "central"))
    if torch_alone(config) and config.learner == "kernel":
        raise ConfigError(f"--learner=kernel cannot serve {torch_alone(config)}, which torch alone"
                          " can", "--learner=torch")
    serves = serves and not torch_alone(config) and seen.mask is None
    config = config.replace(learner=_compiled(config, "learner", serves, "kernel", "torch"))
    return config.replace(num_workers=worker_count(
        config.num_workers, config.num_envs, partial(pays, source.step_seconds, config)))


def check_heads(config: Config, act_space: Space) -> None:
    """Raise ConfigError or SpaceError for a choice of action heads that the space rules out."""
    boxes = [leaf.space for leaf in leaves(act_space) if isinstance(leaf.space, Box)]
    for name in ("std", "sde", "final_tanh", "action_scaling", "distribution"):
        value = getattr(config, name)
        if value != default_of(name) and not boxes:
            raise ConfigError(f"{name} is {value!r}, but it is for Box actions, and these are"
                              f" {act_space}", f"leave --{name} out")
    for form, asked in (("scale", config.action_scaling and "--action_scaling=True"),
                        ("tanh", config.distribution in ("squashed", "beta")
                         and f"--distribution={config.distribution}"),
                        ("unit", isinstance(config.std, str) and not config.action_scaling
                         and f"--std={config.std}")):
        if asked:
            check_form(act_space, form, asked)
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
    if is_own(config.model):
        raise ConfigError("sde explores by the last features of a built-in network, and the model"
                          " is one of your own", "leave --sde out")
    if parts(act_space):
        raise ConfigError(f"sde is for actions that are one Box, and these are {act_space}",
                          "leave --sde out")
    if config.distribution != "gaussian" or config.std is not None:
        raise ConfigError("sde explores with a gaussian of its own",
                          "leave --distribution and --std out, or --sde=False")


def _check_std(config: Config, box: Box) -> None:
    """Raise ConfigError where the std that is given or begun with is too small or large to use."""
    name, form = "std", "scale" if config.action_scaling else "clip"
    with np.errstate(all="ignore"):
        if config.std is None:
            name, std = "log_std_init", np.exp(np.full(1, config.log_std_init, np.float64))
        else:
            std = fixed_std(box, head_options(config), form)
        square = np.square(std).astype(np.float32)
    bad = std[~((square > 0) & np.isfinite(square))]
    if len(bad):
        raise ConfigError(f"{name} is {getattr(config, name)}, which is a standard deviation of"
                          f" {bad[0]:g} for actions of {box}: float32 has its square as"
                          f" {'0' if bad[0] < 1 else 'infinity'}",
                          "--log_std_init=0" if config.std is None else "leave --std out")


def _serves(config: Config, seen: Observations) -> bool:
    """Whether the compiled kernels serve such a network on such observations."""
    head = head_of(seen.act_space, head_options(config), 1)
    return (kernels.COMPILED and plain(config) and config.device == "cpu"
            and type(head) in COMPILED and config.std is None and not config.final_tanh
            and not config.norm_values and head.size <= kernels.MAX_CHOICES
            and len(config.hidden_sizes) <= kernels.MAX_HIDDEN)


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


def check_network(config: Config, seen: Observations) -> None:
    """Raise ConfigError for choices of a network that contradict each other, or the spaces."""
    if is_own(config.model):
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
    known = names_of(seen)
    for name in ("actor_keys", "critic_keys"):
        if (keys := getattr(config, name)) is None:
            continue
        if not known:
            raise ConfigError(f"{name} are parts of a Dict observation, but these are"
                              f" {seen.space}", f"leave --{name} out")
        if not isinstance(keys, tuple) or not keys or not {*keys} <= {*known}:
            raise ConfigError(f"{name} is {keys!r}, but must be some of {', '.join(known)}",
                              f"--{name}={','.join(known)}")


def _model(config: Config, seen: Observations) -> Any:
    """The network that `model` comes to; ConfigError where it cannot see these observations."""
    model, shapes = config.model, [shape[1:] for shape in map(picture, columns_of(seen)) if shape]
    if model == "auto":
        return "cnn" if max(map(min, shapes), default=0) >= NETWORKS["cnn"].smallest else "mlp"
    if model not in NETWORKS:
        return model
    smallest = NETWORKS[model].smallest
    largest = max(shapes, key=min, default=(0,))
    fits = [name for name, kind in NETWORKS.items() if min(largest) >= kind.smallest]
    fix = f"--model={[*fits, 'mlp'][0]}"
    if not shapes:
        raise ConfigError(f"--model={model} is for images, Boxes of uint8 with two axes or more,"
                          f" and none are in the observations {seen.space}", fix)
    if model not in fits:
        wide = "x".join(map(str, largest))
        raise ConfigError(f"--model={model} is for images of {smallest}x{smallest} or larger, and"
                          f" the largest here is {wide}", fix)
    return model


def _device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        what = f"device is {device!r}, which torch does not know"
        raise ConfigError(what, "--device=auto") from error
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device is {device!r}, but only cpu and cuda are served",
                          "--device=auto")
    if kind == "cuda" and not torch.cuda.is_available():
        why = (f"this torch ({torch.__version__}) was built without CUDA" if not torch.version.cuda
               else "no NVIDIA GPU or driver is visible")
        raise ConfigError(f"--device={device}, but {why}", "--device=cpu")
    return device


def _compiled(config: Config, name: str, serves: bool, compiled: str, general: str) -> str:
    """What the choice `name` comes to: `compiled` where the compiled one serves, else `general`."""
    asked = getattr(config, name)
    if asked == compiled and not serves:
        raise ConfigError(f"--{name}={compiled} needs the compiled extension and a built-in MLP on"
                          f" the CPU, of {', '.join(COMPILED_ACTIVATIONS)}, without layer_norm, rnn"
                          f" or keys, of {kernels.MAX_HIDDEN} layers at most; actions of one"
                          f" Discrete or one Box, {kernels.MAX_CHOICES:,} choices or numbers at"
                          " most, the latter of a gaussian whose std is learnt and free of the"
                          " state; learning, without action masks", f"--{name}={general}")
    return compiled if asked in ("auto", compiled) and serves else general
