"""Taking in what environments answer, and keeping what a step that was interrupted needs."""

from typing import Any

import numpy as np

from . import contract
from .contract import REPLAY_LIMIT
from .errors import EnvError
from .observations import Observations
from .spaces import fields

LARGE = 4096  # bytes of an observation for which a second copy costs more than it saves


class Intake:
    """Where observations are copied to at once, for an environment may reuse its array.

    Small ones go to a desk, and for all of a group together to their row [e ...] of the arena: a
    view of one observation, made once, costs half of indexing the row. Where they come in another
    dtype than is kept, the desk is float64, and the cast is without numpy's warning of an overflow:
    such a number is found as not finite. `dtype` is what to expect.
    """

    def __init__(self, row: np.ndarray, dtype: np.dtype):
        self.shape, self.kept, self.envs, self.seen = row.shape[1:], row.dtype, len(row), dtype
        self.large = row[0].nbytes > LARGE
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
        array = contract.observation(obs, self.shape, self.kept)
        self.seen = array.dtype
        return self.fitting(array)

    def fitting(self, obs) -> np.ndarray:
        """`obs` as an array that may be copied; raises ValueError for what its space refuses."""
        if type(obs) is np.ndarray and obs.shape == self.shape and obs.dtype == self.kept:
            return obs
        array = contract.observation(obs, self.shape, self.kept)
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


class Place:
    """Where one environment's observation belongs: `place[...] = arrays` puts its leaves there."""

    def __init__(self, views: list[np.ndarray]):
        self.views = views

    def __setitem__(self, index: Any, arrays: list[np.ndarray]) -> None:
        for view, array in zip(self.views, arrays):
            view[...] = array


class Leaves:
    """An Intake for observations that are no plain Box: each is checked and put where it belongs.

    The same calls; what goes through them is the list of an observation's arrays, one a leaf.
    """

    shape = dtype = None  # no array is as expected: all go through `unexpected`

    def __init__(self, seen: Observations):
        self.seen = seen
        self.fitting = self.unexpected = seen.kept

    def settle(self) -> None:
        """Nothing to expect."""

    def open(self, row: np.ndarray) -> list[Place]:
        """The places, one an environment, of what belongs in `row`."""
        arrays = fields(row)
        return [Place([array[e, ...] for array in arrays]) for e in range(len(row))]

    def close(self, row: np.ndarray, group: range) -> None:
        """Nothing: everything is in its row already."""

    def put(self, rows: np.ndarray, e: int, arrays: list[np.ndarray]) -> None:
        """rows[e] = an observation, for one row of the arena alone."""
        self.open(rows[e:e + 1])[0][...] = arrays


def intake_of(row: np.ndarray, seen: Observations) -> Intake | Leaves:
    """What takes in the observations of a group whose arena's row is `row` [e ...]."""
    return Intake(row, seen.space.dtype) if seen.plain else Leaves(seen)


class Past:
    """The actions taken since the oldest episode under way began, by step: to take them again."""

    def __init__(self, envs: int):
        self.envs = envs
        self.clear()

    def clear(self) -> None:
        """Forget everything; steps count from 0 again."""
        self.rows, self.first = {}, 0

    def keep(self, step: int, group: range, actions: list) -> None:
        """Note, before it is taken, what `group` does at `step`; twice is fine."""
        self.rows.setdefault(step, [None] * self.envs)[group.start:group.stop] = actions

    def forget(self, step: int) -> None:
        """Forget what was before `step`, and what is too long ago to be played again."""
        last = max(self.rows, default=0)
        for old in range(self.first, max(step, last - REPLAY_LIMIT)):
            self.rows.pop(old, None)
        self.first = max(step, last - REPLAY_LIMIT)

    def replay(self, env, seed: int, e: int, start: int, stop: int) -> None:
        """Bring `env` to where its episode of `seed` stood before `stop`, having begun at `start`.

        Raises EnvError for an episode too long to be played again.
        """
        if stop - start > REPLAY_LIMIT:
            raise EnvError(f"an environment was interrupted in step {stop - start} of its episode:"
                           f" only {REPLAY_LIMIT} can be played again",
                           "train anew, or with workers")
        env.reset(seed=seed)
        for step in range(start, stop):
            env.step(self.rows[step][e])


class NoPast:
    """A Past where no interrupt can strike: in a worker."""

    def clear(self) -> None:
        """Nothing to forget."""

    def keep(self, step: int, group: range, actions: list) -> None:
        """Nothing to note."""

    def forget(self, step: int) -> None:
        """Nothing to forget."""
