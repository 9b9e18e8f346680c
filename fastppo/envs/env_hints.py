"""What helps where an environment is not served as it is: code and commands that can be pasted."""

import ast
import difflib
import functools
import inspect
import itertools
import os
import re
import shlex
import sys
import tokenize
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import PurePath
from typing import Any, Callable, Iterable

import gymnasium
from gymnasium.spaces import Space

from fastppo.settings.spelling import json_flag

FILE = "my_env"  # the module in which a wrapped environment is to stand
ATARI = "ALE/"  # the namespace of ale-py's environments
EXTRAS = {"ale_py": 'pip install "fastppo[atari]"', "mujoco": 'pip install "fastppo[mujoco]"',
          "box2d": 'pip install Box2D (where that has no wheel: "fastppo[box2d-source]")',
          "envpool": 'pip install "fastppo[envpool]"', "jax": 'pip install "gymnasium[jax]"'}
CALLABLE = "give a class of environments, or a function that returns gymnasium.make(...)"
SPACES = {"observation_space": 'Box(-float("inf"), float("inf"), (4,))',
          "action_space": "Discrete(2)"}


def wrapper(env_name: str, obs_space: Space | None, act_space: Space | None) -> str:
    """How to make the observations of an environment one flat Box, its actions Discrete.

    A space that is None is served as it is. One file does both, so that it is pasted once. In place
    of a name there may be the call that makes the environment.
    """
    lines = [] if obs_space is None else _flattening()
    lines += [] if act_space is None else _mapping()
    return _wrapped(env_name, [*lines, "return env"])


def call(made: functools.partial) -> str:
    """The call that a partial makes, as code; an argument that is no literal is `...`."""
    entry = getattr(made.func, "__qualname__", "")
    name = "gymnasium.make" if made.func is gymnasium.make else \
        entry if entry.isidentifier() and entry != "make" else "MyEnv"
    told = [*map(_literal, made.args), *(f"{x}={_literal(y)}" for x, y in made.keywords.items())]
    return f"{name}({', '.join(told)})"


def spaces(missing: Iterable[str]) -> str:
    """The lines that define spaces, by attribute; their sizes are an example's."""
    lines = (f"self.{name} = gymnasium.spaces.{SPACES[name.removeprefix('single_')]}"
             for name in missing)
    return f"in __init__, with its own sizes: {'; '.join(lines)}"


def atari(env_name: str) -> bool:
    """Whether an id is one of ale-py's."""
    return env_name.startswith(ATARI) or "NoFrameskip" in env_name


def module(env_name: str, setting: str = "env_name") -> str:
    """How to write `path/file.py:callable`, which names no module; "" for other names."""
    file, _, attribute = env_name.partition(":")
    path = PurePath(file)
    if path.suffix != ".py":
        return ""
    if path.is_absolute() or ".." in path.parts:
        return f"cd {shlex.quote(str(path.parent))}, then --{setting}={path.stem}:{attribute}"
    return f"--{setting}={'.'.join(path.with_suffix('').parts)}:{attribute}"


def unnamed(name: str, setting: str) -> str:
    """How to write a `module:callable` that begins with the colon, or with a dot."""
    module, _, attribute = name.partition(":")
    if setting == "env_name" and attribute in gymnasium.registry:
        return f"--env_name={attribute}"
    return f"--{setting}={module.lstrip('.') or 'my_module'}:{attribute or 'MyEnv'}"


def in_module(env_name: str) -> str:
    """How to name an environment in `env_name` where that is a module's name; else "".

    The module is read, not imported: nobody asked for what it does.
    """
    found = _found(env_name)
    if found is None:
        return ""
    classes = _env_classes(found.origin) if str(found.origin).endswith(".py") else []
    return f"--env_name={env_name}:{classes[0] if len(classes) == 1 else 'YourEnv'}"


def keyword(env_name: str, entry: Callable, kwargs: dict[str, Any], error: TypeError
            ) -> tuple[str, str] | None:
    """(what, fix) for a constructor called with keywords it does not take, or without one it needs.

    None where `error` is another one, raised inside of it.
    """
    unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    takes = accepted(entry)
    if unknown and unknown[1] in kwargs:
        bad, rest = unknown[1], {name: x for name, x in kwargs.items() if name != unknown[1]}
        near = difflib.get_close_matches(bad, [name for name in takes if name not in rest], 1)
        what = f"{env_name} takes no {bad!r} (env_kwargs), only {', '.join(takes) or 'none'}"
        return what, json_flag("env_kwargs", rest | ({near[0]: kwargs[bad]} if near else {}))
    needed = [name for name in re.findall(r"'(\w+)'", str(error)) if takes.get(name)]
    if needed and re.search(r"missing \d+ required", str(error)):
        return (f"{env_name} needs {', '.join(needed)} (env_kwargs)",
                json_flag("env_kwargs", kwargs | dict.fromkeys(needed, "...")))
    return None


def accepted(entry: Callable) -> dict[str, bool]:
    """The keyword arguments that `entry` names, and whether they must be given."""
    try:
        params = inspect.signature(entry).parameters.values()
    except (TypeError, ValueError):  # written in C
        return {}
    return {param.name: param.default is param.empty for param in params
            if param.kind in (param.POSITIONAL_OR_KEYWORD, param.KEYWORD_ONLY)
            and param.name != "render_mode"}


def dependency(module: str) -> str:
    """How to get what `module`, or an environment's entry point in it, could not import."""
    found = [command for word, command in EXTRAS.items() if word in module.lower()]
    return found[0] if found else "run it where that can be imported, or install it"


def _found(module: str) -> ModuleSpec | None:
    """Where `module` would be imported from; None if from nowhere."""
    name, path, found = "", None, None
    for part in module.split("."):
        name, found = f"{name}.{part}".lstrip("."), None
        if part.isidentifier():
            found = PathFinder.find_spec(name, path)
        if found is None:
            return None
        path = found.submodule_search_locations or []
    return found


def _env_classes(file: str) -> list[str]:
    """The subclasses of gymnasium.Env that stand in `file`, as its text has them."""
    try:
        with tokenize.open(file) as source:
            tree = ast.parse(source.read())
    except (OSError, SyntaxError, ValueError):
        return []
    found: list[str] = []
    for one in tree.body:
        if isinstance(one, ast.ClassDef) and any(
                ast.unparse(base).rpartition(".")[2] in ("Env", *found) for base in one.bases):
            found.append(one.name)
    return found


def _flattening() -> list[str]:
    return ["# to_array: your function from its observation to an array of 4 numbers",
            'space = gymnasium.spaces.Box(-float("inf"), float("inf"), (4,))',
            "env = gymnasium.wrappers.TransformObservation(env, to_array, space)"]


def _mapping() -> list[str]:
    return ["# func: your function from a whole number to an action of the environment",
            "space = gymnasium.spaces.Discrete(4)",
            "env = gymnasium.wrappers.TransformAction(env, func, space)"]


def _wrapped(env_name: str, lines: list[str]) -> str:
    """A module with the function `make`, whose last lines wrap `env`; and how to train on it."""
    module, colon, attribute = env_name.partition(":")
    callable_ = colon and attribute.replace(".", "").isidentifier()
    if env_name.endswith(")"):  # a call
        made = f"{env_name[:-1]}, **kwargs)".replace("(, ", "(")
    elif callable_:  # by its module, because it may be called `make`, too
        made = f"{module}.{attribute}(**kwargs)"
    elif "-v" in env_name and "<" not in env_name:
        made = f'gymnasium.make("{env_name}", **kwargs)'
    else:  # a class or function of the user's, or nothing known
        made = f"{env_name if env_name.isidentifier() else 'MyEnv'}(**kwargs)"
    text = ["import gymnasium", *["import numpy"] * ("numpy." in str(lines)),
            *[f"import {module}"] * bool(callable_), "",
            "def make(**kwargs):", f"    env = {made}", *(f"    {line}" for line in lines)]
    code, name = "\n".join(f"    {line}".rstrip() for line in text), _free_name()
    return (f"wrap it, in a file {name}.py:\n\n{code}\n\n"
            f"  then --env_name={name}:make, or in Python: PPO(make)")


def _literal(value: Any) -> str:
    try:
        ast.literal_eval(repr(value))
    except (ValueError, SyntaxError):
        return "..."
    return repr(value)


def _free_name() -> str:
    """FILE, numbered where a module of that name is there already."""
    names = itertools.chain([FILE], (f"{FILE}_{i}" for i in itertools.count(2)))
    return next(name for name in names if not os.path.exists(f"{name}.py")
                and name not in sys.modules and PathFinder.find_spec(name) is None)
