"""Makes environments from an id, class or callable."""

import dataclasses
import functools
import importlib
import importlib.util
import logging
import math
import sys
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Iterator, Mapping, Sequence

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from fastppo.config import default_of, having
from fastppo.envs import atari, faults, masks
from fastppo.envs.families import (
    FAMILIES_KNOWN,
    envpool_ids,
    family_of,
    family_of_id,
    family_with,
    is_installed,
    register,
)
from fastppo.envs.images import UNCHANGED, ImageOptions, ImagePreprocessing
from fastppo.envs.wrappers import make_deterministic, read_mission, stack_frames
from fastppo.errors import (
    PYTHON_NAMES,
    ConfigError,
    EnvError,
    Error,
    Omit,
    Set,
    SpaceError,
    exception_text,
    program,
)
from fastppo.machine.child_process import add_folders, without_secrets
from fastppo.settings.presets import full_game_id
from fastppo.settings.values import image_size

log = logging.getLogger("fastppo")
Factory = Callable[[], gym.Env]
WRAPPING = having("wrapper")  # the settings of the wrappers around an environment
# Entry points of ids, and of the classes that give the same answers in less time.
FASTER = {"gymnasium.envs.box2d.car_racing:CarRacing": "fastppo.envs.car_racing:CarRacing"}


@contextmanager
def mujoco_warnings_once(used: bool) -> Iterator[None]:
    """Logs each of MuJoCo's warnings in the block once in this process, in place of printing all.

    Without this every environment prints them, and they go to a file MUJOCO_LOG.TXT. `used`: the
    block imports mujoco if it is installed; otherwise it must have been imported before.
    """
    if used and importlib.util.find_spec("mujoco"):
        importlib.import_module("mujoco")
    mujoco = sys.modules.get("mujoco")
    if not hasattr(mujoco, "set_mju_user_warning"):
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(_log_once)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


@functools.cache
def _log_once(text: str) -> None:
    log.warning("MuJoCo: %s", text)


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
    agent_index: bool = True  # of games, see Game; shows_state, too
    shows_state: bool = False

    def __call__(self) -> gym.Env:
        games, images, spec = self.games, self.images, isinstance(self.constructor, EnvSpec)
        entry = f"{self.constructor.entry_point}" if spec else ""
        if "ale_py" in entry or sys.modules.get("ale_py"):  # a function of the user's may make it
            from ale_py import ALEInterface, LoggerMode
            ALEInterface.setLoggerMode(LoggerMode.Error)  # it would print its version
        mujoco = "mujoco" in entry or sys.modules.get("mujoco")
        with mujoco_warnings_once("mujoco" in entry) if mujoco else nullcontext():
            env = self._from_spec() if spec else self._from_callable()
        if hasattr(env.unwrapped, "seats") and not games:
            return self._game(env.unwrapped)
        if (games or images.frame_skip > 1) and (skipped := atari.own_skips(env)) != 1:
            raise ConfigError(f"{'preprocessing=atari' if games else 'frame_skip'} repeats an"
                              f" action, but {self.name} skips {skipped} frames itself",
                              "make it with a frameskip of 1" if games else Omit("frame_skip"))
        if isinstance(getattr(env, "observation_space", None), gym.spaces.Dict):
            env = read_mission(env)
        if games:
            env = atari.preprocess_atari(env, self.limit, games)
        else:
            env = env if images == UNCHANGED else ImagePreprocessing(env, images)
            env = gym.wrappers.TimeLimit(env, self.limit) if self.limit else env
        env = stack_frames(env, self.stack) if self.stack > 1 else env
        if games and games.lives and games.whole:
            env = atari.WholeGame(env)
        return masks.wrap_mask(env) if self.masked else env

    def for_evaluation(self) -> "EnvFactory":
        """The same factory, but all lives of an Atari game are one episode."""
        return dataclasses.replace(self, games=self.games and self.games._replace(whole=True))

    def _game(self, game: Any) -> gym.Env:
        """A Game as the settings ask for it."""
        from fastppo.envs.games import AgentView, Alone, GameOfViews, TurnGame
        images = self.images
        if self.stack > 1 or images != UNCHANGED:
            if isinstance(game, TurnGame):
                raise ConfigError(f"{self.name} is a game in turns, and has no wrappers of images"
                                  " and stacks", "wrap the AEC in your own function")
            view = dataclasses.replace(self, constructor=AgentView, limit=None,
                                       images=images._replace(frame_skip=1))
            game.env = GameOfViews(game.env, images.frame_skip, lambda space: make_deterministic(
                dataclasses.replace(view, kwargs={"space": space})()))
        game = type(game)(game.env, self.agent_index, self.shows_state, self.limit or math.inf)
        return game if len(game.agents) > 1 else Alone(game)

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
            if hasattr(env, "possible_agents"):
                from fastppo.envs.games import as_game
                return as_game(env)
            raise ConfigError(f"{self.name} returned {type(env).__name__}, not a gymnasium.Env",
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

    One that is missing has its default.
    """
    settings = {name: default_of(name) for name in WRAPPING} | dict(settings)
    skip, size = settings["frame_skip"], settings["resize"]
    if settings["preprocessing"] == "atari":
        games, images = atari.AtariOptions(
            settings["end_on_life_loss"], False, settings["noop_max"], settings["fire_on_reset"],
            skip or atari.SKIP, image_size(size) or atari.SIZE), UNCHANGED
    else:
        games, images = None, ImageOptions(skip or 1, settings["grayscale"], size)
    return {"stack": settings["frame_stack"], "games": games, "images": images}


def make_factory(env: Any, limit: int | None = None, kwargs: dict | None = None, stack: int = 1,
                 games: atari.AtariOptions | None = None, images: ImageOptions = UNCHANGED,
                 agent_index: bool = True, shows_state: bool = False, setting: str = "env_name"
                 ) -> EnvFactory:
    """The factory of a Gymnasium id, `package:Id-v0`, `module:callable`, class or callable.

    Episodes are truncated after `limit` steps (None: the environment's own limit); for the next
    three see `wrapping`, for the next two Game. `setting` is the name under which `env` was given.
    Raises ConfigError for an id that is not registered, with the nearest one.
    """
    if isinstance(env, str):
        found = import_callable(env, setting) if ":" in env else None
        name, constructor = env, found or _find_spec(env, setting)
    elif callable(env):
        name, constructor = getattr(env, "__qualname__", type(env).__name__), env
    else:
        name = PYTHON_NAMES.get(setting, setting)  # no command can give it
        raise ConfigError(f"{name} is {env!r}, but must be an id, a class or a callable that makes"
                          " an environment, or a simulator without wrappers")
    return EnvFactory(constructor, name, limit, kwargs or {}, stack, games, images,
                      agent_index=agent_index, shows_state=shows_state)


def make_envs(factories: Sequence[Factory], first: int = 0, name: str = "") -> list[gym.Env]:
    """The environments of `factories`, numbered from `first`; in the worker `name` if it has one.

    Of a game they are its seats.

    If one cannot be made, those before it are closed. Raises EnvError for a factory that raises or
    returns the same object twice, ConfigError for wrong arguments, SpaceError for missing spaces.
    """
    envs: list[gym.Env] = []
    try:
        for e, factory in enumerate(factories, first):
            try:
                made = factory()
                envs += getattr(made, "seats", None) or [make_deterministic(made)]
            except (Error, KeyboardInterrupt):
                raise
            except BaseException as error:  # a user's constructor may raise anything
                raise isinstance(factory, EnvFactory) and _settings_error(factory, error) or \
                    faults.env_error(f"environment {e} ({name}before its first episode)",
                                     "its constructor", error,
                                     "make it alone, without fastppo, until that works") from error
            spaces_of(envs[-1])
        if len({id(env.unwrapped) for env in envs}) < len(envs):
            raise EnvError("the environment's factory returned the same object twice",
                           "make a new environment in every call: PPO(lambda: MyEnv())")
    except BaseException:
        faults.close_all(envs)
        raise
    return envs


def _settings_error(factory: EnvFactory, error: BaseException) -> ConfigError | None:
    """The ConfigError for wrong arguments, and for a package that is missing; None otherwise."""
    family = family_of(factory.constructor) if isinstance(factory.constructor, EnvSpec) else None
    if isinstance(error, gym.error.DependencyNotInstalled) or \
            family and isinstance(error, ImportError):
        return ConfigError(f"{factory.name} cannot be made: {error}",
                           family.fix if family and not is_installed(family) else "")
    refused = isinstance(error, TypeError) and not faults.in_user_code(error)  # by the call itself
    if refused or family in FAMILIES_KNOWN and factory.kwargs:
        # Gymnasium's own TypeError repeats the arguments, secrets too.
        why = refused and error.__context__ or error
        return ConfigError(f"{factory.name} cannot be made with the env_kwargs"
                           f" {without_secrets(factory.kwargs)}: {why}",
                           Omit("env_kwargs") if family in FAMILIES_KNOWN and factory.kwargs else
                           "give what it takes by env_kwargs, or a function without arguments")
    return None


def import_callable(name: str, setting: str = "env_name") -> Callable | None:
    """The callable that `module:callable`, the value of a setting, names.

    None if it is no such name: it may be an id. Raises ConfigError if the module cannot be imported
    or has no such attribute, and for an attribute that cannot be called.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not attribute.replace(".", "").isidentifier():
        return None
    found = functools.reduce(lambda x, part: getattr(x, part, None), attribute.split("."),
                             _imported(f"{setting} is {name!r}", module))
    if callable(found):
        return found
    if attribute in gym.registry:
        return None
    raise ConfigError(f"{setting} is {name!r}, but there is no {attribute!r} in {module} that is a"
                      " class or a function", "define it there, or give the name of another one")


def _imported(what: str, module: str, load: Callable = importlib.import_module) -> Any:
    """The result of `load(module)`; ConfigError if an import fails, `what` it is needed for."""
    if not family_with(module.partition(".")[0]):
        add_folders(sys.path)
    try:
        return load(module)
    except ModuleNotFoundError as error:
        known = family_with(error.name) or family_with(module)
        fix = known.fix if known else f"run it in the folder of {module}.py, or install {module}" \
            if error.name == module and "." not in module else ""
        raise ConfigError(f"{what}: cannot import {module!r} ({error})", fix) from error
    except Exception as error:  # it may raise anything
        error.__traceback__ = error.__traceback__.tb_next  # without this function
        raise ConfigError(f"{what}, but importing {module!r} failed: {exception_text(error)}",
                          faults.known_fix(error)) from error


def _find_spec(name: str, setting: str) -> EnvSpec:
    """The EnvSpec of an id or `package:Id-v0`; ConfigError if it is not registered."""
    module, colon, env_id = name.partition(":") if ":" in name else ("", "", name)
    env_id, what, family = full_game_id(env_id), f"{setting} is {name!r}", family_of_id(env_id)
    if colon:
        _imported(what, module)
    if family and env_id not in gym.registry:
        _imported(what, family.package, lambda _: register(family))
    try:
        return gym.spec(env_id)
    except gym.error.Error as error:
        what = f"{what}: " * (setting == "eval_env") + f"there is no environment {name!r}"
        fix = "" if module else Set(vec="envpool") if env_id in envpool_ids() else (
            f"{program()} envs lists them; for your own give its module, too: module:MyEnv or"
            " package:Id-v0")
        raise ConfigError(f"{what}: {error}", fix) from error
