"""EnvPool's environments as a gymnasium VectorEnv."""

import warnings
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from fastppo.envs.masks import MASK_METHOD
from fastppo.errors import ConfigError
from fastppo.machine import kernels, limits
from fastppo.machine.kernels import Purpose
from fastppo.settings.fixes import Install, Set
from fastppo.spaces.leaves import MASK

SEEDS = 2**31  # EnvPool's seeds are int32, and environment i has the seed + i


class EnvPoolVector(VectorEnv):
    """EnvPool's environments of one id, with batched spaces, and seeded by `reset`.

    EnvPool takes its seed at construction, so `reset(seed=...)` makes a new pool. So does the next
    reset after an interrupted step, whose results EnvPool may still hold. An episode that
    terminates in the step of its time limit counts as truncated; EnvPool does not tell them apart.
    There is one thread for each usable core, and results do not depend on their number. Infos have
    the "lives" of Atari's games and nothing else; action masks are returned by the method
    `action_masks`, for ids that have them.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, name: str, num_envs: int, kwargs: dict[str, Any]):
        self.name, self.num_envs = name.rpartition(":")[2], num_envs
        self.kwargs = {"num_envs": num_envs,
                       "num_threads": min(limits.usable_cores(), num_envs), **kwargs}
        self.pool, self.seed, self.resets, self.in_step, self.info = None, 0, 0, False, {}
        # EnvPool gives float32 spaces their bounds in float64, and Gymnasium warns.
        with warnings.catch_warnings(action="ignore"):
            spec = self._call("make_spec")
            spaces = spec.gymnasium_observation_space, spec.gymnasium_action_space
        if f"info:{MASK}" in spec.state_array_spec:
            setattr(self, MASK_METHOD, lambda: self.info[MASK])
        self.single_observation_space, self.single_action_space = spaces
        self.observation_space, self.action_space = (batch_space(space, num_envs)
                                                     for space in spaces)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begins new episodes in all environments; with a seed they can be repeated."""
        if seed is not None:
            self.seed, self.resets = seed, 0
        if seed is not None or self.in_step or self.pool is None:
            fresh = kernels.episode_seed(self.seed, Purpose.ENV_SEED, 0, self.resets)
            self.pool = self._call("make_gymnasium", seed=fresh % (SEEDS - self.num_envs))
            self.resets, self.in_step = self.resets + 1, False
        with warnings.catch_warnings(action="ignore"):
            obs, self.info = self.pool.reset()
        return obs, self._lives()

    def step(self, actions: np.ndarray):
        """(observations, rewards [e], terminations [e], truncations [e], infos) of one step."""
        self.in_step = True  # and stays so if the step is interrupted
        obs, rew, term, trunc, self.info = self.pool.step(actions)
        self.in_step = False
        return obs, rew, term, trunc, self._lives()

    def close_extras(self, **kwargs) -> None:
        """Stops EnvPool's threads."""
        if self.pool is not None:
            self.pool.close()

    def _lives(self) -> dict[str, Any]:
        """The infos: the lives of Atari's games."""
        return {"lives": self.info["lives"]} if "lives" in self.info else {}

    def _call(self, function: str, **kwargs):
        """The result of a function of EnvPool for this id; ConfigError if it fails."""
        try:
            import envpool
            return getattr(envpool, function)(self.name, **self.kwargs, **kwargs)
        except ImportError as error:
            raise ConfigError(f"vec=envpool needs EnvPool, which cannot be imported ({error})",
                              (Install("envpool"), Set(vec="workers"))) from error
        except Exception as error:
            raise ConfigError(f"EnvPool cannot make {self.name} with {self.kwargs}:"
                              f" {type(error).__name__}: {error}", Set(vec="workers")) from error
