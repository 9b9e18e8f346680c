"""Rules about settings that exclude or need each other, whatever the environment; no torch here."""

import re
from typing import Any, Iterable, Sequence

from fastppo.config import Config, default_of, having
from fastppo.errors import ConfigError
from fastppo.settings.fixes import Omit, Set, format_value, program
from fastppo.workers.count import can_start_workers, needs_workers


def check_config(config: Config) -> None:
    """Raises ConfigError for settings that contradict each other in every environment."""
    check_env_kwargs(config)
    for name, (other, *values) in having("needs").items():
        needed = Set(**{other: values[0]})
        if effective(config, other) not in values and first_changed(config, [name]):
            raise ConfigError(f"{name} is {getattr(config, name)}, but does nothing without"
                              f" {needed.text(shell=False)}", (needed, Omit(name)))
    for wrong, what, fix in _conflicts(config):
        if wrong:
            raise ConfigError(what, fix)
    for name, compiled, general, settings in (
            ("acting", "local", "central", needing_torch("network", "acting")),
            ("learner", "kernel", "torch", having("needs_torch"))):
        reason = (unsupported_value(config, precision=("auto", "fp32"))
                  or changed_setting(config, settings))
        if getattr(config, name) == compiled and reason:
            raise unsupported(name, compiled, reason, general)


def check_env_kwargs(config: Config) -> None:
    """Raises ConfigError for a render_mode of environments that are trained on."""
    if (config.env_kwargs or {}).get("render_mode"):
        raise ConfigError("env_kwargs has a render_mode, but environments are not rendered in"
                          " training", f"leave render_mode out; to watch a policy: {program()}"
                          " play, or evaluate(1, env=lambda: gymnasium.make(...,"
                          " render_mode='human'))")


def unsupported(name: str, compiled: str, reason: str, general: str) -> ConfigError:
    """The error for the choice `name` = `compiled`, which a setting or space forbids."""
    return ConfigError(f"{name}={compiled} does not support {reason}", Set(**{name: general}))


def needing_torch(*parts: str) -> list[str]:
    """The settings that compiled kernels know with their defaults alone, in these `parts`."""
    return [name for name, part in having("needs_torch").items() if part in parts]


def first_changed(config: Config, names: Iterable[str]) -> str:
    """The first of some settings that does not have its default; "" if all do."""
    return next((name for name in names if getattr(config, name) != default_of(name)), "")


def is_user_model(model: Any) -> bool:
    """True if the setting `model` is a class, or names one as module:Class."""
    return callable(model) or isinstance(model, str) and ":" in model


def normalises_rewards(config: Config) -> bool:
    """norm_rewards, whose default is True unless rewards are scaled or clipped."""
    chosen = config.norm_rewards
    return config.reward_scale == 1 and not config.clip_rewards if chosen is None else chosen


def effective(config: Config, name: str) -> Any:
    """The value of a setting, with that of norm_rewards resolved."""
    return normalises_rewards(config) if name == "norm_rewards" else getattr(config, name)


def _conflicts(config: Config):
    """Rows of (it is one, what is wrong, fix)."""
    possible = can_start_workers()
    lacks_workers = "" if possible and config.num_workers != 0 else needs_workers(config)
    project = re.sub(r"[/\\#?%:]", "-", config.wandb_project[:128])
    return (
        (config.eval_interval and not config.eval_episodes,
         f"eval_interval is {config.eval_interval}, but eval_episodes is 0", Set(eval_episodes=10)),
        (config.adaptive_kl is not None and not isinstance(config.lr, (int, float)),
         f"adaptive_kl={config.adaptive_kl} adapts the learning rate to the KL, but lr is the"
         f" schedule {config.lr}", Set(lr=default_of("lr"))),
        (config.adaptive_kl is not None and config.lr_warmup > 0,
         f"lr_warmup={config.lr_warmup} raises the learning rate, which adaptive_kl adapts to the"
         " KL", (Omit("lr_warmup"), Omit("adaptive_kl"))),
        (config.recompute_advantages and config.rnn != "none",
         "recompute_advantages=True, but values of a network with memory depend on all steps"
         " before", Set(recompute_advantages=False)),
        (config.shared_critic and config.actor_keys != config.critic_keys,
         "actor and critic cannot share layers, because actor_keys and critic_keys differ",
         Set(shared_critic=False)),
        (config.vec in ("native", "envpool") and config.nan_policy == "reset_env",
         "nan_policy=reset_env resets one environment, which a vector environment cannot",
         Omit("nan_policy")),
        ("wandb" in (config.logger or ()) and config.wandb_project != project,
         f"wandb_project is {config.wandb_project!r}, but wandb takes up to 128 characters, and"
         " none of / \\ # ? % :",
         Set(wandb_project=project)),
        (lacks_workers == "on_worker_failure",
         "on_worker_failure=restart starts worker processes again, and there are none",
         Omit("on_worker_failure")),
        (lacks_workers == "step_timeout",
         f"step_timeout={config.step_timeout:g} ends a worker process that hangs, and there are"
         " none", (Omit("step_timeout"), *[Set(num_workers=1)] * possible)))


def unsupported_value(config: Config, **supported: Sequence[str]) -> str:
    """The first setting with a value that is not `supported`, as name=value; "" for none."""
    others = (name for name, values in supported.items() if getattr(config, name) not in values)
    return next((f"{name}={getattr(config, name)}" for name in others), "")


def changed_setting(config: Config, names: Iterable[str]) -> str:
    """The first of some settings without its default, as name=value; "" if all have it."""
    name = first_changed(config, names)
    value = getattr(config, name, None)
    return f"your own {name}" if callable(value) else f"{name}={format_value(value)}" * bool(name)
