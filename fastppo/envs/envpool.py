"""EnvPool's environments as a Gymnasium VectorEnv."""

import difflib
import warnings
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Iterator

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from fastppo.envs.masks import MASK_METHOD
from fastppo.envs.spaces import MASK
from fastppo.errors import ConfigError
from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose
from fastppo.machine.limits import usable_cores

SEEDS = 2**31  # EnvPool's are int32, and environment i has the seed + i


def import_envpool() -> ModuleType:
    """The module; ConfigError where it is not installed or cannot be imported."""
    try:
        import envpool as module
    except ImportError as error:
        raise ConfigError(f"--vec=envpool needs EnvPool, which cannot be imported ({error})",
                          'pip install "fastppo[envpool]"; or --vec=workers') from error
    return module


@contextmanager
def without_warnings() -> Iterator[None]:
    """Without warnings: EnvPool gives float32 spaces their bounds in float64."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class EnvPoolVector(VectorEnv):
    """EnvPool's environments of one id, with batched spaces, and seeded by `reset`.

    EnvPool takes its seed when it is made: `reset(seed=...)` makes it anew. So does the next reset
    after a step that was interrupted, of which EnvPool may still hold the answers. An episode that
    ends by itself in the very step of its time limit counts as truncated, EnvPool tells no more.
    Results do not depend on its threads, one a usable core. Of its infos the action mask alone is
    passed on, by a method `action_masks` of the environments that have one.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, name: str, num_envs: int, kwargs: dict[str, Any]):
        self.module, self.name, self.num_envs = import_envpool(), name.rpartition(":")[2], num_envs
        self.kwargs = {"num_envs": num_envs, "num_threads": min(usable_cores(), num_envs), **kwargs}
        self.pool, self.seed, self.count, self.under_way, self.info = None, 0, 0, False, {}
        with without_warnings():
            spec = self._made("make_spec")
            spaces = spec.gymnasium_observation_space, spec.gymnasium_action_space
        if f"info:{MASK}" in spec.state_array_spec:
            setattr(self, MASK_METHOD, lambda: self.info[MASK])
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
        with without_warnings():
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
