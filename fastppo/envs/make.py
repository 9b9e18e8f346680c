"""Makes environments from an id, class or callable."""

import copy
import difflib
import importlib
import logging
import sys
from typing import Any, Callable, Sequence

import gymnasium as gym

from fastppo.envs import atari, env_hints, faults, masks
from fastppo.envs.wrappers import make_deterministic, stack_frames
from fastppo.errors import ConfigError, EnvError, Error, SpaceError

Factory = Callable[[], gym.Env]

log = logging.getLogger("fastppo")


class EnvFactory:
    """What is put around every environment that is made: preprocessing, stacked frames, masks."""

    def __init__(self, limit: int | None, kwargs: dict, stack: int, games: atari.AtariOptions | None):
        self.limit, self.kwargs, self.stack, self.games = limit, kwargs, stack, games
        self.masked = False

    def dressed(self, env: gym.Env) -> gym.Env:
        """`env` as the trainer sees it."""
        games = self.games
        env = env if games is None else atari.preprocess_atari(env, self.limit, games.lives)
        env = stack_frames(env, self.stack)
        env = atari.WholeGame(env) if games and games.lives and games.whole else env
        return masks.wrap_mask(env) if self.masked else env

    def to_play(self) -> "EnvFactory":
        """The same for evaluation, where the lives of a game are one episode."""
        twin = copy.copy(self)
        twin.games = self.games and self.games._replace(whole=True)
        return twin


class SpecFactory(EnvFactory):
    """Makes the environment of a resolved EnvSpec; an id is looked up once, in the main process."""

    def __init__(self, spec: gym.envs.registration.EnvSpec, limit: int | None, kwargs: dict,
                 stack: int = 1, games: atari.AtariOptions | None = None):
        super().__init__(limit, kwargs, stack, games)
        self.spec = spec

    def __call__(self) -> gym.Env:
        asked = {"max_episode_steps": self.limit, **self.kwargs} if self.games is None \
            else atari.atari_arguments(self.spec, self.limit, self.kwargs)
        # Gymnasium's passive checker is our own check's twin, and costs on every step.
        return self.dressed(gym.make(self.spec, disable_env_checker=True, **asked))


class CallFactory(EnvFactory):
    """Makes an environment by calling the user's class or function, with a time limit if asked."""

    def __init__(self, make: Callable[..., gym.Env], limit: int | None, kwargs: dict,
                 name: str = "", stack: int = 1, games: atari.AtariOptions | None = None):
        super().__init__(limit, kwargs, stack, games)
        self.make, self.name = make, name or _name(make)

    def __call__(self) -> gym.Env:
        env = self.make(**self.kwargs)
        if not isinstance(env, gym.Env):
            raise ConfigError(f"{self.name} did not give a gymnasium.Env, but"
                              f" {type(env).__name__}", env_hints.CALLABLE)
        limited = self.limit and self.games is None
        return self.dressed(gym.wrappers.TimeLimit(env, self.limit) if limited else env)


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
                         env_hints.spaces(missing))
    return tuple(found)


def make_factory(env: Any, limit: int | None = None, kwargs: dict | None = None, stack: int = 1,
            games: atari.AtariOptions | None = None) -> Factory:
    """The factory of a Gymnasium id, `package:Id-v0`, `module:callable`, class or callable.

    `limit` is the length in steps at which episodes are truncated (none: the environment's own);
    `stack` observations are seen together; `games` of Atari are preprocessed.
    Raises ConfigError for an id nobody registered, naming the nearest one.
    """
    name = env if isinstance(env, str) else ""
    if name:
        env = import_callable(name)
        if env is None:
            return SpecFactory(_spec(name), limit, kwargs or {}, stack, games)
    if not callable(env):
        raise ConfigError(f"an environment is an id, a class or a callable, not {env!r}",
                          'PPO("CartPole-v1") or PPO(lambda: MyEnv())')
    return CallFactory(env, limit, kwargs or {}, name, stack, games)


def make_envs(factories: Sequence[Factory], first: int = 0, name: str = "") -> list[gym.Env]:
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
        env = make_deterministic(make())
        spaces_of(env)
        return env
    except (Error, KeyboardInterrupt):
        raise
    except gym.error.DependencyNotInstalled as error:
        raise ConfigError(f"the environment needs a package that is not installed: {error}",
                          env_hints.dependency(f"{_entry(make)} {error}")) from error
    except BaseException as error:  # a user's constructor may raise anything
        if why := _misfit(make, error):
            raise ConfigError(*why) from error
        raise faults.env_error(where, "its constructor", error,
                             "call its factory alone until that works") from error


def _misfit(make: Factory, error: BaseException) -> tuple[str, str] | None:
    """(what, fix) where not the constructor is at fault, but its arguments or the id's version."""
    if not isinstance(make, SpecFactory):
        return _uncalled(make, error) if isinstance(make, CallFactory) else None
    spec = make.spec
    if isinstance(error, TypeError):
        entry = spec.entry_point
        entry = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
        return env_hints.keyword(spec.id, entry, make.kwargs, error)
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    later = [one for one in gym.registry.values() if (one.namespace, one.name) == (
        spec.namespace, spec.name) and (one.version or 0) > (spec.version or 0)]
    if missing and not (later and str(spec.entry_point).startswith(missing)):
        return (f"{spec.id} needs the module {missing!r}, which is not installed",
                env_hints.dependency(missing))
    if not isinstance(error, ImportError) or not later:
        return None
    newest = max(later, key=lambda one: one.version)
    return f"{spec.id} cannot be imported any more: {error}", f"--env_name={newest.id}"


def _uncalled(make: CallFactory, error: BaseException) -> tuple[str, str] | None:
    """(what, fix) for a callable that cannot be called so; None for one that failed inside."""
    why = isinstance(error, TypeError) and env_hints.keyword(
        make.name, make.make, make.kwargs, error)
    inside = error.__traceback__.tb_next.tb_next  # beyond _made and CallFactory.__call__
    return why or (None if inside or not isinstance(error, Exception) else (
        f"{make.name} did not give a gymnasium.Env: {error}", env_hints.CALLABLE))


def _name(made: Any) -> str:
    """A callable as `module:name`, or as its name where it stands in the script."""
    home, name = getattr(made, "__module__", None), getattr(made, "__qualname__", None)
    name = name or type(made).__qualname__  # a functools.partial has none of its own
    return f"{home}:{name}" if home not in (None, "__main__") else name


def _entry(make: Factory) -> Any:
    return make.spec.entry_point if isinstance(make, SpecFactory) else make


def import_callable(name: str, setting: str = "env_name") -> Callable | None:
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
    if fix := env_hints.module(name, setting):
        raise ConfigError(f"{setting} {name!r}: {module!r} is a file, not a module", fix)
    if not module or module.startswith("."):
        raise ConfigError(f"{setting} is {name!r}, in which no module is before the colon",
                          env_hints.unnamed(name, setting))
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{setting} {name!r}: cannot import {module!r} ({error})",
                          env_hints.dependency(module)) from error


def _spec(name: str) -> gym.envs.registration.EnvSpec:
    module, colon, _ = name.partition(":")
    if colon:
        _imported(module, name)
    elif env_hints.atari(name) and name not in gym.registry:
        _imported("ale_py", name)  # which registers them
    try:
        return gym.spec(name.partition(":")[2] if colon else name)
    except gym.error.Error as error:
        space = name.rpartition("/")[0]  # the nearest name is one of the same namespace
        near = difflib.get_close_matches(
            name, [known for known in gym.registry if known.rpartition("/")[0] == space], 1, 0.4)
        raise ConfigError(f"there is no environment {name!r}",
                          env_hints.in_module(name) or (
                              f"--env_name={near[0]}" if near else
                              "install and import its package: --env_name=package:Id-v0")
                          ) from error
