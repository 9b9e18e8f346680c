"""The settings of a run from what a trainer was given: an environment, settings, a stored run."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from gymnasium.vector import VectorEnv

from fastppo.config import MODELS, Config, check_names, default_of, having
from fastppo.envs.families import check_registered, is_registered
from fastppo.envs.source import EnvSource, check_agreement, settings_decided_by
from fastppo.errors import ConfigError, Omit, Set
from fastppo.machine import limits
from fastppo.machine.child_process import without_secrets
from fastppo.settings.presets import is_preset_file, preset_of
from fastppo.trainer.resolve import resolve
from fastppo.trainer.rules import ENGINES

BY_PRESET = having("by_preset")


def checked_source(env: Any, config: Config) -> EnvSource:
    """The environments of a run in `env`, or those that `config` names, and its resolved Config.

    The one place that asks for the rules. Raises ConfigError or SpaceError if anything is wrong.
    """
    if (config.env_kwargs or {}).get("render_mode"):  # it would open a window
        raise ConfigError("env_kwargs has a render_mode, but environments are not rendered in"
                          " training", "leave render_mode out; to watch a policy: the verb play, or"
                          " evaluate(1, env=...) with an environment that draws itself")
    source = source_for(env, config)
    try:
        if (config.eval_env or config.eval_interval or config.video_interval) is not None:
            source.evaluation_factories()
        source.resolved = resolve(source)
    except BaseException:
        source.close()
        raise
    return source


def source_for(env: Any, config: Config) -> EnvSource:
    """The environments of a run in `env`, see EnvSource; ids are made by what config.vec names."""
    if config.vec not in ENGINES or isinstance(env, VectorEnv):
        return EnvSource(env, config)
    from fastppo.vector.source import VectorEnvSource
    return VectorEnvSource(env, config)


def config_for(env: Any, given: dict[str, Any]) -> Config:
    """The Config for `env`: the settings `given`, then its preset's, then the defaults."""
    given = {name: value for name, value in given.items()
             if name not in BY_PRESET or value != "auto"}
    if given.get("device") is not None:
        given["device"] = str(given["device"])  # of a torch.device, too
    if env is None or isinstance(env, str):
        name = given.get("env_name", "") if env is None else env
    else:
        check_agreement(env, given)
        name = env_label(env)
    if not name:
        Config(**given)  # whose answer to an unknown name, such as env_id, comes first
        raise ConfigError("PPO was given no environment (the default is for the command only)",
                          Set(env_name=default_of("env_name")))
    if given.get("env_name", name) != name:
        raise ConfigError(f"PPO was given {name} and env_name={given['env_name']!r}: only one of"
                          " them can be trained on", Omit("env_name"))
    preset, values = given.get("preset", "auto"), preset_of(str(name))
    if preset != "auto":
        from fastppo.trainer.setting_texts import preset_settings
        values = preset_settings(str(name), preset)
    return Config(**given | {"env_name": name}).replace(
        **{setting: value for setting, value in values.items() if setting not in given})


def env_label(env: Any) -> str:
    """The name of an environment that was given as `env`."""
    if isinstance(env, VectorEnv):
        return getattr(env, "simulator_name", type(env).__name__)
    if isinstance(env, (list, tuple)):
        return env_label(env[0]) if env else "nothing"
    if isinstance(env, partial):
        return env_label(env.func)
    return env if isinstance(env, str) else getattr(env, "__qualname__", type(env).__name__)


def settings_to_continue(config: dict[str, Any], code: list[str]) -> dict[str, Any]:
    """The settings that a run continues with, of the `config` in its checkpoint, without `code`."""
    if is_preset_file(config.get("preset")):
        config["preset"] = "none"  # its settings are stored
    checked = Config(**{name: config[name] for name in Config.__match_args__ if name in config})
    return {name: value for name, value in vars(checked).items()
            if name not in {*having("not_stored"), *code}}


def resumed_settings(path: Path, stored: dict[str, Any], code: list[str], env: Any,
                     changes: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run that continues the checkpoint `path` with some `changes`.

    `stored` are its settings, and `code` the names of those that no file holds. With device="auto"
    it stays where it was.
    Raises ConfigError for a change that would make it another run, and for code that is missing.
    """
    check_names(changes)
    free = having("resumable")
    changes = {name: value for name, value in changes.items()
               if value not in (None, "auto") or name in free and name != "device"}
    if is_preset_file(changes.get("preset")):
        del changes["preset"]
    if stored.get("precision") == "tf32" and str(changes.get("device")).startswith("cpu"):
        stored["precision"] = "fp32"  # only GPUs compute in the other
    name = stored["env_name"]
    if env is None and "env_name" not in changes:
        check_registered(name, path, stored.get("vec", "workers"))
    code = [*code, *code_named_in(stored)]
    given = env_label(env) if env is not None else changes.get("env_name", name)
    for setting, value in {**changes, "env_name": given}.items():
        if setting not in {*free, *code} and plain(value) != plain(stored.get(setting)):
            ours, theirs = without_secrets(value), without_secrets(stored.get(setting))
            raise ConfigError(f"{setting} is {ours!r}, but the run that is resumed has {theirs!r}",
                              Omit(setting) if setting in changes else
                              "give the environment that it was trained on")
    count = stored["num_envs"]
    if (ours := settings_decided_by(env).get("num_envs", count)) != count:
        raise ConfigError(f"there are {ours} environments, but the run that is resumed has {count}",
                          f"give {count} environments")
    missing = {setting: stored.get(setting, "...") for setting in code if setting not in changes}
    if missing:
        raise ConfigError(f"the run had your own {' and '.join(missing)}, which a file cannot hold"
                          " or must not choose", Set(**missing))
    return stored | changes | ({} if env is None else {"env_name": given})


def code_named_in(settings: dict[str, Any]) -> list[str]:
    """The settings whose text names code to import, which must be given again."""
    model, env = settings.get("model", "auto"), settings.get("eval_env")
    return ["model"] * (model not in MODELS) + ["eval_env"] * (
        env is not None and not is_registered(str(env), settings.get("vec", "workers")))


def given_again(ppo) -> dict[str, str]:
    """The settings of `ppo` that name code, which a command that resumes it must give again."""
    settings = vars(ppo.source.config)
    env = [] if is_registered(settings["env_name"], settings["vec"]) else ["env_name"]
    return {name: settings[name] for name in (*env, *code_named_in(settings))
            if isinstance(settings[name], str)}


def joined_ranks(config: Config) -> limits.OneProcess:
    """The processes that torchrun has started for a run, connected; or this one."""
    if limits.rank_count() == 1:
        return limits.OneProcess()
    from fastppo.ranks.processes import Ranks
    return Ranks(config.backend, config.device_ids)


def plain(value: Any) -> Any:
    """`value` as JSON gives it back: lists in place of tuples."""
    return json.loads(json.dumps(value, default=repr))
