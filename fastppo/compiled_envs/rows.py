"""The row of a compiled environment, and the random numbers that it counts.

    row    EPISODE | state | options
"""

import math
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary, MultiDiscrete

from fastppo.errors import ConfigError, SpaceError
from fastppo.reference import Purpose, philox
from fastppo.spaces.leaves import CHOICES
from fastppo.spaces.observations import ObservationLayout


class RandomStream(np.record):
    """Random numbers from a counter: a function of the seed and of how many were drawn before.

    The methods have the names of numpy.random.Generator. A compiled function has them, too,
    compiled from the same lines.
    """

    def words(self) -> tuple[int, int]:
        """The next two words, each below 2^32."""
        self.draws = draws = int(self.draws) + 1
        return philox(int(self.seed), draws % 2**32, draws >> 32, 0, Purpose.ENVIRONMENT)[:2]

    def random(self):
        """A float64 in [0, 1), a multiple of 2^-53."""
        first, second = self.words()
        return ((first >> 5) * 67108864.0 + (second >> 6)) / 9007199254740992.0

    def uniform(self, low=0.0, high=1.0):
        """A float64 in [low, high)."""
        return low + (high - low) * self.random()

    def integers(self, low, high):
        """An integer in [low, high), a range below 2^31."""
        return low + (self.words()[0] * (high - low) >> 32)

    def normal(self, mean=0.0, std=1.0):
        """A normal float64. Source: Box and Muller 1958."""
        first, second = self.words()
        radius = math.sqrt(-2.0 * math.log((first + 1) / 4294967296.0))
        return mean + std * radius * math.cos(2.0 * math.pi * (second / 4294967296.0))


STREAM = np.dtype((RandomStream, [("seed", "u8"), ("draws", "u8")]))


def records(dtype: np.dtype) -> np.dtype:
    """The same dtype; an element has its fields as attributes."""
    return np.dtype((np.record, dtype))


# The running episode: see csrc/envs/rows.h, and RunningEpisode for the numbers of training.
EPISODE = records(np.dtype([("rng", STREAM), *((name, "i8") for name in (
    "number", "start", "length", "limit"))]))
LENGTH = 4  # the place of its length, in words of 8 bytes
FAILS = "it fails as machine code, and not as Python; check() compares them"


class RowLayout:
    """The dtypes of an environment's row, observation and action.

    An observation is stored as in training: a Box as float32, uint8 or bool, a Dict as a record.
    Raises SpaceError or ConfigError for what a row cannot hold.
    """

    def __init__(self, definition: type):
        obs_space, act_space = (getattr(definition, f"{name}_space", None)
                                for name in ("observation", "action"))
        parts = [*obs_space.values()] if isinstance(obs_space, Dict) else [obs_space]
        odd = [space for space in parts if not isinstance(space, (Box, MultiBinary, MultiDiscrete))]
        odd += [space for space in parts if isinstance(space, MultiDiscrete) and space.start.any()]
        odd += [act_space] * (not isinstance(act_space, (Box, *CHOICES)))
        if odd:
            raise SpaceError(f"{definition.__name__} has the space {odd[0]}",
                             "observation_space: a Box, MultiBinary, MultiDiscrete, or a Dict of"
                             " these; action_space: a Box or choices")
        self.obs_space, stored = obs_space, ObservationLayout(obs_space, act_space).store
        self.obs, self.obs_shape = np.dtype(stored.dtype), stored.shape
        if self.obs.names:
            self.obs = records(np.dtype([(key, self.obs[i]) for i, key in enumerate(obs_space)],
                                        align=True))
        self.act, self.act_shape = act_space.dtype, act_space.shape
        state = definition.state
        options = {"none": 0} | getattr(definition, "options", {})  # Numba has no empty record
        self.state = np.dtype(state, align=True) if isinstance(state, list) else np.dtype(state)
        if self.state.hasobject or not self.state.names:
            raise ConfigError(f"the state of {definition.__name__} is {state}, but must be a"
                              " record of numbers: [(name, dtype), (name, dtype, shape), ...]")
        if taken := [name for name in (*self.state.names, *options) if hasattr(np.record, name)]:
            raise ConfigError(f"{definition.__name__} has a field {taken[0]!r}, which NumPy's"
                              " records have as an attribute", "give it another name")
        self.options = np.dtype([(name, np.asarray(value).dtype, np.shape(value))
                                 for name, value in options.items()], align=True)
        self.row = records(np.dtype([
            *((name, EPISODE[name]) for name in EPISODE.names), ("state", records(self.state)),
            ("options", records(self.options))], align=True))
        self.state_at, self.options_at = (self.row.fields[name][1] for name in (
            "state", "options"))

    def given(self, stored: np.ndarray) -> Any:
        """A stored observation, or a batch [n ...] of them, as its space has it: a copy."""
        if isinstance(self.obs_space, Dict):
            return {key: stored[key].astype(part.dtype) for key, part in self.obs_space.items()}
        return stored.astype(self.obs_space.dtype)
