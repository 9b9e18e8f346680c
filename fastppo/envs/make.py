"""Makes environments from an id, class or callable."""

import dataclasses
import functools
import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any, Callable, Mapping, Sequence

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from fastppo.config import default_of, having
from fastppo.envs import atari, env_hints, faults, masks
from fastppo.envs.families import is_retired
from fastppo.envs.images import UNCHANGED, ImageOptions, ImagePreprocessing, image_options
from fastppo.envs.wrappers import make_deterministic, read_mission, stack_frames
from fastppo.errors import ConfigError, EnvError, Error, SpaceError
from fastppo.machine.child_env import add_folders, without_secrets
from fastppo.machine.mujoco_warnings import mujoco_warnings_once
from fastppo.settings.atari_games import full_game_id
from fastppo.settings.fixes import PYTHON_NAMES, Fix, Omit, Set, Within, program
from fastppo.settings.spelling import closest_few

Factory = Callable[[], gym.Env]
WRAPPING = having("wrapper")  # the settings of the wrappers around an environment
# Entry points of ids, and of the classes that give the same answers in less time.
FASTER = {"gymnasium.envs.box2d.car_racing:CarRacing": "fastppo.envs.car_racing:CarRacing"}


@dataclasses.dataclass
class EnvFactory:
    """Makes an environment and puts it into the wrappers that the settings ask for.

    `constructor` is the user's class or function, or the EnvSpec of an id, which is looked up once,
    in the main process.
    """

    constructor: EnvSpec | Callable[..., gym.Env]
    name: str
    limit: int | None  # steps after which an episode is truncated
    kwargs: dict[str, Any]
    stack: int = 1
    games: atari.AtariOptions | None = None
    images: ImageOptions = UNCHANGED
    masked: bool = False  # whether action masks outside the observations become a part of them

    def __call__(self) -> gym.Env:
        games, images, spec = self.games, self.images, isinstance(self.constructor, EnvSpec)
        entry = f"{self.constructor.entry_point}" if spec else ""
        if "ale_py" in entry or sys.modules.get("ale_py"):  # a function of the user's may make it
            atari.silence_emulator()
        with mujoco_warnings_once("mujoco" in entry):
            env = self._from_spec() if spec else self._from_callable()
        if games:
            env = atari.preprocess_atari(env, self.limit, games)
        elif images.frame_skip > 1 and (skipped := atari.own_skips(env)):
            raise ConfigError(f"frame_skip repeats an action, but {self.name} does so already, for"
                              f" {skipped.pop()} frames", Omit("frame_skip"))
        else:
            env = env if images == UNCHANGED else ImagePreprocessing(env, images)
            env = gym.wrappers.TimeLimit(env, self.limit) if self.limit else env
        env = stack_frames(read_mission(env), self.stack)
        if games and games.lives and games.whole:
            env = atari.WholeGame(env)
        return masks.wrap_mask(env) if self.masked else env

    def for_evaluation(self) -> "EnvFactory":
        """The same factory, but all lives of an Atari game are one episode."""
        games = self.games and self.games._replace(whole=True)
        return dataclasses.replace(self, games=games)

    def _from_spec(self) -> gym.Env:
        spec = self.constructor
        if self.games:
            spec = atari.game_spec(spec, self.kwargs, self.games)
        elif spec.entry_point in FASTER and not spec.additional_wrappers:
            spec = dataclasses.replace(spec, entry_point=FASTER[spec.entry_point])
        # -1: without the id's limit, because `limit` is in its place. The passive checker repeats
        # our own checks and costs time in every step.
        kwargs = {"max_episode_steps": -1 if self.limit else None, **self.kwargs}
        if "ale_py" in f"{spec.entry_point}" and isinstance(kwargs.get("frameskip"), list):
            kwargs["frameskip"] = tuple(kwargs["frameskip"])  # which a command cannot write
        return gym.make(spec, disable_env_checker=True, **kwargs)

    def _from_callable(self) -> gym.Env:
        env = self.constructor(**self.kwargs)
        if not isinstance(env, gym.Env):
            raise ConfigError(f"{self.name} did not return a gymnasium.Env, but"
                              f" {type(env).__name__}",
                              "give a class of environments, or a function that returns one")
        return env


def spaces_of(env: Any, prefix: str = "") -> tuple[gym.Space, gym.Space]:
    """(observation space, action space) of an environment; SpaceError if one is missing.

    With the prefix "single_" those of one environment of a VectorEnv.
    """
    names = f"{prefix}observation_space", f"{prefix}action_space"
    spaces = tuple(getattr(env, name, None) for name in names)
    missing = [name for name, space in zip(names, spaces) if not isinstance(space, gym.Space)]
    if missing:
        lines = " and ".join(f"self.{name} = gymnasium.spaces..." for name in missing)
        raise SpaceError(f"{type(env.unwrapped).__name__} has no {' and no '.join(missing)} of"
                         " gymnasium.spaces when its constructor returns", f"in __init__: {lines}")
    return spaces


def wrapping(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments stack, games and images of make_factory that the settings WRAPPING stand for.

    One that is missing has its default. Raises ConfigError for some that exclude each other.
    """
    settings = {name: default_of(name) for name in ("env_name", *WRAPPING)} | dict(settings)
    return {"stack": settings["frame_stack"], "games": atari.atari_options(settings),
            "images": image_options(settings)}


def make_factory(env: Any, limit: int | None = None, kwargs: dict | None = None, stack: int = 1,
                 games: atari.AtariOptions | None = None, images: ImageOptions = UNCHANGED,
                 setting: str = "env_name") -> EnvFactory:
    """The factory of a Gymnasium id, `package:Id-v0`, `module:callable`, class or callable.

    Episodes are truncated after `limit` steps (None: the environment's own limit); for the next
    three see `wrapping`. `setting` is the name under which `env` was given. Raises ConfigError for
    an id that is not registered, with the nearest one.
    """
    if isinstance(env, str):
        name, constructor = env, import_callable(env, setting) or _find_spec(env, setting)
    elif callable(env):
        name, constructor = getattr(env, "__qualname__", type(env).__name__), env
    else:
        several = {"num_envs": env.num_envs} if hasattr(env, "num_envs") else {}  # another VecEnv
        fix = fix_of_instance(env, setting) if isinstance(env, gym.Env) else \
            Set(**{setting: "CartPole-v1"}, **several)
        name = PYTHON_NAMES.get(setting, setting)  # no command can give it
        raise ConfigError(f"{name} is {env!r}, but must be an id, a class or a callable", fix)
    if isinstance(constructor, EnvSpec):  # preprocessing sets what a game's id says
        given = {**({} if games else constructor.kwargs), **(kwargs or {})}
        if given.get("frameskip", 1) != 1 and (games.skip if games else images.frame_skip) > 1:
            raise _two_skips(name, given["frameskip"], games)
    return EnvFactory(constructor, name, limit, kwargs or {}, stack, games, images)


def fix_of_instance(env: gym.Env, setting: str) -> Fix:
    """The fix for an environment in place of its id: the id, or a function that makes it."""
    if all(hasattr(env.unwrapped, name) for name in ("device", "num_envs")):
        return "give the simulator without Gymnasium's wrappers: env.unwrapped"
    if env.spec is None:
        return f"give a function that makes it: lambda: {type(env.unwrapped).__name__}()"
    plain = getattr(gym.registry.get(env.spec.id), "kwargs", None) == {
        name: value for name, value in env.spec.kwargs.items() if name != "render_mode"}
    return Set(**{setting: env.spec.id}) if plain and not env.spec.additional_wrappers else \
        "give a function that makes it: lambda spec=env.spec: gymnasium.make(spec)"


def _two_skips(name: str, own: Any, games: atari.AtariOptions | None) -> ConfigError:
    """The error for an environment that repeats actions itself, beside frame_skip."""
    fix = "leave frameskip out of env_kwargs: frame_skip is that of preprocessing=atari" \
        if games else (Omit("frame_skip"), Set(env_kwargs={"frameskip": 1}))
    return ConfigError(f"frame_skip repeats an action, but {name} skips frames itself: its"
                       f" frameskip is {own}", fix)


def make_envs(factories: Sequence[Factory], first: int = 0, name: str = "") -> list[gym.Env]:
    """The environments of `factories`, numbered from `first`; in the worker `name` if it has one.

    If one cannot be made, those before it are closed. Raises EnvError for a factory that raises or
    returns the same object twice, ConfigError for wrong arguments, SpaceError for missing spaces.
    """
    envs: list[gym.Env] = []
    try:
        for e, factory in enumerate(factories, first):
            envs.append(_make_env(factory, f"environment {e} ({name}before its first episode)"))
            spaces_of(envs[-1])
        if len({id(env.unwrapped) for env in envs}) < len(envs):
            raise EnvError("the environment's factory returned the same object twice",
                           "make a new environment in every call: PPO(lambda: MyEnv())")
    except BaseException:
        faults.close_all(envs)
        raise
    return envs


def _make_env(factory: Factory, where: str) -> gym.Env:
    try:
        env = make_deterministic(factory())
        if env.metadata is None:  # a class may say so; Gymnasium's wrappers read a dict, as we do
            env.metadata = {}
        return env
    except (Error, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's constructor may raise anything
        explained = isinstance(factory, EnvFactory) and _settings_error(factory, error)
        raise explained or faults.env_error(
            where, "its constructor", error, "call its factory alone until that works") from error


def _settings_error(factory: EnvFactory, error: BaseException) -> ConfigError | None:
    """The ConfigError if the constructor failed for a setting or a package; None otherwise."""
    if isinstance(error, gym.error.DependencyNotInstalled):
        missing = str(error).partition(", ")[0]  # without Gymnasium's own advice
        return ConfigError(f"the environment needs a package that is not installed: {missing}",
                           env_hints.missing_package(f"{factory.constructor} {error}"))
    if isinstance(error, ImportError) and isinstance(factory.constructor, EnvSpec):
        newer = is_retired(factory.constructor) and env_hints.nearest_id(factory.name)
        return ConfigError(f"{factory.name} cannot be imported: {error}",
                           env_hints.missing_package(f"{error.name}", *(
                               [Set(env_name=newer)] if newer else [])))
    if isinstance(error, gym.error.NamespaceNotFound) and not \
            isinstance(factory.constructor, EnvSpec):
        return ConfigError(f"{factory.name} cannot make its environment: {error}", "import the"
                           " package that registers it inside the function, such as ale_py")
    if isinstance(error, TypeError) and (wrong := env_hints.wrong_keywords(
            factory.name, factory.constructor, factory.kwargs)):
        return wrong
    why = str(error).partition("\n")[0]
    if _is_known(factory.constructor) and factory.kwargs:  # of one's own the traceback is wanted
        return ConfigError(f"{factory.name} cannot be made with the env_kwargs"
                           f" {without_secrets(factory.kwargs)}: {why}", Omit("env_kwargs"))
    return None


def _is_known(constructor: EnvSpec | Callable) -> bool:
    """True for an id of Gymnasium, ale-py or MiniGrid."""
    return isinstance(constructor, EnvSpec) and f"{constructor.entry_point}".startswith(
        ("gymnasium.", "ale_py.", "minigrid."))


def import_callable(name: str, setting: str = "env_name") -> Callable | None:
    """The callable that `module:callable`, the value of a setting, names.

    None if it is no such name: it may be an id. Raises ConfigError if the module cannot be imported
    or has no such attribute, and for an attribute that cannot be called.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not attribute.replace(".", "").isidentifier():
        return None
    there = _import_module(name, setting)
    *outer, last = attribute.split(".")
    holder = functools.reduce(lambda x, part: getattr(x, part, None), outer, there)
    found = getattr(holder, last, None)
    if callable(found) or attribute in gym.registry:
        return found if callable(found) else None
    fix = f"give the name of a class or function of {module}"
    if found is None:
        names = getattr(holder, "__dict__", {})
        near = closest_few(last, (x for x in names if callable(getattr(holder, x))), 1)
        raise ConfigError(f"there is no {attribute!r} in {module}",
                          (*(Set(**{setting: f"{module}:{'.'.join((*outer, x))}"}) for x in near),
                           f"define it there, or {fix}"))
    raise ConfigError(f"{setting} is {name!r}, an instance of {type(found).__name__}, but must be a"
                      " class or a function", fix)


def _import_module(name: str, setting: str, module: str = ""):
    """`module`, by default that before the colon of `name`; ConfigError if it fails.

    `name` is the value of a setting.
    """
    if not module:
        add_folders(sys.path)
    module = module or name.partition(":")[0]
    if not module or module.startswith(".") or module.endswith(".py"):
        plain = Path(module).stem.lstrip(".") or "my_module"
        raise ConfigError(f"{setting} is {name!r}, but {module!r} is no module's name, such as"
                          " package.module", Within("in the folder of that file: {}", Set(
                              **{setting: f"{plain}:{name.rpartition(':')[2] or 'MyClass'}"})))
    try:
        return importlib.import_module(module)
    except Exception as error:  # a user's module may raise anything
        known = name.rpartition(":")[2]
        if isinstance(error, ModuleNotFoundError) and known in gym.registry:  # gym:CartPole-v1
            raise ConfigError(f"{setting} is {name!r}, but there is no package {module!r}, and the"
                              " id is known without one", Set(**{setting: known})) from error
        raise _import_error(f"{setting} is {name!r}: cannot import {module!r}", module, error
                            ) from error


def _import_error(what: str, module: str, error: Exception) -> ConfigError:
    """The error for a module that is not there, needs one that is not, or raises `error`."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing and f"{module}.".startswith(f"{missing}."):
        return ConfigError(f"{what} ({error})", env_hints.missing_package(
            module, f"run it in the folder of {module}.py, or install {module}"))
    if missing:
        return ConfigError(f"{what}, which imports {missing!r}, and that is not installed",
                           env_hints.missing_package(missing, f"pip install {missing}"))
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = "" if isinstance(error, SyntaxError) else \
        f" in {os.path.basename(place.filename)}, line {place.lineno}"
    return ConfigError(f"{what}: {type(error).__name__}{where}: {error}", "correct it there")


def _find_spec(name: str, setting: str) -> EnvSpec:
    """The EnvSpec of an id or `package:Id-v0`; ConfigError if it is not registered."""
    if ":" in name:
        _import_module(name, setting)
    elif name not in gym.registry and (package := env_hints.registering_package(name)):
        _import_module(name, setting, package)
    try:
        return gym.spec(name if name in gym.registry else full_game_id(name.rpartition(":")[2]))
    except gym.error.Error as error:
        near = env_hints.nearest_id(name)
        where = f"{setting} is {name!r}: " if setting == "eval_env" else ""
        of_ram = "-ram" in name and env_hints.is_atari_id(name)  # it had ids of its own
        ram = dict(preset="none", model="mlp", env_kwargs={"obs_type": "ram"}) if of_ram else {}
        if near is None and env_hints.is_game_without_ale(name):
            raise ConfigError(f"{where}{name!r} is a game, and ale-py is not installed",
                              env_hints.PACKAGES["ale_py"]) from error
        raise ConfigError(f"{where}there is no environment {name!r}",
                          Set(**{setting: near}, **ram) if near else
                          f"{program()} envs lists them; " + (
                              f"a class or function stands after {name.partition(':')[0]}:"
                              if ":" in name else "for one of your own give its module, too:"
                              " module:MyEnv or package:Id-v0")) from error
