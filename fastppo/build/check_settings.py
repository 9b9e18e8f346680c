"""Rules about settings that exclude each other, need each other, or do not fit the spaces."""

from gymnasium.spaces import Box, Space

from fastppo.build.user_model import is_user_model
from fastppo.config import Config, default_of
from fastppo.errors import ConfigError
from fastppo.learner import Learner
from fastppo.settings.fixes import Omit, Set
from fastppo.spaces.actions import check_bounds
from fastppo.spaces.leaves import brief_text, leaves, subspaces
from fastppo.spaces.observations import ObservationLayout
from fastppo.workers.count import needs_workers


def check_settings(config: Config, seen: ObservationLayout) -> None:
    """Raises ConfigError or SpaceError for settings that contradict each other or the spaces."""
    boxes = [leaf.space for leaf in leaves(seen.act_space) if isinstance(leaf.space, Box)]
    for applies, why, names in _exclusions(config, seen.act_space, boxes):
        if applies and (name := first_changed(config, names)):
            raise ConfigError(f"{name} is {getattr(config, name)!r}, but {why}", Omit(name))
    for satisfied, needed, names in _needs(config):
        if not satisfied and (name := first_changed(config, names)):
            raise ConfigError(f"{name} is {getattr(config, name)}, but does nothing without"
                              f" {needed.text(shell=False)}", (needed, Omit(name)))
    for wrong, what, fix in _conflicts(config):
        if wrong:
            raise ConfigError(what, fix)
    _check_keys(config, seen)
    for setting, given in (
            ("action_scaling", config.action_scaling),
            ("distribution", config.distribution in ("squashed", "beta")),
            ("std", isinstance(config.std, str) and not config.action_scaling)):
        if given:
            check_bounds(seen.act_space, setting)


def first_changed(config: Config, names: str) -> str:
    """The first of some settings that does not have its default; "" if all do."""
    return next((name for name in names.split() if getattr(config, name) != default_of(name)), "")


def _exclusions(config: Config, act_space: Space, boxes: list[Box]):
    """Rows of (it applies, reason, settings that must then have their default)."""
    return (
        (not boxes, f"it is for Box actions, and the actions are {act_space}",
         "std sde final_tanh action_scaling distribution"),
        (subspaces(act_space), f"it is for actions that are one Box, and they are {act_space}",
         "sde"),
        (is_user_model(config.model), "it is for built-in networks, and the model is your own",
         "layer_norm final_tanh shared_critic actor_keys critic_keys rnn rnn_size hidden_sizes"
         " activation sde"),
        (config.distribution == "beta", "a beta distribution has no mean or std, and lies between"
         " the bounds", "std action_scaling final_tanh sde"),
        (config.distribution == "squashed", "a squashed distribution lies between the bounds",
         "action_scaling final_tanh sde"),
        (config.distribution == "state_gaussian", "the network returns the std of state_gaussian",
         "std sde"),
        (config.sde, "sde explores with a gaussian of its own", "std"))


def _needs(config: Config):
    """Rows of (it is satisfied, what is needed, settings that have no effect without it)."""
    return (
        (config.distribution == "state_gaussian", Set(distribution="state_gaussian"),
         "min_std std_scale"),
        (config.sde, Set(sde=True), "sde_sample_freq"),
        (config.rnn != "none", Set(rnn="gru"), "rnn_size"),
        (config.norm_obs, Set(norm_obs=True), "obs_limit"),
        (config.norm_rewards, Set(norm_rewards=True), "reward_limit"),
        (config.optimizer == "adam", Set(optimizer="adam"), "adam_eps"))


def _conflicts(config: Config):
    """Rows of (it is one, what is wrong, fix)."""
    lacks_workers = needs_workers(config) if config.num_workers == 0 else ""
    return (
        (config.adaptive_kl is not None and not isinstance(config.lr, (int, float)),
         f"adaptive_kl={config.adaptive_kl} adapts the learning rate to the KL, but lr is the"
         f" schedule {config.lr}", Set(lr=default_of("lr"))),
        (isinstance(config.loss, type) and not issubclass(config.loss, Learner),
         f"the loss {config.loss!r} is a class, but no subclass of fastppo.learner.Learner",
         "give a function (fresh, batch, coefficients) -> (loss, statistics)"),
        (config.shared_critic and config.actor_keys != config.critic_keys,
         "actor and critic cannot share layers, because actor_keys and critic_keys differ",
         Set(shared_critic=False)),
        (isinstance(config.worker_env, str),
         f"worker_env is {config.worker_env!r}, but must be names", Set(worker_env=(
             config.worker_env,))),
        (config.vec in ("native", "envpool") and config.nan_policy == "reset_env",
         "nan_policy=reset_env resets one environment, which a vector environment cannot",
         Omit("nan_policy")),
        (lacks_workers == "on_worker_failure",
         "on_worker_failure=restart starts worker processes again, and there are none",
         Omit("on_worker_failure")),
        (lacks_workers == "step_timeout",
         f"step_timeout={config.step_timeout:g} ends a worker process that hangs, and there are"
         " none", (Omit("step_timeout"), Set(num_workers=1))))


def _check_keys(config: Config, seen: ObservationLayout) -> None:
    """Raises ConfigError for keys that the observations do not have."""
    known = tuple(key for key, _ in subspaces(seen.network_space) if isinstance(key, str))
    for name, keys in (("actor_keys", config.actor_keys), ("critic_keys", config.critic_keys)):
        if keys is None:
            continue
        if not known:
            raise ConfigError(f"{name} are parts of a Dict observation, but these are"
                              f" {brief_text(seen.space)}", Omit(name))
        if not isinstance(keys, tuple) or not keys or not {*keys} <= {*known}:
            raise ConfigError(f"{name} is {keys!r}, but must be some of {', '.join(known)}",
                              Set(**{name: known}))
