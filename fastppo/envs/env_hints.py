"""Fixes for environments that cannot be made: packages to install, and wrong arguments."""

import difflib
import importlib.util
import inspect
import re
from fnmatch import fnmatchcase
from typing import Any, Callable

from gymnasium.envs.registration import EnvSpec, load_env_creator, registry

from fastppo.errors import ConfigError
from fastppo.machine.child_env import without_secrets
from fastppo.settings.aliases import NEAR
from fastppo.settings.atari_games import GAMES, full_game_id
from fastppo.settings.fixes import Fix, Install, Set

# The fix if a text, such as a module's name or an error's text, contains the key.
PACKAGES: dict[str, Fix] = {
    "ale_py": Install("atari"),
    "opencv": Install("atari"),
    "minigrid": Install("minigrid"),
    "mujoco": Install("mujoco"), "imageio": Install("mujoco"),
    "box2d": ("pip install Box2D", Install("box2d-source")),  # the latter where there is no wheel
    "envpool": Install("envpool"),
    "jax": 'pip install "gymnasium[jax]"', "flax": 'pip install "gymnasium[jax]"',
}

# The packages whose import registers ids, and patterns of these ids.
REGISTERING = {"ale_py": ("ALE/*", "*NoFrameskip*", "*Deterministic-v?", "*-ram-v?"),
               "minigrid": ("MiniGrid-*", "BabyAI-*")}


def is_atari_id(env_name: str) -> bool:
    """Returns True for an id that ale-py registers."""
    return registering_package(env_name) == "ale_py"


def is_game_without_ale(env_name: str) -> bool:
    """True for an old id of a game of Atari, such as Pong-v4, where ale-py is missing."""
    games = map(str.lower, GAMES)
    return env_name.partition("-")[0].lower() in games and not importlib.util.find_spec("ale_py")


def registering_package(env_name: str) -> str | None:
    """The package whose import registers such an id; None for other names."""
    env_id = full_game_id(env_name)
    return next((package for package, patterns in REGISTERING.items()
                 if any(fnmatchcase(env_id, pattern) for pattern in patterns)), None)


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


def nearest_id(name: str) -> str | None:
    """The registered id that a mistyped one is probably meant to be; None if none is near.

    The same name in another version is nearest, in the same namespace; for all names that a game of
    Atari had, such as Pong-v4 and Pong-ramDeterministic-v0, it is ALE/Pong-v5.
    """
    for package in filter(importlib.util.find_spec, REGISTERING):
        importlib.import_module(package)
    bases = {env_id: _base(env_id) for env_id in registry}
    meant = difflib.get_close_matches(_base(name), {*bases.values()}, 1, NEAR)
    same = [env_id for env_id, base in bases.items() if [base] == meant and env_id != name]
    space, end = name.rpartition("/")[0], name.rpartition("-")[2]
    return max(same, key=lambda x: (
        x.rpartition("/")[0] == space and "ale_py" not in str(registry[x].entry_point),
        x.startswith("ALE/"), x.endswith(end), x), default=None)


def _base(env_id: str) -> str:
    """The name of an id in small letters, without namespace, version and variant: pong."""
    name = re.sub(r"^(.*/|MiniGrid-|BabyAI-)|-v\d+$", "", env_id)
    return re.sub("(-ram)?(NoFrameskip|Deterministic)?$", "", name).lower()


def missing_package(text: str,
                    unknown: Fix = "install it, or what it lacks, in this Python") -> Fix:
    """The fix for a package that is not installed, whose name is in `text`; else `unknown`."""
    for word, fix in PACKAGES.items():
        if word in text.lower():
            return fix
    return unknown


def wrong_keywords(name: str, constructor: EnvSpec | Callable,
                   kwargs: dict[str, Any]) -> ConfigError | None:
    """The error for a class, function or id that cannot be called with `kwargs`; None if it can."""
    arguments = kwargs
    if isinstance(constructor, EnvSpec):
        arguments, entry = {**constructor.kwargs, **kwargs}, constructor.entry_point
        constructor = load_env_creator(entry) if isinstance(entry, str) else entry
    try:
        signature = inspect.signature(constructor)
        signature.bind(**arguments)
    except ValueError:  # it is written in C and has no signature
        return None
    except TypeError as error:
        return ConfigError(f"{name} takes {signature}, and env_kwargs is {without_secrets(kwargs)}:"
                           f" {error}",
                           "give what it takes by env_kwargs, or a function without arguments")
    return None
