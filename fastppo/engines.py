"""Vector environments made from an id, where the setting `vec` asks for one.

    native    the id's own `vector_entry_point`, by gymnasium.make_vec
    envpool   EnvPool's environment of that id, imported only here and only when it is asked for

What they say and do is then any VectorEnv's business (native.py). Evaluation plays in Gymnasium's
environment of the same id: what an engine simulates otherwise shows there.
"""

import difflib
import warnings
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Iterator

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from . import contract, kernels
from .atari import games
from .config import Config
from .envs import Source, SpecFactory, factory, spaces_of
from .errors import ConfigError, spelt
from .kernels import Purpose
from .machine import usable_cores
from .masks import METHOD
from .spaces import MASK

SEEDS = 2**31  # EnvPool's are int32, and environment i has the seed + i


def source_of(env: Any, config: Config) -> Source:
    """The environments of a run: those of `env`, or made as one vector environment by `vec`."""
    made = config.vec in ("native", "envpool") and not isinstance(env, VectorEnv)
    with spelt("PPO({})" if env is not None else ""):
        return Made(env, config) if made else Source(env, config)


class Made(Source):
    """The environments of an id as one vector environment, made by the engine that `vec` names."""

    def __init__(self, env: Any, config: Config):
        check_processes(config.vec, config.num_workers)
        if games(config.preprocessing, config.end_on_life_loss):
            raise ConfigError(f"--preprocessing={config.preprocessing}, but --vec={config.vec}"
                              " steps environments that are made already", "--vec=workers; or"
                              " --preset=none, and the engine's own preprocessing by env_kwargs")
        if config.frame_stack > 1:
            raise ConfigError(f"--frame_stack={config.frame_stack}, but --vec={config.vec} steps"
                              " environments that are made already", "--vec=workers")
        if env is not None and not isinstance(env, str):
            raise ConfigError(f"--vec={config.vec} makes environments by their id, not from"
                              f" {env!r}", "--vec=workers")
        make = {"native": entry_point, "envpool": Pool}[config.vec]
        self.config, self.factories = config.replace(num_workers=0), []
        self.vector = make(config.env_name, config.num_envs, options(config))
        self.open = [self.vector]
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the vector environment, which was made here; twice is fine."""
        contract.close(self.open)

    def _look(self) -> None:
        self.metadata = self.vector.metadata
        if self.config.vec == "native" or hasattr(self.vector, METHOD):
            self._take(self.vector)
        else:  # EnvPool's infos, which are not passed on, need not be looked into
            self.obs_space, self.act_space = spaces_of(self.vector, "single_")
        try:
            self.factories = [self._factory(self.config.env_name)] * self.config.num_envs
            self.factories[0].masked = self.masked
        except ConfigError as error:
            contract.log.warning("%s: evaluation, which plays in Gymnasium's environment, needs"
                                 " another: --eval_env=... or --eval_episodes=0", error.what)


def check_processes(vec: str, count: int | str | None, name: str = "num_workers") -> None:
    """Raise ConfigError where the setting `name` asks for workers beside an engine."""
    if vec in ("native", "envpool") and count not in (None, 0, "auto"):
        raise ConfigError(f"{name} is {count}, but --vec={vec} steps all environments in one"
                          " process", f"leave {name} out")


def options(config: Config) -> dict[str, Any]:
    """What an engine is asked for beside the id and the number of environments."""
    limit = config.max_episode_steps
    return (config.env_kwargs or {}) | ({} if limit is None else {"max_episode_steps": limit})


def entry_point(name: str, num_envs: int, kwargs: dict[str, Any]) -> VectorEnv:
    """The vector environment that the id `name` brings itself; ConfigError where it has none."""
    made = factory(name)
    if not isinstance(made, SpecFactory) or made.spec.vector_entry_point is None:
        raise ConfigError(f"--vec=native, but {name} has no vector environment of its own (no"
                          " vector_entry_point)", "--vec=workers")
    try:
        return gym.make_vec(made.spec, num_envs, "vector_entry_point", **kwargs)
    except Exception as error:  # an environment's constructor may raise anything
        raise ConfigError(f"the vector environment of {name} cannot be made with {kwargs}:"
                          f" {type(error).__name__}: {error}", "--vec=workers") from error


def envpool() -> ModuleType:
    """The module; ConfigError where it is not installed or cannot be imported."""
    try:
        import envpool as module
    except ImportError as error:
        raise ConfigError(f"--vec=envpool needs EnvPool, which cannot be imported ({error})",
                          'pip install "fastppo[envpool]"; or --vec=workers') from error
    return module


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings: EnvPool gives float32 spaces their bounds in float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Pool(VectorEnv):
    """EnvPool's environments of one id, with batched spaces, and seeded by `reset`.

    EnvPool takes its seed when it is made: `reset(seed=...)` makes it anew. So does the next reset
    after a step that was interrupted, of which EnvPool may still hold the answers. An episode that
    ends by itself in the very step of its time limit counts as truncated, EnvPool tells no more.
    Results do not depend on its threads, one a usable core. Of its infos the action mask alone is
    passed on, by a method `action_masks` of the environments that have one.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, name: str, num_envs: int, kwargs: dict[str, Any]):
        self.module, self.name, self.num_envs = envpool(), name.rpartition(":")[2], num_envs
        self.kwargs = {"num_envs": num_envs, "num_threads": min(usable_cores(), num_envs), **kwargs}
        self.pool, self.seed, self.count, self.under_way, self.info = None, 0, 0, False, {}
        with quiet():
            spec = self._made("make_spec")
            spaces = spec.gymnasium_observation_space, spec.gymnasium_action_space
        if f"info:{MASK}" in spec.state_array_spec:
            setattr(self, METHOD, lambda: self.info[MASK])
        self.single_observation_space, self.single_action_space = spaces
        self.observation_space, self.action_space = (batch_space(space, num_envs)
                                                     for space in spaces)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begin new episodes in all environments: with a seed the same ones every time."""
        if seed is not None:
            self.seed, self.count = seed, 0
        if seed is not None or self.under_way or self.pool is None:
            fresh = kernels.episode_seed(self.seed, Purpose.ENV_SEED, 0, self.count)
            self.pool = self._made("make_gymnasium", seed=fresh % (SEEDS - self.num_envs))
            self.count, self.under_way = self.count + 1, False
        with quiet():
            obs, self.info = self.pool.reset()
        return obs, {}

    def step(self, actions: np.ndarray):
        """(observations, rewards [e], terminations [e], truncations [e], {}) of one step."""
        self.under_way = True
        obs, rew, term, trunc, self.info = self.pool.step(actions)
        self.under_way = False
        return obs, rew, term, trunc, {}

    def close_extras(self, **kwargs) -> None:
        """End EnvPool's threads."""
        if self.pool is not None:
            self.pool.close()

    def _made(self, make: str, **kwargs):
        """What the module's function `make` returns; ConfigError for an id it does not know."""
        known = self.module.list_all_envs()
        if self.name not in known:
            near = difflib.get_close_matches(self.name, known, 1, 0.4)
            other = f"; or --env_name={near[0]}, if that will do" if near else ""
            raise ConfigError(f"EnvPool {self.module.__version__} has no {self.name}",
                              "--vec=workers" + other)
        try:
            return getattr(self.module, make)(self.name, **self.kwargs, **kwargs)
        except Exception as error:
            raise ConfigError(f"EnvPool cannot make {self.name} with {self.kwargs}:"
                              f" {type(error).__name__}: {error}", "--vec=workers") from error
