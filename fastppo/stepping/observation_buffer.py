"""Copies observations into the rollout buffer."""

from typing import Any

import numpy as np

from fastppo.envs.observations import ObservationLayout
from fastppo.envs.spaces import leaf_arrays
from fastppo.stepping import checks

LARGE_BYTES = 4096  # bytes of an observation for which a second copy costs more than it saves


class BoxWriter:
    """Where observations are copied to at once, for an environment may reuse its array.

    Small ones go to a desk, and for all of a group together to their row [e ...] of the arena: a
    view of one observation, made once, costs half of indexing the row. Where they come in another
    dtype than is kept, the desk is float64, and the cast is without numpy's warning of an overflow:
    such a number is found as not finite. `dtype` is what to expect.
    """

    def __init__(self, row: np.ndarray, dtype: np.dtype):
        self.shape, self.kept, self.envs, self.seen = row.shape[1:], row.dtype, len(row), dtype
        self.large = row[0].nbytes > LARGE_BYTES
        self.settle()

    def settle(self) -> None:
        """Expect from now on what was seen last; only between rollouts."""
        self.dtype, same = self.seen, self.seen == self.kept or self.kept != np.float32
        self.desk = None
        if not (same and self.large):
            self.desk = np.zeros((self.envs, *self.shape), self.kept if same else np.float64)
            self.places = [self.desk[e, ...] for e in range(self.envs)]

    def open(self, row: np.ndarray) -> list[np.ndarray]:
        """The arrays, one an environment, into which to copy what belongs in `row`."""
        return self.places if self.desk is not None else [row[e, ...] for e in range(self.envs)]

    def close(self, row: np.ndarray, group: range) -> None:
        """The observations of `group` are all there: let `row` have them. Twice is fine."""
        if self.desk is None:
            return
        part = slice(group.start, group.stop)
        if self.desk.dtype == row.dtype:
            row[part] = self.desk[part]
            return
        with np.errstate(over="ignore"):
            row[part] = self.desk[part]

    def unexpected(self, obs) -> np.ndarray:
        """`fitting`, and from the next rollout on it is expected."""
        array = checks.checked_observation(obs, self.shape, self.kept)
        self.seen = array.dtype
        return self.fitting(array)

    def fitting(self, obs) -> np.ndarray:
        """`obs` as an array that may be copied; raises ValueError for what its space refuses."""
        if type(obs) is np.ndarray and obs.shape == self.shape and obs.dtype == self.kept:
            return obs
        array = checks.checked_observation(obs, self.shape, self.kept)
        if array.dtype == self.kept or self.desk is not None and self.desk.dtype != self.kept:
            return array
        with np.errstate(over="ignore"):
            return array.astype(self.kept)

    def put(self, rows: np.ndarray, e: int, obs: np.ndarray) -> None:
        """rows[e] = obs, for one row of the arena alone."""
        if obs.dtype == rows.dtype:
            rows[e] = obs
            return
        with np.errstate(over="ignore"):
            rows[e] = obs


class LeafViews:
    """Where one environment's observation belongs: `place[...] = arrays` puts its leaves there."""

    def __init__(self, views: list[np.ndarray]):
        self.views = views

    def __setitem__(self, index: Any, arrays: list[np.ndarray]) -> None:
        for view, array in zip(self.views, arrays):
            view[...] = array


class StructureWriter:
    """An Intake for observations that are no plain Box: each is checked and put where it belongs.

    The same calls; what goes through them is the list of an observation's arrays, one a leaf.
    """

    shape = dtype = None  # no array is as expected: all go through `unexpected`

    def __init__(self, seen: ObservationLayout):
        self.seen = seen
        self.fitting = self.unexpected = seen.to_arrays

    def settle(self) -> None:
        """Nothing to expect."""

    def open(self, row: np.ndarray) -> list[LeafViews]:
        """The places, one an environment, of what belongs in `row`."""
        arrays = leaf_arrays(row)
        return [LeafViews([array[e, ...] for array in arrays]) for e in range(len(row))]

    def close(self, row: np.ndarray, group: range) -> None:
        """Nothing: everything is in its row already."""

    def put(self, rows: np.ndarray, e: int, arrays: list[np.ndarray]) -> None:
        """rows[e] = the last observation of an episode, after which nothing is left to choose."""
        self.open(rows[e:e + 1])[0][...] = arrays
        if self.seen.mask is not None:
            self.seen.legal(rows)[e] = True


def observation_writer(row: np.ndarray, seen: ObservationLayout) -> BoxWriter | StructureWriter:
    """What takes in the observations of a group whose arena's row is `row` [e ...]."""
    return BoxWriter(row, seen.space.dtype) if seen.is_box else StructureWriter(seen)
