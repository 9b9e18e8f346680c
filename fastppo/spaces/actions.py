"""Converts stored actions into actions of the environment, and samples random ones.

The `bounds_map` says how a stored component of a Box is mapped between its bounds low and high:

    clip    clip(act, low, high)
    scale   low + (clip(act, -1, 1) + 1) / 2 * (high - low)
    tanh    low + (tanh(act) + 1) / 2 * (high - low)
    unit    low + clip(act, 0, 1) * (high - low)

Stored choices count from 0. This module does not import torch, because workers import it.
"""

import math
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np
from gymnasium.spaces import Box, Dict, Space, Tuple

from fastppo.spaces.leaves import (
    CHOICES,
    action_storage,
    build_structure,
    choice_counts,
    choice_starts,
    leaves,
)


class BoundsMap(NamedTuple):
    """A map: from stored components, an array or a tensor, to places between the bounds."""

    place: Callable  # from 0, the low bound, to 1, the high one
    stored: Callable  # its inverse, of arrays


BOUNDS_MAPS: dict[str, BoundsMap | None] = {
    "clip": None,
    "scale": BoundsMap(lambda act: (act.clip(-1, 1) + 1) / 2, lambda place: 2 * place - 1),
    "tanh": BoundsMap(
        lambda act: ((np.tanh(act) if isinstance(act, np.ndarray) else act.tanh()) + 1) / 2,
        lambda place: np.arctanh(np.clip(2 * place - 1, -1 + 1e-6, 1 - 1e-6))),
    "unit": BoundsMap(lambda act: act.clip(0, 1), lambda place: place),
}

LARGEST = float(np.finfo(np.float32).max)


class ActionMapping:
    """The actions of a space, and the map of those of a Box to its bounds.

    `store` is the Storage of an action, `size` the number of its components in all leaves together.
    """

    def __init__(self, space: Space, bounds_map: str = "clip"):
        self.space, self.bounds_map, self.store = space, bounds_map, action_storage(space)
        self.size = math.prod(self.store.shape)

    def to_env(self, agents: int = 1) -> Callable[[np.ndarray], list[Any]]:
        """The function from stored actions [n ...] to n actions of the environment.

        With several `agents` from [n agents ...] to n lists, of an action for each. The arrays it
        returns are new, so an environment may keep them.
        """
        if agents > 1:
            of_each = self.to_env()
            return lambda act: [*map(of_each, act)]
        if isinstance(self.space, (Dict, Tuple)):
            return self._parts_to_env()
        arrays = self.arrays()
        if self.space.shape or isinstance(self.space, CHOICES):
            return lambda act: list(arrays(act))
        return lambda act: [row.reshape(()) for row in arrays(act)[:, None]]

    def arrays(self) -> Callable[[np.ndarray], np.ndarray]:
        """The same function, of a space that is no Dict or Tuple, to one array [n ...]."""
        space, shape, dtype = self.space, self.space.shape, self.space.dtype
        if isinstance(space, CHOICES):
            start = choice_starts(space)
            return lambda act: (act.reshape(len(act), *shape) + start).astype(dtype, copy=False)
        (low, high), placing = bounds_of(space), BOUNDS_MAPS[self.bounds_map]

        def box_actions(act: np.ndarray) -> np.ndarray:
            if placing:
                act = low + placing.place(act) * (high - low)
            if dtype.kind != "f":
                act = np.rint(act)
            return np.clip(act, low, high).astype(dtype).reshape(len(act), *shape)
        return box_actions

    def to_batch(self) -> Callable[[np.ndarray], Any]:
        """The function from stored actions [n ...] to the batch of n that a VectorEnv takes."""
        if not isinstance(self.space, (Dict, Tuple)):
            return self.arrays()
        of_each = self.to_env()
        return lambda act: self.stacked(of_each(act))

    def _parts_to_env(self) -> Callable[[np.ndarray], list[Any]]:
        parts = [ActionMapping(leaf.space, self.bounds_map) for leaf in leaves(self.space)]
        functions, ends = [part.to_env() for part in parts], np.cumsum([x.size for x in parts])[:-1]

        def composite(act: np.ndarray) -> list[Any]:
            columns = [function(column.astype(part.store.dtype).reshape(-1, *part.store.shape))
                       for part, function, column in zip(
                           parts, functions, np.split(act, ends, axis=1))]
            return [build_structure(self.space, iter(row)) for row in zip(*columns)]
        return composite

    def stacked(self, actions: Sequence[Any]) -> Any:
        """Any number of the environment's actions as the batch that a VectorEnv takes."""
        found = leaves(self.space)
        columns = [np.array([leaf.of(action) for action in actions], leaf.space.dtype).reshape(
            -1, *leaf.space.shape) for leaf in found]
        return build_structure(self.space, iter(columns))

    def random(self, u: np.ndarray, z: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        """n random legal stored actions, from uniform noise u and normal noise z [n k].

        Uniform, but a Box without two finite bounds is exponential from its one bound, or normal,
        as in Gymnasium's `sample`. `mask`, bool [n choices], is true for legal choices.
        """
        begin, columns = 0, []
        for leaf in leaves(self.space):
            part = slice(begin, begin + math.prod(leaf.space.shape))
            begin = part.stop
            if isinstance(leaf.space, CHOICES):
                columns.append(_random_choices(leaf.space, u[:, part], mask))
            else:
                columns.append(_random_numbers(leaf.space, self.bounds_map, u[:, part], z[:, part]))
        store = self.store
        return np.concatenate(columns, 1).astype(store.dtype).reshape(-1, *store.shape)


def unbounded(space: Space, has_range: bool = False) -> str:
    """The first Box in `space` without finite bounds, or a range if it `has_range`; "" for none."""
    for box in (leaf.space for leaf in leaves(space) if isinstance(leaf.space, Box)):
        with np.errstate(over="ignore"):
            span = box.high - box.low
        if not np.isfinite(span).all():
            return f"the space {box} has infinite bounds, or a range beyond {box.dtype}"
        if has_range and not span.all():
            return f"the space {box} has a range of 0"
    return ""


def bounds_of(space: Box) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) [n] of a Box, float64 if its numbers are whole."""
    dtype = space.dtype if space.dtype.kind == "f" else np.float64
    return space.low.reshape(-1).astype(dtype), space.high.reshape(-1).astype(dtype)


def _random_choices(space: Space, u: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Random choices [n k]; legal ones if there is a mask."""
    counts = choice_counts(space)
    if mask is None:
        return np.minimum((u * counts).astype(np.int64), counts - 1)
    columns = []
    for i, legal in enumerate(np.split(mask, np.cumsum(counts)[:-1], axis=1)):
        below = np.cumsum(legal, axis=1)
        columns.append((below <= (u[:, i] * below[:, -1])[:, None]).sum(1))
    return np.stack(columns, 1)


def _random_numbers(space: Box, bounds_map: str, u: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Random components [n k] of a Box, as they are stored."""
    if placing := BOUNDS_MAPS[bounds_map]:
        return placing.stored(u.astype("f8"))
    low, high = space.low.reshape(-1).astype("f8"), space.high.reshape(-1).astype("f8")
    above_low, below_high = np.isfinite(low), np.isfinite(high)
    # Actions are stored as float32.
    low = np.where(above_low, low, 0.0).clip(-LARGEST, LARGEST)
    high = np.where(below_high, high, 0.0).clip(-LARGEST, LARGEST)
    tail = -np.log1p(-u.astype("f8"))
    one_bound = np.where(above_low, low + tail, np.where(below_high, high - tail, z))
    return np.where(above_low & below_high, low + (high - low) * u, one_bound)
