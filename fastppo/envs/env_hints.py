"""Fixes for environments that cannot be made: packages to install, arguments, names of modules."""

import difflib
import functools
import inspect
from importlib.machinery import PathFinder
from pathlib import PurePath
from typing import Any, Callable

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from fastppo.errors import ConfigError
from fastppo.settings.fixes import Fix, Install, Omit, Set

# The fix if a text, such as a module's name or an error's text, contains the key.
PACKAGES: dict[str, Fix] = {
    "ale_py": Install("atari"),
    "opencv": Install("atari"),
    "mujoco": Install("mujoco"),
    "box2d": ("pip install Box2D", Install("box2d-source")),  # the latter where there is no wheel
    "envpool": Install("envpool"),
    "jax": 'pip install "gymnasium[jax]"',
}
CALLABLE = "give a class of environments, or a function that returns gymnasium.make(...)"


def is_atari_id(env_name: str) -> bool:
    """Returns True for an id that ale-py registers."""
    return env_name.startswith("ALE/") or "NoFrameskip" in env_name


def missing_package(text: str) -> Fix:
    """The fix for a package that is not installed; `text` contains its name."""
    for word, fix in PACKAGES.items():
        if word in text.lower():
            return fix
    return "install it, or run in the Python where it is installed"


def failed_import(spec: EnvSpec, error: ImportError, setting: str) -> Fix:
    """The fix for an id whose module cannot be imported: its newest version, or a package."""
    versions = [one for one in gym.registry.values()
                if (one.namespace, one.name) == (spec.namespace, spec.name)]
    newest = max(versions, key=lambda one: one.version or 0, default=spec)
    install = missing_package(f"{error.name}")
    return install if newest.id == spec.id else (Set(**{setting: newest.id}), install)


def module_name(name: str, setting: str) -> Set:
    """The fix for a setting with a file, or nothing, before the colon of `module:callable`."""
    module, _, attribute = name.partition(":")
    if attribute in gym.registry and setting != "model":
        return Set(**{setting: attribute})
    path = PurePath(module)
    parts = [path.stem] if path.is_absolute() else path.parts
    module = ".".join(parts).removesuffix(".py").lstrip(".") or "my_module"
    return Set(**{setting: f"{module}:{attribute or 'MyEnv'}"})


def unknown_id(name: str, setting: str) -> Fix:
    """The fix for an id that is not registered: a class in a module of this name, or another id."""
    if name.replace(".", "").isidentifier() and PathFinder.find_spec(name.partition(".")[0]):
        return Set(**{setting: f"{name}:YourEnv"})
    namespace = name.rpartition("/")[0]
    known = [one for one in gym.registry if one.rpartition("/")[0] == namespace]
    if near := difflib.get_close_matches(name, known, 1, 0.4):
        return Set(**{setting: near[0]})
    return "install its package, and give its module before the id: package:Id-v0"


def keyword_arguments(constructor: EnvSpec | Callable) -> dict[str, bool] | None:
    """The keyword arguments of a callable or of an id's entry point; True for required ones.

    None if they are unknown: a function written in C, or one with **kwargs.
    """
    if isinstance(constructor, EnvSpec):
        entry = constructor.entry_point
        entry = load_env_creator(entry) if isinstance(entry, str) else entry
        constructor = functools.partial(entry, **constructor.kwargs)
    try:
        params = inspect.signature(constructor).parameters.values()
    except (TypeError, ValueError):  # written in C
        return None
    if any(param.kind is param.VAR_KEYWORD for param in params):
        return None
    return {param.name: param.default is param.empty for param in params
            if param.kind in (param.POSITIONAL_OR_KEYWORD, param.KEYWORD_ONLY)}


def wrong_keywords(name: str, constructor: EnvSpec | Callable, kwargs: dict[str, Any],
                   setting: str) -> ConfigError | None:
    """The error for a constructor that does not take one of `kwargs`, or needs another argument.

    None if the arguments are right. env_kwargs belong to env_name, not to another `setting`.
    """
    accepted = keyword_arguments(constructor)
    if accepted is None:
        return None
    right = {key: kwargs.get(key, "...") for key, required in accepted.items()
             if required or key in kwargs}
    if right.keys() == kwargs.keys():
        return None
    takes = [f"{key} (required)" if required else key for key, required in accepted.items()]
    what = (f"{name} takes the arguments {', '.join(takes) or 'none'}, but was given"
            f" {', '.join(kwargs) or 'none'} (env_kwargs)")
    if setting != "env_name":
        return ConfigError(what, f"give a function that needs no arguments: {setting} takes no"
                                 " env_kwargs")
    return ConfigError(what, Set(env_kwargs=right) if right else Omit("env_kwargs"))
