"""From an id or a callable to environments: factories that can travel, and their checks."""

import copy
import difflib
import importlib
import logging
import sys
from typing import Any, Callable, Sequence

import gymnasium as gym
from gymnasium.vector import VectorEnv
from gymnasium.wrappers.common import (
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    TimeLimit,
)

from . import atari, contract, masks, remedies
from .config import Config
from .errors import ConfigError, EnvError, Error, SpaceError, spelt
from .measure import step_seconds
from .spaces import MASK, has_mask

Factory = Callable[[], gym.Env]
NEVER = sys.maxsize  # a time limit nobody reaches


# Wrappers of Gymnasium's that are kept, and what does the same without them.
TWINS = {"NormalizeObservation": "norm_obs (on by default)",
         "NormalizeReward": "norm_rewards (on by default)",
         "ClipAction": "actions are clipped to their space anyway",
         "RescaleAction": "a policy's actions need no other scale than the space's"}

log = logging.getLogger("fastppo")


class Dressing:
    """What is put around every environment that is made: preprocessing, stacked frames, masks."""

    def __init__(self, limit: int | None, kwargs: dict, stack: int, games: atari.Games | None):
        self.limit, self.kwargs, self.stack, self.games = limit, kwargs, stack, games
        self.masked = False

    def dressed(self, env: gym.Env) -> gym.Env:
        """`env` as the trainer sees it."""
        games = self.games
        env = env if games is None else atari.preprocessed(env, self.limit, games.lives)
        env = stacked(env, self.stack)
        env = atari.Whole(env) if games and games.lives and games.whole else env
        return masks.wrapped(env) if self.masked else env

    def to_play(self) -> "Dressing":
        """The same for evaluation, where the lives of a game are one episode."""
        twin = copy.copy(self)
        twin.games = self.games and self.games._replace(whole=True)
        return twin


class SpecFactory(Dressing):
    """Makes the environment of a resolved EnvSpec; an id is looked up once, in the main process."""

    def __init__(self, spec: gym.envs.registration.EnvSpec, limit: int | None, kwargs: dict,
                 stack: int = 1, games: atari.Games | None = None):
        super().__init__(limit, kwargs, stack, games)
        self.spec = spec

    def __call__(self) -> gym.Env:
        asked = {"max_episode_steps": self.limit, **self.kwargs} if self.games is None \
            else atari.arguments(self.spec, self.limit, self.kwargs)
        # Gymnasium's passive checker is our own check's twin, and costs on every step.
        return self.dressed(gym.make(self.spec, disable_env_checker=True, **asked))


class CallFactory(Dressing):
    """Makes an environment by calling the user's class or function, with a time limit if asked."""

    def __init__(self, make: Callable[..., gym.Env], limit: int | None, kwargs: dict,
                 name: str = "", stack: int = 1, games: atari.Games | None = None):
        super().__init__(limit, kwargs, stack, games)
        self.make, self.name = make, name or _name(make)

    def __call__(self) -> gym.Env:
        env = self.make(**self.kwargs)
        if not isinstance(env, gym.Env):
            raise ConfigError(f"{self.name} did not give a gymnasium.Env, but"
                              f" {type(env).__name__}", remedies.CALLABLE)
        limited = self.limit and self.games is None
        return self.dressed(gym.wrappers.TimeLimit(env, self.limit) if limited else env)


def stacked(env: gym.Env, count: int) -> gym.Env:
    """`env`, of which the last `count` observations are seen; an episode's first one is repeated.

    Raises ConfigError where an action mask would be stacked too.
    """
    if count == 1:
        return env
    if has_mask(env.observation_space):
        raise ConfigError(f"--frame_stack={count} would stack the observation's {MASK!r}, too, but"
                          " only the last one says what is legal", "leave --frame_stack out, and"
                          " stack what is to be seen in the environment")
    return gym.wrappers.FrameStackObservation(env, count)


class FreshWorld(gym.Wrapper):
    """BipedalWalker in a new Box2D world at every reset.

    Gymnasium keeps the world between episodes, and its contact solver's memory with it: then an
    episode is no function of its seed and actions (observations differ from about step 90).
    """

    def reset(self, **kwargs):
        """Like the environment's own reset, in a world without a past."""
        import Box2D
        walker = self.unwrapped
        walker._destroy()  # the old world's bodies, which the walker would else look for in the new
        walker.world = Box2D.b2World()
        return self.env.reset(**kwargs)


class Source:
    """The environments a trainer was given: their factories, their spaces, and the Config for them.

    `env` is an id, class, callable, list of callables, or a VectorEnv: then `vector` is that, and
    there are no factories. Else one environment is made here, to read its spaces and metadata;
    and, for num_workers="auto", to measure the seconds that a step of it takes, `step_seconds`.
    If `showing`, action masks become a part of the observations, here and in every factory.
    """

    step_seconds, masked = 0.0, False

    def __init__(self, env: Any, config: Config, showing: bool = True):
        self.config = config.replace(**decided(env))
        if isinstance(env, VectorEnv):
            self.factories, self.metadata = [], env.metadata
            self._take(env)
            return
        several, env = isinstance(env, (list, tuple)), config.env_name if env is None else env
        self.vector = None
        self.factories = ([self._factory(one) for one in env] if several
                          else [self._factory(env)] * config.num_envs)
        probes = build(self.factories if several else self.factories[:1])
        self.obs_space, self.act_space = _spaces(probes)
        self.metadata = dict(probes[0].metadata)
        if showing:
            self._mask(probes)
        if self.config.num_workers == "auto":
            self.step_seconds = step_seconds(masks.wrapped(probes[0]) if self.masked else probes[0])
        note_twins(probes[0])
        contract.close(probes)

    def to_play(self, env: Any = None) -> list[Factory]:
        """The factories of environments to evaluate in: of `env`, `eval_env`, or the run's own."""
        env = self.config.eval_env if env is None else env
        if env is not None:
            with spelt("evaluate(env={})"):
                made = factory(env, self.config.max_episode_steps, stack=self.config.frame_stack,
                               games=self._games()).to_play()
            made.masked = self.masked
            return [made] * self.config.num_envs
        if not self.factories:
            raise ConfigError("evaluation plays in environments of its own, and a VectorEnv cannot"
                              " be copied", 'evaluate(env="CartPole-v1"), with an id or a callable')
        return [make.to_play() for make in self.factories]

    def close(self) -> None:
        """Nothing: a VectorEnv that was handed in is closed by whoever made it."""

    def _take(self, env: VectorEnv) -> None:
        """Have `env`, and the masks that it has, as the vector environment."""
        spaces_of(env, "single_")
        self.vector = masks.vector_wrapped(env)
        self.obs_space, self.act_space = spaces_of(self.vector, "single_")
        self.masked = self.vector is not env

    def _mask(self, probes: Sequence[gym.Env]) -> None:
        """Tell every factory to show the masks that environments have elsewhere."""
        if masks.shown(probes):
            self.masked, self.obs_space = True, masks.beside(self.obs_space, self.act_space)
            for make in self.factories:
                make.masked = True

    def _factory(self, env: Any) -> Factory:
        return factory(env, self.config.max_episode_steps, self.config.env_kwargs,
                       self.config.frame_stack, self._games())

    def _games(self) -> atari.Games | None:
        return atari.games(self.config.preprocessing, self.config.end_on_life_loss)


def _spaces(envs: Sequence[gym.Env]) -> tuple[gym.Space, gym.Space]:
    """The two spaces that all of `envs` have; SpaceError for one that has others."""
    wanted, *others = map(spaces_of, envs)
    for i, found in enumerate(others, 1):
        if found != wanted:
            raise SpaceError(f"environment {i} has the spaces {found}, the first one"
                             f" {wanted}", "give environments with the same spaces")
    return wanted


def spaces_of(env: Any, prefix: str = "") -> tuple[gym.Space, gym.Space]:
    """The two spaces of an environment; SpaceError for what its constructor has not set."""
    names, found = (f"{prefix}observation_space", f"{prefix}action_space"), []
    for name in names:
        try:
            found.append(getattr(env, name))
        except Exception:  # not set, or a property of the user's that fails
            found.append(None)
    missing = [name for name, space in zip(names, found) if not isinstance(space, gym.Space)]
    if missing:
        raise SpaceError(f"{_name(type(env.unwrapped))} has no {' and no '.join(missing)} of"
                         " gymnasium.spaces when its constructor returns",
                         remedies.spaces(missing))
    return tuple(found)


def decided(env: Any) -> dict[str, Any]:
    """The settings that `env` decides by itself: a list its length, a VectorEnv how it is made."""
    if isinstance(env, VectorEnv):
        return {"num_envs": env.num_envs, "num_workers": 0, "vec": "native",
                "max_episode_steps": None, "env_kwargs": None, "frame_stack": 1,
                "preprocessing": "none", "end_on_life_loss": False}
    if not isinstance(env, (list, tuple)):
        return {}
    if not env:
        raise ConfigError("the list of environments is empty", "PPO([lambda: MyEnv(), ...])")
    return {"num_envs": len(env)}


def check_agreement(env: Any, asked: dict[str, Any]) -> None:
    """Raise ConfigError for the first setting in `asked` that `env` has decided otherwise."""
    whose = "a VectorEnv that is made" if isinstance(env, VectorEnv) else "a list of callables"
    for name, value in decided(env).items():
        if asked.get(name) not in (None, "auto", value):
            raise ConfigError(f"{name} is {asked[name]!r}, but {whose} has decided it: {value!r}",
                              f"leave {name} out")


def factory(env: Any, limit: int | None = None, kwargs: dict | None = None, stack: int = 1,
            games: atari.Games | None = None) -> Factory:
    """The factory of a Gymnasium id, `package:Id-v0`, `module:callable`, class or callable.

    `limit` is the length in steps at which episodes are truncated (none: the environment's own);
    `stack` observations are seen together; `games` of Atari are preprocessed.
    Raises ConfigError for an id nobody registered, naming the nearest one.
    """
    name = env if isinstance(env, str) else ""
    if name:
        env = called(name)
        if env is None:
            return SpecFactory(_spec(name), limit, kwargs or {}, stack, games)
    if not callable(env):
        raise ConfigError(f"an environment is an id, a class or a callable, not {env!r}",
                          'PPO("CartPole-v1") or PPO(lambda: MyEnv())')
    return CallFactory(env, limit, kwargs or {}, name, stack, games)


def build(factories: Sequence[Factory], first: int = 0, name: str = "") -> list[gym.Env]:
    """The environments of `factories`, the first one being number `first` of worker `name`.

    Raises EnvError for a factory that raises, and if two environments are one and the same object;
    SpaceError for an environment without spaces.
    """
    envs = [_made(make, f"environment {first + i} ({name}before its first episode)")
            for i, make in enumerate(factories)]
    if len({id(env.unwrapped) for env in envs}) < len(envs):
        raise EnvError("the environment's factory returned the same object twice",
                       "make a new environment at every call: PPO(lambda: MyEnv())")
    return envs


def _made(make: Factory, where: str) -> gym.Env:
    try:
        env = prepared(make())
        spaces_of(env)
        return env
    except (Error, KeyboardInterrupt):
        raise
    except gym.error.DependencyNotInstalled as error:
        raise ConfigError(f"the environment needs a package that is not installed: {error}",
                          remedies.dependency(f"{_entry(make)} {error}")) from error
    except BaseException as error:  # a user's constructor may raise anything
        if why := _misfit(make, error):
            raise ConfigError(*why) from error
        raise contract.fault(where, "its constructor", error,
                             "call its factory alone until that works") from error


def _misfit(make: Factory, error: BaseException) -> tuple[str, str] | None:
    """(what, fix) where not the constructor is at fault, but its arguments or the id's version."""
    if not isinstance(make, SpecFactory):
        return _uncalled(make, error) if isinstance(make, CallFactory) else None
    spec = make.spec
    if isinstance(error, TypeError):
        entry = spec.entry_point
        entry = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
        return remedies.keyword(spec.id, entry, make.kwargs, error)
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    later = [one for one in gym.registry.values() if (one.namespace, one.name) == (
        spec.namespace, spec.name) and (one.version or 0) > (spec.version or 0)]
    if missing and not (later and str(spec.entry_point).startswith(missing)):
        return (f"{spec.id} needs the module {missing!r}, which is not installed",
                remedies.dependency(missing))
    if not isinstance(error, ImportError) or not later:
        return None
    newest = max(later, key=lambda one: one.version)
    return f"{spec.id} cannot be imported any more: {error}", f"--env_name={newest.id}"


def _uncalled(make: CallFactory, error: BaseException) -> tuple[str, str] | None:
    """(what, fix) for a callable that cannot be called so; None for one that failed inside."""
    why = isinstance(error, TypeError) and remedies.keyword(
        make.name, make.make, make.kwargs, error)
    inside = error.__traceback__.tb_next.tb_next  # beyond _made and CallFactory.__call__
    return why or (None if inside or not isinstance(error, Exception) else (
        f"{make.name} did not give a gymnasium.Env: {error}", remedies.CALLABLE))


def _name(made: Any) -> str:
    """A callable as `module:name`, or as its name where it stands in the script."""
    home, name = getattr(made, "__module__", None), getattr(made, "__qualname__", None)
    name = name or type(made).__qualname__  # a functools.partial has none of its own
    return f"{home}:{name}" if home not in (None, "__main__") else name


def _entry(make: Factory) -> Any:
    return make.spec.entry_point if isinstance(make, SpecFactory) else make


def prepared(env: gym.Env) -> gym.Env:
    """`env` as episodes need it: a function of seed and actions."""
    kind = type(env.unwrapped)
    walker = kind.__module__ == "gymnasium.envs.box2d.bipedal_walker"
    return FreshWorld(env) if walker else env


# Whose `step` does what a Serial does itself; FreshWorld's does nothing.
REDUNDANT = (TimeLimit, OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, FreshWorld)


def shortcut(env: gym.Env) -> tuple[Callable, int]:
    """(step, limit): a `step` that does what env's does, if one checks, counts and cuts oneself.

    It is that of the first wrapper, from outside, that does anything else; `limit` is the length in
    steps at which those passed by truncate. To be asked for anew in every episode. `env` stays as
    it is: its `reset` and attributes are all there.
    """
    if isinstance(env, masks.Masked):
        step, limit = shortcut(env.env)
        return env.around(step), limit
    limit = NEVER
    while type(env) in REDUNDANT and "step" not in vars(env):
        if type(env) is TimeLimit:
            limit = min(limit, env._max_episode_steps)
        env = env.env
    return env.step, limit


def note_twins(env: gym.Env) -> None:
    """Say, in one line, which wrappers around `env` do what a Config asks for without them."""
    found = []
    while isinstance(env, gym.Wrapper):
        if type(env).__module__.startswith("gymnasium.wrappers."):
            found += [type(env).__name__] if type(env).__name__ in TWINS else []
        env = env.env
    if found:
        log.warning("the environment is wrapped in %s, which stays; fastppo does the same itself,"
                    " faster, and twice is not better: %s", ", ".join(found),
                    ", ".join(TWINS[name] for name in found))


def called(name: str, setting: str = "env_name") -> Callable | None:
    """What `module:callable` names, the value of a setting; None if it names nothing to call.

    That may be an environment's id. Raises ConfigError for a module that cannot be imported, and
    for what is not in it.
    """
    module, colon, attribute = name.partition(":")
    if not colon or not attribute.replace(".", "").isidentifier():
        return None
    found = _imported(module, name, setting)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if found is None and attribute not in gym.registry:
        home, network = vars(sys.modules[module]), setting == "model"
        near = difflib.get_close_matches(attribute, [
            name for name, one in home.items()
            if callable(one) and hasattr(one, "forward") == network], 1, 0.4)
        raise ConfigError(f"there is no {attribute!r} in {module}",
                          f"--{setting}={module}:{near[0]}" if near else f"define it in {module}")
    return found if callable(found) else None


def _imported(module: str, name: str, setting: str = "env_name"):
    if fix := remedies.module(name, setting):
        raise ConfigError(f"{setting} {name!r}: {module!r} is a file, not a module", fix)
    if not module or module.startswith("."):
        raise ConfigError(f"{setting} is {name!r}, in which no module is before the colon",
                          remedies.unnamed(name, setting))
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{setting} {name!r}: cannot import {module!r} ({error})",
                          remedies.dependency(module)) from error


def _spec(name: str) -> gym.envs.registration.EnvSpec:
    module, colon, _ = name.partition(":")
    if colon:
        _imported(module, name)
    elif remedies.atari(name) and name not in gym.registry:
        _imported("ale_py", name)  # which registers them
    try:
        return gym.spec(name.partition(":")[2] if colon else name)
    except gym.error.Error as error:
        space = name.rpartition("/")[0]  # the nearest name is one of the same namespace
        near = difflib.get_close_matches(
            name, [known for known in gym.registry if known.rpartition("/")[0] == space], 1, 0.4)
        raise ConfigError(f"there is no environment {name!r}",
                          remedies.in_module(name) or (
                              f"--env_name={near[0]}" if near else
                              "install and import its package: --env_name=package:Id-v0")
                          ) from error
