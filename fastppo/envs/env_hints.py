"""The ids that a file may name: those that Gymnasium or a known package registers."""

from typing import Any

from gymnasium.envs.registration import registry

from fastppo.envs.families import registering_package
from fastppo.errors import ConfigError
from fastppo.settings.fixes import Set


def is_registered(env_name: str) -> bool:
    """Returns True for an id for which no module must be imported by its name."""
    return ":" not in env_name and (
        env_name in registry or registering_package(env_name) is not None)


def check_registered(env_name: str, what: Any) -> None:
    """Raises ConfigError unless `env_name`, the environment in the file `what`, is registered.

    Code that a file names is never imported.
    """
    if not is_registered(env_name):
        raise ConfigError(f"{what} is of the environment {env_name}, and code that a file names is"
                          " never imported",
                          Set(env_name=env_name if ":" in env_name else "my_module:MyEnv"))
