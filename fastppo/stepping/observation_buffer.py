"""Writes observations into the rollout buffer."""

from typing import Any

import numpy as np

from fastppo.envs.observations import ObservationLayout
from fastppo.envs.spaces import leaf_arrays
from fastppo.stepping import checks

LARGE_BYTES = 4096  # of an observation; for a larger one a second copy costs more than it saves


class BoxWriter:
    """Writes observations of a Box, at once, because an environment may reuse its array.

    Small ones are staged: a view of one observation, made once, costs half of indexing the row of
    the buffer, and those of a group are copied to the row together. The staging array becomes
    float64 with the first observation that is not float32: a cast that overflows makes numpy warn,
    and only `flush` casts, without that warning. An infinity is found later.

    An array of `shape` and `dtype` can be copied to a slot as it is.
    """

    def __init__(self, row: np.ndarray):
        self.shape, self.stored, self.staging = row.shape[1:], row.dtype, None
        self.dtype = self.stored
        if row[0].nbytes <= LARGE_BYTES:
            self.staging = np.zeros_like(row)
            self.slots = [self.staging[e, ...] for e in range(len(row))]

    def open(self, row: np.ndarray) -> list[np.ndarray]:
        """The slots, one array for each environment, to which observations of `row` are copied."""
        self.row = row
        if self.staging is None:
            self.slots = [row[e, ...] for e in range(len(row))]
        return self.slots

    def flush(self, group: range) -> None:
        """Copy the staged observations of `group` to the open row."""
        if self.staging is None:
            return
        part = slice(group.start, group.stop)
        if self.staging.dtype == self.stored:
            self.row[part] = self.staging[part]
        else:
            self.write(self.row, part, self.staging[part])

    def convert(self, obs: Any) -> np.ndarray:
        """`obs` as an array to copy to a slot; raises ValueError if its space has no such array."""
        array = checks.checked_observation(obs, self.shape, self.stored)
        if self.staging is None:
            with np.errstate(over="ignore"):
                return array.astype(self.stored)
        if self.staging.dtype == np.float32 and array.dtype != np.float32:
            wide = self.staging.astype(np.float64)
            # In one statement, between the parts of which no interrupt strikes.
            self.slots[:], self.staging = [wide[e, ...] for e in range(len(wide))], wide
        self.dtype = array.dtype
        return array

    def write(self, rows: np.ndarray, where: int | slice, obs: np.ndarray) -> None:
        """rows[where] = obs, cast to the dtype of the buffer."""
        with np.errstate(over="ignore"):
            rows[where] = obs


class LeafViews:
    """The place of one structured observation: `place[...] = arrays` copies its leaves there."""

    def __init__(self, views: list[np.ndarray]):
        self.views = views

    def __setitem__(self, index: Any, arrays: list[np.ndarray]) -> None:
        for view, array in zip(self.views, arrays):
            view[...] = array


class StructureWriter:
    """Writes observations of any other space: a list of arrays, one for each leaf, without staging.

    The same calls as BoxWriter's. No observation has its `shape` and `dtype`: all are converted.
    """

    shape = dtype = None

    def __init__(self, layout: ObservationLayout):
        self.layout, self.convert = layout, layout.to_arrays

    def open(self, row: np.ndarray) -> list[LeafViews]:
        """The places, one for each environment, to which observations of `row` are copied."""
        arrays = leaf_arrays(row)
        self.slots = [LeafViews([array[e, ...] for array in arrays]) for e in range(len(row))]
        return self.slots

    def flush(self, group: range) -> None:
        """Nothing is staged."""

    def write(self, rows: np.ndarray, e: int, arrays: list[np.ndarray]) -> None:
        """rows[e] = a final observation: every action counts as legal."""
        LeafViews([field[e, ...] for field in leaf_arrays(rows)])[...] = arrays
        if self.layout.mask is not None:
            self.layout.legal(rows)[e] = True


def observation_writer(row: np.ndarray, layout: ObservationLayout) -> BoxWriter | StructureWriter:
    """The writer for a rollout buffer whose rows [e ...] are like `row`."""
    return BoxWriter(row) if layout.is_box else StructureWriter(layout)
