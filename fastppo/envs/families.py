"""Families of registered environments: their ids, and the package that each of them needs."""

import contextlib
import functools
import importlib
import importlib.util
import pkgutil
import re
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
    module: str  # its import, or `module:function`, registers their ids, and has their classes
    package: str = ""  # that they need beside Gymnasium
    fix: Fix = ""  # to get it
    ids: tuple[str, ...] = ()  # patterns of the ids; those of Gymnasium need no import


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
    Family("PettingZoo", "games of several agents", "fastppo.envs.games:register_pettingzoo",
           "mpe2", Install("games"), ("classic/*", "sisl/*", "butterfly/*", "mpe2/*", "atari/*")),
    Family("JAX phys2d", "vectors", "gymnasium.envs.phys2d", *JAX),
    Family("JAX tabular", "integers", "gymnasium.envs.tabular", *JAX),
    Family("dm_control", "dictionaries of vectors, continuous actions", "shimmy", "dm_control",
           Install("dm-control"), ("dm_control/*",)),
    Family("Gymnasium-Robotics", "vectors, dictionaries with goals, continuous actions",
           "gymnasium_robotics", "gymnasium_robotics", Install("robotics"),
           ("Fetch*", "Hand*", "AntMaze_*", "PointMaze_*", "AdroitHand*", "FrankaKitchen-*")),
    Family("Meta-World", "vectors, continuous actions", "metaworld", "metaworld",
           Install("robotics"), ("Meta-World/*",)),
    Family("panda-gym", "dictionaries with goals, continuous actions", "panda_gym", "panda_gym",
           "pip install panda-gym", ("Panda*-v3",)),
    Family("PyFlyt", "vectors, continuous actions", "PyFlyt.gym_envs", "PyFlyt",
           "pip install PyFlyt", ("PyFlyt/*",)),
    Family("highway-env", "matrices of vehicles, discrete actions", "highway_env", "highway_env",
           Install("highway"), ("highway-*", "merge-*", "roundabout-*", "parking-*",
                                "intersection-*", "racetrack-*", "lane-keeping-*", "exit-*",
                                "two-way-*", "u-turn-*")),
    Family("POPGym", "what can be seen is less than the state", "popgym", "popgym",
           Install("popgym"), ("popgym-*",)),
    Family("MinAtar", "bits [10 10 k], discrete actions", "minatar.gym:register_envs", "minatar",
           "pip install minatar", ("MinAtar/*",)),
    Family("Flappy Bird", "vectors, discrete actions", "flappy_bird_gymnasium",
           "flappy_bird_gymnasium", "pip install flappy-bird-gymnasium", ("FlappyBird-v*",)),
    Family("Tetris", "dictionaries of boards, discrete actions", "tetris_gymnasium.envs",
           "tetris_gymnasium", "pip install tetris-gymnasium", ("tetris_gymnasium/*",)),
    Family("2048", "boards, discrete actions", "gymnasium_2048", "gymnasium_2048",
           "pip install gymnasium-2048", ("gymnasium_2048/*",)),
    Family("PushT", "vectors, continuous actions", "gym_pusht", "gym_pusht",
           "pip install gym-pusht", ("gym_pusht/*",)),
    Family("AnyTrading", "matrices, discrete actions", "gym_anytrading", "gym_anytrading",
           "pip install gym-anytrading", ("stocks-v0", "forex-v0")),
    Family("electric motors", "vectors", "gym_electric_motor", "gym_electric_motor",
           "pip install gym-electric-motor", ("Finite-*-*-v0", "Cont-*-*-v0")),
    Family("BlueSky-Gym", "dictionaries of vectors, continuous actions",
           "bluesky_gym:register_envs", "bluesky_gym", "pip install bluesky-gym",
           ("DescentEnv-v0", "PlanWaypointEnv-v0", "*CREnv-v0", "StaticObstacleEnv-v0",
            "MergeEnv-v0")),
    Family("MO-Gymnasium", "several rewards, which LinearReward adds up", "mo_gymnasium",
           "mo_gymnasium", "pip install mo-gymnasium",
           ("mo-*", "deep-sea-treasure-*", "resource-gathering-v0", "fishwood-v0", "four-room-v0",
            "breakable-bottles-v0", "fruit-tree-v0", "water-reservoir-v0", "minecart-*")),
    Family("MiniWorld", "images, discrete actions", "miniworld", "miniworld",
           "pip install miniworld", ("MiniWorld-*",)),
    Family("ViZDoom", "dictionaries with an image, discrete actions", "vizdoom.gymnasium_wrapper",
           "vizdoom", "pip install vizdoom", ("Vizdoom*",)),
    Family("Procgen", "images, discrete actions", "procgen_gym", "procgen_gym",
           "pip install procgen-gym, with Python 3.13", ("procgen_gym/*",)),
    Family("EnvPool", "ids that it alone has, for vec=envpool", "envpool", "envpool",
           Install("envpool")),
)


def is_installed(family: Family) -> bool:
    """True if the packages that a family needs are there; they are not imported."""
    return all(map(importlib.util.find_spec, packages_of(family)))


def packages_of(family: Family) -> set[str]:
    """The packages that a family needs; one that registers ids may be another than the classes'."""
    registering = re.split("[.:]", family.module)[:1] if family.ids else []
    return {family.package or "gymnasium", *registering}


def family_with(package: str | None) -> Family | None:
    """The first family beside Gymnasium's own that needs a package."""
    return next((family for family in FAMILIES_KNOWN
                 if package in packages_of(family) - {"gymnasium"}), None)


def family_of_id(env_name: str) -> Family | None:
    """The family whose import registers an id, which may stand behind a module."""
    env_id = full_game_id(env_name.rpartition(":")[2])
    return next((family for family in FAMILIES_KNOWN
                 if any(fnmatchcase(env_id, pattern) for pattern in family.ids)), None)


@functools.cache
def register(family: Family) -> None:
    """Imports what registers the ids of a family, once."""
    importlib.import_module(family.package)  # the other may go without it
    registers = pkgutil.resolve_name(family.module)
    if ":" in family.module:
        registers()


def envpool_ids() -> list[str]:
    """The ids that EnvPool has and Gymnasium does not; none if it is not installed."""
    if importlib.util.find_spec("envpool") is None:
        return []
    import envpool
    return [name for name in envpool.list_all_envs() if name not in gym.registry]


def is_registered(env_name: str, vec: str = "workers") -> bool:
    """Returns True for an id for which no module must be imported by its name."""
    return made_by_envpool(env_name, vec) or ":" not in env_name and (
        env_name in gym.registry or family_of_id(env_name) is not None)


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
    word, named = pattern.strip("*?").lower(), family_of_id(pattern)
    return next((family for family in FAMILIES_KNOWN if not is_installed(family) and (
        word and word in family.name.lower() or family == named)), None)


def registered_families() -> dict[Family, list[EnvSpec]]:
    """The specs of the ids that Gymnasium knows, by family, in the order of their names.

    It imports the packages that register ids. A family of Gymnasium's own has its ids also if its
    package is missing; ids that Gymnasium has retired are left out.
    """
    for family in filter(is_installed, FAMILIES_KNOWN):
        if family.ids:
            with contextlib.suppress(Exception):  # it may lack a part, or a display
                register(family)
    found: dict[Family, list[EnvSpec]] = {family: [] for family in FAMILIES_KNOWN}
    ours = [EnvSpec(name, entry_point="envpool:make") for name in envpool_ids()]
    for spec in sorted([*gym.registry.values(), *ours], key=lambda spec: spec.id):
        if not is_retired(spec):
            found.setdefault(family_of(spec), []).append(spec)
    return found


def family_of(spec: EnvSpec) -> Family:
    """The family of a registered id; for one of an unknown package it is named after that."""
    module = entry_module(spec)
    top = module.partition(".")[0]
    known = (family for family in FAMILIES_KNOWN
             if f"{module}.".startswith(f"{family.module.partition(':')[0]}."))
    return next(known, None) or family_of_id(spec.id) or Family(top, f"registered by {top}", top)


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
        if family_of(spec).name == "Atari":
            name = f"atari {spec.name.removesuffix('NoFrameskip')}"
        best[name] = max(best.get(name, spec), spec, key=lambda one: one.version or 0)
    return list(best.values())
