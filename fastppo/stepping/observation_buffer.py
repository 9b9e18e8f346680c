"""Writes observations into the rollout buffer."""

from typing import Any, Sequence

import numpy as np

from fastppo.spaces.leaves import fitting_array, leaf_arrays
from fastppo.spaces.observations import ObservationLayout
from fastppo.stepping.environments import RunningEpisode
from fastppo.stepping.episodes import FrameStore, RolloutViews, rows_by_step


class LeafSlot:
    """The place of one structured observation: `slot[...] = arrays` copies its leaves there."""

    def __init__(self, views: list[np.ndarray]):
        self.views = views

    def __setitem__(self, index: Any, arrays: list[np.ndarray]) -> None:
        for view, array in zip(self.views, arrays):
            view[...] = array


class ObservationWriter:
    """Copies observations at once, because an environment may reuse its array.

    `rows` are those of the rollout buffer by step; `first` is the number of the first environment.

    They are staged: a slot is a view of one observation, made once, which costs half of indexing
    the row of the buffer, and the observations of a group are copied to the row together.

    An array of `shape` and `dtype` can be copied to a slot as it is; others must be converted. The
    staging array becomes float64 with the first Box observation that is not float32: a cast that
    overflows makes numpy warn, and only `flush` casts, without that warning. An infinity is found
    later.
    """

    def __init__(self, views: RolloutViews, layout: ObservationLayout, first: int = 0):
        self.rows, row = rows_by_step(views.obs, len(views.raw)), views.obs[0]
        self.frames = FrameStore(views.frames, views.stacks, first) if views.frames.size else None
        self.layout, self.plain, self.stored = layout, layout.is_box, row.dtype
        self.shape, self.dtype = row.shape[1:] if self.plain else None, row.dtype
        self.staging = np.zeros_like(row)
        self.slots = self._slots(self.staging)

    def convert(self, obs: Any) -> Any:
        """`obs` as it is copied to a slot; raises ValueError if it is not of the space."""
        if type(obs) is np.ndarray and obs.shape == self.shape and obs.dtype == self.dtype:
            return obs
        if not self.plain:
            return self.layout.to_arrays(obs)
        array = fitting_array(obs, "observation", self.shape, self.stored)
        if self.staging.dtype == np.float32 and array.dtype != np.float32:
            wide = self.staging.astype(np.float64)
            # One statement, because no interrupt strikes between the parts of a statement.
            self.slots[:], self.staging = self._slots(wide), wide
        self.dtype = array.dtype
        return array

    def flush(self, t: int, group: range, running: Sequence[RunningEpisode], now: int) -> None:
        """Copies the staged observations of `group` to the row of step t.

        `now` is the number of the step before it; see FrameStore for `running`.
        """
        self._copy(self.rows[t], group)
        if self.frames:
            self.frames.store(t, self.rows[t], group, running, now)

    def flush_first(self, group: range) -> None:
        """Copies the staged observations of `group` to the row that the next rollout begins with.

        It has no row before it.
        """
        self._copy(self.rows[-1], group)
        if self.frames:
            self.frames.store_whole(self.rows[-1])

    def _copy(self, row: np.ndarray, group: range) -> None:
        part = slice(group.start, group.stop)
        if self.staging.dtype == self.stored:
            row[part] = self.staging[part]
            return
        with np.errstate(over="ignore"):
            row[part] = self.staging[part]

    def flush_final(self, rows: np.ndarray, e: int) -> None:
        """Copies a staged final observation to rows[e]; every action counts as legal there."""
        self._copy(rows, range(e, e + 1))
        if self.layout.mask is not None:
            self.layout.legal(rows)[e] = True

    def _slots(self, rows: np.ndarray) -> list:
        if self.plain:
            return [rows[e, ...] for e in range(len(rows))]
        arrays = leaf_arrays(rows)
        return [LeafSlot([array[e, ...] for array in arrays]) for e in range(len(rows))]
