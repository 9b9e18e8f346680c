"""Families of registered environments: their ids, and the package that each of them needs."""

import contextlib
import importlib
import importlib.util
from fnmatch import fnmatchcase
from typing import Any, Iterable, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from fastppo.errors import ConfigError, Fix, Install, Set
from fastppo.settings.presets import full_game_id

JAX = "jax", 'pip install "gymnasium[jax]"'


class Family(NamedTuple):
    """Environments that come together."""

    name: str
    about: str  # their observations and actions, in some words
    module: str  # in which the entry points of their ids begin
    package: str = ""  # that they need beside Gymnasium
    fix: Fix = ""  # to get it
    ids: tuple[str, ...] = ()  # patterns of the ids that the import of the package registers


FAMILIES_KNOWN = (
    Family("classic control", "vectors", "gymnasium.envs.classic_control"),
    Family("Box2D", "vectors; CarRacing: images", "gymnasium.envs.box2d", "Box2D",
           ("pip install Box2D", Install("box2d-source"))),  # the latter where there is no wheel
    Family("toy text", "integers, discrete actions", "gymnasium.envs.toy_text"),
    Family("MuJoCo", "vectors, continuous actions", "gymnasium.envs.mujoco", "mujoco",
           Install("mujoco")),
    Family("Atari", "images, discrete actions", "ale_py", "ale_py", Install("atari"),
           ("ALE/*", "*NoFrameskip*", "*Deterministic-v?", "*-ram-v?")),
    Family("MiniGrid", "dictionaries, discrete actions", "minigrid", "minigrid",
           Install("minigrid"), ("MiniGrid-*", "BabyAI-*")),
    Family("JAX phys2d", "vectors", "gymnasium.envs.phys2d", *JAX),
    Family("JAX tabular", "integers", "gymnasium.envs.tabular", *JAX),
)


def is_installed(family: Family) -> bool:
    """True if the package that a family needs is there; it is not imported."""
    return not family.package or importlib.util.find_spec(family.package) is not None


def registering_package(env_name: str) -> str | None:
    """The package whose import registers such an id; None for other names."""
    env_id = full_game_id(env_name)
    return next((family.package for family in FAMILIES_KNOWN
                 if any(fnmatchcase(env_id, pattern) for pattern in family.ids)), None)


def is_registered(env_name: str, vec: str = "workers") -> bool:
    """Returns True for an id for which no module must be imported by its name."""
    return made_by_envpool(env_name, vec) or ":" not in env_name and (
        env_name in gym.registry or registering_package(env_name) is not None)


def made_by_envpool(env: Any, vec: str) -> bool:
    """True for every id, wherever it stands, if vec=envpool; EnvPool knows which it has."""
    return vec == "envpool" and isinstance(env, str) and ":" not in env


def check_registered(env_name: str, what: Any, vec: str = "workers") -> None:
    """Raises ConfigError unless `env_name`, the environment in the file `what`, is registered.

    `vec` is that of the file. Code that a file names is never imported.
    """
    if not is_registered(env_name, vec):
        raise ConfigError(f"{what} is of the environment {env_name}, and code that a file names is"
                          " never imported",
                          Set(env_name=env_name if ":" in env_name else "my_module:MyEnv"))


def missing_family(pattern: str) -> Family | None:
    """The family without its package that has a part of its name, or of its ids, in `pattern`."""
    word, package = pattern.strip("*?").lower(), registering_package(pattern)
    return next((family for family in FAMILIES_KNOWN if not is_installed(family) and (
        word and word in family.name.lower() or package == family.package)), None)


def registered_families() -> dict[Family, list[EnvSpec]]:
    """The specs of the ids that Gymnasium knows, by family, in the order of their names.

    It imports the packages that register ids. A family of Gymnasium's own has its ids also if its
    package is missing; ids that Gymnasium has retired are left out.
    """
    for family in filter(is_installed, FAMILIES_KNOWN):
        if family.ids:
            with contextlib.suppress(ImportError):  # a part of it is missing
                importlib.import_module(family.package)
    found: dict[Family, list[EnvSpec]] = {family: [] for family in FAMILIES_KNOWN}
    for spec in sorted(gym.registry.values(), key=lambda spec: spec.id):
        if not is_retired(spec):
            found.setdefault(family_of(spec), []).append(spec)
    return found


def family_of(spec: EnvSpec) -> Family:
    """The family of a registered id; for one of an unknown package it is named after that."""
    module = entry_module(spec)
    top = module.partition(".")[0]
    known = (family for family in FAMILIES_KNOWN if f"{module}.".startswith(f"{family.module}."))
    return next(known, Family(top, f"registered by {top}", top))


def entry_module(spec: EnvSpec) -> str:
    """The module of an id's class."""
    entry = spec.entry_point
    return entry.partition(":")[0] if isinstance(entry, str) else str(
        getattr(entry, "__module__", ""))


def is_retired(spec: EnvSpec) -> bool:
    """True for an id that only says that another package has it now."""
    name = getattr(spec.entry_point, "__name__", "")
    return name.startswith("_raise") and entry_module(spec).startswith("gymnasium.")


def newest(specs: Iterable[EnvSpec]) -> list[EnvSpec]:
    """Of the versions of each environment the newest; an Atari game has several names."""
    best: dict[str, EnvSpec] = {}
    for spec in specs:
        name = spec.id.rpartition("-v")[0] or spec.id
        if "ale_py" in (registering_package(spec.id), entry_module(spec).partition(".")[0]):
            name = f"atari {spec.name.removesuffix('NoFrameskip')}"
        best[name] = max(best.get(name, spec), spec, key=lambda one: one.version or 0)
    return list(best.values())
