"""Observations of any supported space: checked, stored as rows, and encoded as float32 columns.

ObservationWriter (stepping/rollout_recorder.py) stores a plain Box faster while training; the
result is the same.
"""

import math
from typing import Any, Sequence

import numpy as np
from gymnasium.spaces import Box, Dict, MultiBinary, Space

from fastppo.machine import kernels
from fastppo.spaces.leaves import (
    BOARD_SIDE,
    CHOICES,
    MASK,
    OBS_KEY,
    Leaf,
    MaskedDict,
    build_structure,
    can_store,
    channels_are_last,
    choice_counts,
    choice_starts,
    fitting_array,
    leaf_arrays,
    leaves,
    mask_leaf,
    observation_storage,
    subspaces,
)


class NonFiniteValue(ValueError):
    """A reward or an observation that is not finite."""

    __module__ = "builtins"  # an error's text has the name alone


class StoredLeaf:
    """One leaf of an observation, and the `dtype` and `shape` of the array that stores it.

        start         i64 of the leaf's shape: the number of the first choice
        counts        i64 [factors], the number of choices; None for a Box
        one_hot       true for Discrete and MultiDiscrete
        numeric       true for a Box of floats or integers, also of uint8
        width         the number of columns that encode it
        like_image    true for a Box of uint8 with two axes, three (channels) or four (frames)
        image_range   (lowest, highest) number, if convolutions can see it; otherwise None
        image_shape   (channels, height, width) of these; channels are those of all stacked frames
        board         true for a Box of int8 or bool with three axes or four (frames): an image of
                      the numbers themselves to impala and impoola, and to a network of the user's

    Raises SpaceError if it cannot be stored.
    """

    def __init__(self, leaf: Leaf):
        self.leaf, store = leaf, observation_storage(leaf.space)
        self.dtype, self.shape = np.dtype(store.dtype), store.shape
        self.start = choice_starts(leaf.space)
        self.counts = choice_counts(leaf.space) if isinstance(leaf.space, CHOICES) else None
        self.one_hot = self.dtype == np.int32
        self.numeric = self.counts is None and self.dtype != np.bool_
        self.width = int(self.counts.sum()) if self.one_hot else math.prod(self.shape)
        self.like_image = self.dtype == np.uint8 and len(self.shape) in (2, 3, 4)
        self.board = self.counts is None and len(self.shape) in (3, 4) and (
            leaf.space.dtype.char in "b?")  # int8 or bool
        self.image_range = self.image_shape = None
        if self.like_image or self.numeric and len(self.shape) in (3, 4):
            self._set_image(leaf.space)

    def _set_image(self, space: Space) -> None:
        """Sets the range and the shape of an image.

        The lowest number of uint8 counts as 0; floats need the same finite bounds everywhere. With
        three axes the channels are first or last (channels_are_last). A fourth axis, in front,
        holds the frames.
        """
        low, high = float(space.low.flat[0]), float(space.high.flat[0])
        if self.like_image:
            low, high = 0.0, float(space.high.max() or 255)
        elif not (-np.inf < low < high < np.inf and (space.low == low).all()
                  and (space.high == high).all()):
            return
        self.image_range, self.image_shape = (low, high), self._planes()

    def _planes(self) -> tuple[int, int, int]:
        *lead, height, width = self.shape
        if lead and channels_are_last(self.shape[-3:]):
            *lead, height, width, channels = self.shape
            lead.append(channels)
        return math.prod(lead), height, width

    def convolved(self, smallest: int) -> tuple[int, int, int] | None:
        """(channels, height, width) for convolutions of images whose sides are at least `smallest`.

        None if they do not take it.
        """
        board = self.board and smallest <= BOARD_SIDE
        shape = self._planes() if board else self.image_shape
        return shape if board or shape and min(shape[1:]) >= smallest else None

    def to_array(self, value: Any, lead: tuple[int, ...] = ()) -> np.ndarray:
        """`value` [*lead ...] as it is stored; raises ValueError if its space does not allow it."""
        fits = can_store if self.counts is None else lambda _, given: given.kind in "biu"
        array = fitting_array(value, self.leaf, (*lead, *self.shape), self.dtype, fits)
        if self.counts is not None:
            array = array - self.start
            if ((array < 0) | (array >= self.counts.reshape(self.shape))).any():
                raise ValueError(f"the {self.leaf} is {(array + self.start).tolist()}, which is not"
                                 f" in {self.leaf.space}")
            return array.astype(self.dtype)  # counted from 0
        with np.errstate(over="ignore"):
            array = array.astype(self.dtype, copy=False)
        if self.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
            row, place = divmod(int(finite.argmin()), math.prod(self.shape))
            raise NonFiniteValue(f"{self.leaf}[{place}] is {array.reshape(-1)[finite.argmin()]} in"
                                 " float32" + f", in row {row}" * bool(lead))
        return array

    def encode(self, array: np.ndarray) -> np.ndarray:
        """f32 [n width] of stored values [n ...]: choices one-hot, everything else unchanged."""
        flat = array.reshape(len(array), math.prod(self.shape))
        if not self.one_hot:
            return flat.astype(np.float32)
        factors = [flat[:, i:i + 1] == np.arange(count) for i, count in enumerate(self.counts)]
        return np.concatenate(factors, 1).astype(np.float32)


class ObservationLayout:
    """The observations of one space: their leaves, and the index of the action mask, if any.

    `store` is how one is stored. `network_space` is the space of a network's input: without the
    mask, and without the Dict that masks.Masked has put around it (`wrapped`). Raises SpaceError
    for spaces without support.
    """

    def __init__(self, space: Space, act_space: Space):
        self.mask = mask_leaf(space, act_space) if isinstance(space, Dict) else None
        self.wrapped = isinstance(space, MaskedDict) and self.mask is not None
        self.factors, self.network_space = None, space
        if self.mask is not None:
            self.factors = choice_counts(act_space)
            rest = [(key, part) for key, part in subspaces(space) if key != MASK]
            self.network_space = rest[0][1] if self.wrapped else Dict(rest)
            space = Dict([(key, MultiBinary(part.shape[0]) if key == MASK else part)
                          for key, part in subspaces(space)])  # any mask is stored as bool
        self.space, self.act_space, self.store = space, act_space, observation_storage(space)
        self.leaves = [StoredLeaf(leaf) for leaf in leaves(space)]
        self.is_box = isinstance(space, Box)

    def to_arrays(self, value: Any, lead: tuple[int, ...] = ()) -> list[np.ndarray]:
        """The arrays [*lead ...] of an observation, or of a batch of them, one for each leaf.

        Raises ValueError if it is not an element of the space.
        """
        try:
            parts = [stored.leaf.of(value) for stored in self.leaves]
        except (KeyError, IndexError, TypeError) as error:
            fault = f"has no key {error}" if isinstance(value, dict) and isinstance(
                self.space, Dict) else f"is {type(value).__name__}, not an element of {self.space}"
            raise ValueError(f"the observation {fault}") from error
        return [stored.to_array(part, lead) for stored, part in zip(self.leaves, parts)]

    def rows(self, values: Sequence[Any]) -> np.ndarray:
        """Single observations as stored rows [b ...]; raises ValueError as `to_arrays`."""
        rows = np.zeros((len(values), *self.store.shape), self.store.dtype)
        for i, value in enumerate(values):
            for field, array in zip(leaf_arrays(rows), self.to_arrays(value)):
                field[i] = array
        return rows

    def batch(self, value: Any, count: int) -> np.ndarray:
        """A batch of `count` as stored rows [count ...]; raises ValueError as `to_arrays`."""
        rows = np.zeros((count, *self.store.shape), self.store.dtype)
        for field, array in zip(leaf_arrays(rows), self.to_arrays(value, (count,))):
            field[...] = array
        return rows

    def batch_shape(self, value: Any) -> tuple[int, ...]:
        """() for one observation, (b,) for a batch of them.

        Decided by the first leaf that is no action mask; ValueError if it has other axes.
        """
        stored = self.leaves[int(self.mask == 0)]
        shape = np.shape(stored.leaf.of(value))
        extra = len(shape) - len(stored.shape)
        if extra not in (0, 1) or shape[extra:] != stored.shape:
            raise ValueError(f"the {stored.leaf} has shape {shape}, its space {stored.shape}")
        return shape[:extra]

    def split(self, structure: Any) -> list[np.ndarray]:
        """The leaves, arrays, of tensors in the structure of the space."""
        return [stored.leaf.of(structure).cpu().numpy() for stored in self.leaves]

    def structure(self, arrays: Sequence[Any]) -> Any:
        """The leaves, arrays or tensors, in the structure of the space."""
        return build_structure(self.space, iter(arrays))

    def legal(self, rows: np.ndarray) -> np.ndarray | None:
        """The action masks, bool [n choices], of stored observations [n ...]; None without one."""
        return None if self.mask is None else leaf_arrays(rows)[self.mask]

    def unusable(self, rows: np.ndarray) -> tuple[int, ValueError] | None:
        """(row, error) of the first stored observation of [n ...] on which no policy can act.

        A number is not finite, or the mask forbids every action. None if there is no such row.
        """
        if rows.dtype == np.float32 and (at := kernels.first_nonfinite(rows)) >= 0:
            row, place = divmod(at, max(1, rows[0].size))
            return row, NonFiniteValue(f"observation[{place}] is {rows.reshape(-1)[at]} in float32")
        if self.mask is None:
            return None
        starts = np.cumsum(self.factors) - self.factors
        free = np.logical_or.reduceat(self.legal(rows), starts, axis=1)
        if free.all():
            return None
        row, factor = map(int, np.argwhere(~free)[0])
        which = f" of its choice {factor}" if len(starts) > 1 else ""
        return row, ValueError(f"the action mask forbids every action{which}")



def with_mask(obs: Any, mask: Any) -> dict:
    """An observation with the action mask, or a batch, from one that lacks it, and that mask."""
    return {**(obs if isinstance(obs, dict) else {OBS_KEY: obs}), MASK: mask}


def parse_mask(mask: Any, size: int, where: str, lead: tuple[int, ...] = ()) -> np.ndarray:
    """An action mask, of any shape behind `lead`, as bool [*lead size].

    Raises ValueError, which names `where` it was found, if it is no mask.
    """
    array = np.asarray(mask)
    binary = array.dtype.kind in "biuf" and ((array == 0) | (array == 1)).all()
    if not binary or array.size != math.prod(lead) * size or array.shape[:len(lead)] != lead:
        found = f"of shape {array.shape}" if binary else repr(mask)
        each = f" for each of {lead[0]} observations" if lead else ""
        raise ValueError(f"{where} is {found}, not {size} flags{each}, one for each choice of each"
                         " factor")
    return array.reshape(*lead, size).astype(bool)


class ObservationEncoding:
    """The leaves that a network sees, all but the action mask, and the columns that encode them.

    `images` are the leaves, counted without the mask, that the network sees as images. `numbers`
    are flags of leaves: True for those with moments, none without `norm_obs`; `normalised`,
    bool [o], the same of columns.
    """

    def __init__(self, layout: ObservationLayout, images: Sequence[int] = (),
                 norm_obs: bool = True):
        self.mask, self.images = layout.mask, images
        self.leaves = [leaf for i, leaf in enumerate(layout.leaves) if i != layout.mask]
        widths = [leaf.width for leaf in self.leaves]
        self.columns = [slice(end - width, end) for width, end in zip(widths, np.cumsum(widths))]
        self.numbers = [norm_obs and leaf.numeric and i not in images
                        for i, leaf in enumerate(self.leaves)]
        self.size, self.normalised = sum(widths), np.repeat(self.numbers, widths)
        self.identity = layout.is_box and (layout.store.dtype == "<f4" or len(images) == 1)

    def encode(self, arrays: Sequence[np.ndarray], numbers_only: bool = False) -> np.ndarray:
        """f32 [n o] of the leaves [n ...] of stored observations; a view if it is one float Box.

        With `numbers_only` the columns that have moments. An image that is the whole observation
        is a view of its bytes; others are not encoded here, because only torch has convolutions
        beside columns.
        """
        if self.identity:
            return arrays[0].reshape(len(arrays[0]), self.size)
        visible = [array for i, array in enumerate(arrays) if i != self.mask]
        return np.concatenate([self.scaled(i, leaf.encode(array)) for i, (leaf, array) in enumerate(
            zip(self.leaves, visible)) if self.numbers[i] or not numbers_only], 1)

    def scaled(self, i: int, x: Any) -> Any:
        """Values x, f32 in numpy or torch, of leaf `i`: images from 0 to 1, boards as they are."""
        leaf = self.leaves[i]
        if leaf.like_image:
            return x if self.numbers[i] else x / leaf.image_range[1]
        if i in self.images and not leaf.board:
            low, high = leaf.image_range
            return (x - low if low else x) / (high - low)  # bytes become floats in one pass
        return x
