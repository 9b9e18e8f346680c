"""Observations of any served space: checked and brought into the form in which they are kept.

A plain Box goes a shorter way while training (intake.Intake); what it keeps is the same.
"""

import math
from typing import Any, NamedTuple, Sequence

import numpy as np
from gymnasium.spaces import Box, Dict, Space

from fastppo.envs.spaces import (
    CHOICES,
    MASK,
    OBS_KEY,
    Leaf,
    MaskedDict,
    build_structure,
    can_store,
    choice_counts,
    choice_starts,
    leaf_arrays,
    leaf_storage,
    leaves,
    mask_leaf,
    observation_storage,
    subspaces,
    with_binary_mask,
)


class StoredLeaf(NamedTuple):
    """One leaf of an observation, and how it is kept."""

    leaf: Leaf
    dtype: np.dtype
    shape: tuple[int, ...]
    start: np.ndarray  # of choices, i64 of the leaf's shape: what their first one is called
    counts: np.ndarray | None  # of choices, i64 [factors]; None for a Box

    @classmethod
    def of(cls, leaf: Leaf) -> "StoredLeaf":
        """The column that keeps `leaf`; SpaceError where it cannot be kept."""
        store, choices = leaf_storage(leaf.space), isinstance(leaf.space, CHOICES)
        return cls(leaf, np.dtype(store.dtype), store.shape, choice_starts(leaf.space),
                   choice_counts(leaf.space) if choices else None)

    def kept(self, value: Any, lead: tuple[int, ...] = ()) -> np.ndarray:
        """`value` [*lead ...] as kept; ValueError for what its space does not say."""
        array = np.asarray(value)
        if array.shape != (*lead, *self.shape):
            raise ValueError(f"the {self.leaf} has shape {array.shape}, its space"
                             f" {(*lead, *self.shape)}")
        if self.counts is not None:
            return self._chosen(array)
        if not can_store(self.dtype, array.dtype):
            raise ValueError(f"the {self.leaf} is {array.dtype}, which {self.dtype} does not keep")
        with np.errstate(over="ignore"):
            array = array.astype(self.dtype, copy=False)
        if self.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
            raise ValueError(f"{self.leaf}[{int(np.argmin(finite.reshape(-1)))}] is"
                             f" {array.reshape(-1)[finite.reshape(-1).argmin()]} in float32")
        return array

    def _chosen(self, array: np.ndarray) -> np.ndarray:
        """Choices as numbers from 0 on."""
        if array.dtype.kind not in "iub":
            raise ValueError(f"the {self.leaf} is {array.dtype}, which {self.dtype} does not keep")
        array = array - self.start
        if ((array < 0) | (array >= self.counts.reshape(self.shape))).any():
            raise ValueError(f"the {self.leaf} is {(array + self.start).tolist()}, which is not in"
                             f" {self.leaf.space}")
        return array.astype(self.dtype)


class ObservationLayout:
    """The observations of one space: their columns, one a leaf, and which is the action mask.

    `store` says how one is kept; `shown` is the space of what a network sees: without the mask, and
    bare what masks.Masked has put beside it (`wrapped`). SpaceError for spaces not served.
    """

    def __init__(self, space: Space, act_space: Space):
        self.mask = mask_leaf(space, act_space)
        self.wrapped = isinstance(space, MaskedDict) and self.mask is not None
        space = space if self.mask is None else with_binary_mask(space)
        self.space, self.act_space, self.store = space, act_space, observation_storage(space)
        self.columns = [StoredLeaf.of(leaf) for leaf in leaves(space)]
        self.factors = choice_counts(act_space) if self.mask is not None else None
        self.shown = space if self.mask is None else self._shown()

    @property
    def plain(self) -> bool:
        """Whether they are one Box, kept as it comes."""
        return isinstance(self.space, Box)

    def kept(self, value: Any, lead: tuple[int, ...] = ()) -> list[np.ndarray]:
        """The arrays [*lead ...] of an observation, or of a batch of them, one a leaf.

        Raises ValueError for what the space does not say.
        """
        try:
            found = [column.leaf.of(value) for column in self.columns]
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"the observation is {_told(value)}, not an element of {self.space}"
                             ) from error
        return [column.kept(part, lead) for column, part in zip(self.columns, found)]

    def rows(self, values: Sequence[Any]) -> np.ndarray:
        """Observations, one after the other, as stored rows [b ...]; ValueError as `kept`."""
        rows = np.zeros((len(values), *self.store.shape), self.store.dtype)
        for i, value in enumerate(values):
            self.put(rows[i:i + 1], self.kept(value), (1,))
        return rows

    def batch(self, value: Any, count: int) -> np.ndarray:
        """A batch of `count` as stored rows [count ...]; ValueError as `kept`."""
        rows = np.zeros((count, *self.store.shape), self.store.dtype)
        self.put(rows, self.kept(value, (count,)), (count,))
        return rows

    def lead(self, value: Any) -> tuple[int, ...]:
        """The axes that `value` has before those of an observation: () for one, (b,) for a batch.

        Of the first leaf that is no action mask; ValueError where that has other axes.
        """
        column = self.columns[int(self.mask == 0)]
        shape = np.shape(column.leaf.of(value))
        extra = len(shape) - len(column.shape)
        if extra not in (0, 1) or shape[extra:] != column.shape:
            raise ValueError(f"the {column.leaf} has shape {shape}, its space {column.shape}")
        return shape[:extra]

    def put(self, rows: np.ndarray, arrays: Sequence[np.ndarray], lead: tuple[int, ...]) -> None:
        """rows [*lead ...] = the arrays of kept observations."""
        for field, array in zip(leaf_arrays(rows), arrays):
            field[...] = array.reshape(*lead, *field.shape[len(lead):])

    def split(self, structure: Any) -> list[np.ndarray]:
        """The leaves, arrays, of tensors on the CPU in the structure of the space."""
        return [column.leaf.of(structure).numpy() for column in self.columns]

    def legal(self, rows: np.ndarray) -> np.ndarray | None:
        """The action masks, bool [n choices], of stored observations [n ...]; None without one."""
        return None if self.mask is None else leaf_arrays(rows)[self.mask]

    def stuck(self, rows: np.ndarray) -> tuple[int, ValueError] | None:
        """(row, why) of the first of stored observations [n] whose mask forbids every action."""
        if self.mask is None:
            return None
        starts = np.cumsum(self.factors) - self.factors
        free = np.logical_or.reduceat(self.legal(rows), starts, axis=1)
        if free.all():
            return None
        row, factor = map(int, np.argwhere(~free)[0])
        which = f" of its choice {factor}" if len(starts) > 1 else ""
        return row, ValueError(f"the action mask forbids every action{which}")

    def whole(self, obs: Any, mask: Any) -> dict:
        """`obs`, which may lack the action mask, with `mask` in it; True: everything is legal."""
        found = with_mask(self.space, obs, mask)
        if mask is True:
            found[MASK] = np.ones((*self.lead(found), self.factors.sum()), bool)
        return found

    def structure(self, arrays: Sequence[Any]) -> Any:
        """The leaves, arrays or tensors, in the structure of the space."""
        return build_structure(self.space, iter(arrays))

    def _shown(self) -> Space:
        rest = [(key, part) for key, part in subspaces(self.space) if key != MASK]
        return rest[0][1] if self.wrapped else Dict(rest)


def with_mask(space: Dict, obs: Any, mask: Any) -> dict:
    """An element of `space`, or a batch, from one that lacks the action mask, and that mask."""
    parts = isinstance(obs, dict) and space.spaces.keys() - {MASK} <= obs.keys()
    return {**(obs if parts else {OBS_KEY: obs}), MASK: mask}


def parse_mask(mask: Any, size: int, where: str, lead: tuple[int, ...] = ()) -> np.ndarray:
    """An action mask, of any shape behind `lead`, as bool [*lead size].

    Raises ValueError for what is none, found `where`.
    """
    try:
        array = np.asarray(mask)
        good = array.dtype.kind in "biuf" and ((array == 0) | (array == 1)).all()
    except (ValueError, TypeError):  # lists of unequal lengths, or a tensor elsewhere
        array, good = np.empty(()), False
    if not good or array.size != math.prod(lead) * size or array.shape[:len(lead)] != lead:
        told = f"of shape {array.shape}" if good else repr(mask)
        each = f" for each of {lead[0]} observations" if lead else ""
        raise ValueError(f"{where} is {told}, not {size} flags{each}, one for each choice of each"
                         " factor")
    return array.reshape(*lead, size).astype(bool)


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(repr, value)) or 'nothing'}"
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__


class ObservationEncoding:
    """What a network sees of observations: float32 columns, of each leaf in turn.

    Choices have a column each (one-hot), bytes are divided by 255, the rest is as it is; the action
    mask is left out. `floats`, bool [o]: the columns of float leaves, which alone have moments.
    """

    def __init__(self, seen: ObservationLayout):
        self.columns = [(i, column) for i, column in enumerate(seen.columns) if i != seen.mask]
        sizes = [encoded_width(column) for _, column in self.columns]
        self.size, floats = sum(sizes), [c.dtype == np.float32 for _, c in self.columns]
        self.floats = np.repeat(floats, sizes)
        self.identity = seen.plain and seen.store.dtype == "<f4"

    def encode(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """f32 [n o] of the leaves [n ...] of stored observations; of a float Box a view."""
        if self.identity:
            return arrays[0].reshape(len(arrays[0]), self.size)
        return np.concatenate([_encoded(column, arrays[i]) for i, column in self.columns], 1)


def encoded_width(column: StoredLeaf) -> int:
    """How many columns a network sees of a leaf."""
    return math.prod(column.shape) if column.counts is None or column.dtype == np.bool_ \
        else int(column.counts.sum())


def _encoded(column: StoredLeaf, array: np.ndarray) -> np.ndarray:
    flat = array.reshape(len(array), math.prod(column.shape))
    if column.dtype != np.int32:
        scale = np.float32(255 if column.dtype == np.uint8 else 1)
        return flat.astype(np.float32) / scale
    return np.concatenate([flat[:, i:i + 1] == np.arange(count)
                           for i, count in enumerate(column.counts)], 1).astype(np.float32)
