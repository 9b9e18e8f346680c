"""Rules about the settings of a run on several ranks."""

from typing import Any, Sequence

from fastppo.build.check_config import first_changed
from fastppo.config import Config, having
from fastppo.errors import ConfigError
from fastppo.settings.fixes import Omit, Set


def check_ranks(config: Config, count: int) -> None:
    """Raises ConfigError for settings that `count` ranks cannot follow."""
    if config.num_envs % count:
        fitting = max(count, config.num_envs // count * count)
        raise ConfigError(f"num_envs is {config.num_envs}, but each of the {count} processes has as"
                          " many environments", Set(num_envs=fitting))
    why = "is for a run of one process, and torchrun has started " + str(count)
    if name := first_changed(config, having("one_process")):
        raise ConfigError(f"{name}={getattr(config, name)} {why}", Omit(name))
    if config.vec != "workers":
        raise ConfigError(f"vec={config.vec}, as that of a VectorEnv, {why}", (
            Set(vec="workers"), "give an id or a function in place of the VectorEnv"))
    if config.nan_policy != "raise":
        raise ConfigError(f"nan_policy={config.nan_policy} {why}", Set(nan_policy="raise"))
    if not config.num_workers:
        raise ConfigError(f"num_workers=0 {why}", Set(num_workers=1))
    if config.learner == "graph":
        raise ConfigError(f"learner=graph {why}", Set(learner="torch"))


def trained_by(config: Config) -> dict[str, str]:
    """The settings that must be the same on all ranks, as texts."""
    own = having("of_rank")
    return {name: repr(value) for name, value in vars(config).items() if name not in own}


def check_equal(settings: Sequence[dict[str, Any]]) -> None:
    """Raises ConfigError if the settings of a rank differ from those of rank 0."""
    for rank, others in enumerate(settings):
        if wrong := [name for name, value in settings[0].items() if others[name] != value]:
            name = wrong[0]
            raise ConfigError(f"process 0 has {name}={settings[0][name]}, and process {rank}"
                              f" {name}={others[name]}", "start all with the same settings")
