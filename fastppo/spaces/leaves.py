"""Spaces: the arrays of an observation or action, and how they are stored.

    Box                      float32; uint8 and bool as they are
    Discrete, MultiDiscrete  int32, minus their start
    MultiBinary              bool
    Dict, Tuple of these     one array for each leaf, in one record

This module does not import torch, because worker processes import it.
"""

import math
from typing import Any, Callable, Iterator, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from fastppo.errors import SpaceError

CHOICES = Discrete, MultiDiscrete, MultiBinary  # spaces whose actions a mask can forbid
MASKED_LOGIT = -1e38  # the logit of an illegal action: its probability is exactly 0
MASK = "action_mask"  # the key of the action mask in a Dict observation
# Keys in a game of several agents: the number of the agent, and the state of the game.
AGENT, STATE = "agent", "state"
OBS_KEY = "obs"  # the key of the observation in a MaskedDict
BOARD_SIDE = 8  # networks for images that are as small take boards of any size, padded to it
MAX_DISCRETE = 1 << 20  # choices of one Discrete: each is a column of the network's input or output
MAX_EXACT = 2**53  # the whole numbers up to here are exact in float64
WRAP = ("wrap the environment, to a Box or Discrete space: gymnasium.wrappers.TransformObservation"
        " or TransformAction (docs/spaces.md)")
NARROWER = "give the environment narrower bounds: gymnasium.wrappers.TransformAction"


class MaskedDict(Dict):
    """The Dict(obs=..., action_mask=...) that an ActionMaskWrapper makes of another space.

    It equals a user's own Dict with these keys, but a network sees the bare observation.
    """


class Storage(NamedTuple):
    """The dtype and shape in which an observation or action of one environment is stored."""

    dtype: str | np.dtype
    shape: tuple[int, ...]


class Leaf(NamedTuple):
    """One array of a structured observation or action: its keys from the outside in, and space."""

    path: tuple
    space: Space

    def of(self, value: Any) -> Any:
        """This leaf's part of an observation or action."""
        for key in self.path:
            value = value[key]
        return value

    def __str__(self) -> str:
        return "observation" + "".join(f"[{key!r}]" for key in self.path)


def subspaces(space: Space) -> list[tuple[Any, Space]]:
    """The (key, space) pairs of a Dict or Tuple; none for any other space."""
    if isinstance(space, Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, Tuple) else []


def leaves(space: Space, path: tuple = (), kind: str = "arrays") -> list[Leaf]:
    """The leaves of `space`, depth first; SpaceError if one has no fixed shape, or is complex.

    `kind`, for the error, is "observations" or "actions" if the space is known to be of them.
    """
    if isinstance(space, (Dict, Tuple)):
        return [leaf for key, part in subspaces(space) for leaf in leaves(part, (*path, key), kind)]
    if not isinstance(space, (Box, *CHOICES)) or space.dtype.kind == "c":
        raise SpaceError(f"{kind} of the space {brief_text(space)} are not supported", WRAP)
    return [Leaf(path, space)]


def build_structure(space: Space, values: Iterator) -> Any:
    """An element of `space`, with leaves from `values` in the order of `leaves`."""
    if isinstance(space, Dict):
        return {key: build_structure(part, values) for key, part in subspaces(space)}
    if isinstance(space, Tuple):
        return tuple(build_structure(part, values) for _, part in subspaces(space))
    return next(values)


def tree_map(function: Callable[[Any], Any], value: Any) -> Any:
    """`function` applied to each array or tensor in a structure of dicts and tuples."""
    if isinstance(value, dict):
        return {key: tree_map(function, part) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [tree_map(function, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return function(value)


def is_batch(obs: Any) -> bool:
    """True for arrays in the structure of a space, False for an array or list of observations."""
    return isinstance(obs, (dict, tuple)) or isinstance(obs, np.ndarray) and obs.dtype.kind != "O"


def channels_are_last(shape: tuple[int, ...]) -> bool:
    """True for an image of three axes whose channels are the last one, False for the first.

    They are the axis that differs from two equal ones, else the shortest one.
    """
    return len(shape) == 3 and shape[1] != shape[2] and (
        shape[0] == shape[1] or min(shape) == shape[2] != shape[0])


def observation_storage(space: Space) -> Storage:
    """The Storage of an observation: one array, or a record with one field for each leaf.

    The fields are "0", "1", ... Raises SpaceError for spaces without support.
    """
    parts = [leaf.space for leaf in leaves(space, kind="observations")]
    if not parts or any(0 in part.shape for part in parts):
        raise SpaceError(f"observations of the space {brief_text(space)} are empty",
                         "return at least one number, such as np.zeros(1, np.float32)")
    if isinstance(space, (Dict, Tuple)):
        fields = [(str(i), *observation_storage(part)) for i, part in enumerate(parts)]
        return Storage(np.dtype(fields, align=True), ())
    if isinstance(space, MultiBinary):
        return Storage("|b1", space.shape)
    if isinstance(space, Box):
        as_it_is = space.dtype in (np.dtype("u1"), np.dtype("?"))
        return Storage(space.dtype.str if as_it_is else "<f4", space.shape)
    return Storage("<i4", space.shape)


def leaf_arrays(rows: np.ndarray) -> list[np.ndarray]:
    """Views of the leaves [n ...] of stored observations [n ...]."""
    return [rows] if rows.dtype.names is None else [rows[name] for name in rows.dtype.names]


def choice_counts(space: Space) -> np.ndarray:
    """The number of choices of each factor of a discrete space, i64 [factors]; 2 for a bit.

    Raises SpaceError for a factor with more than MAX_DISCRETE.
    """
    if not isinstance(space, (Discrete, MultiDiscrete)):
        return np.full(math.prod(space.shape), 2)
    counts = np.reshape(space.n if isinstance(space, Discrete) else space.nvec, -1)
    if (most := counts.max(initial=0)) > MAX_DISCRETE:
        raise SpaceError(f"the space {brief_text(space)} has {most:,} choices, and each"
                         " would be a column of the network's input or output",
                         "give a Box or a MultiDiscrete of its digits with a wrapper")
    return counts.astype(np.int64)


def choice_starts(space: Space) -> np.ndarray:
    """The first choice of each factor of a discrete space, i64 of the space's shape."""
    return np.asarray(getattr(space, "start", 0), np.int64)


def action_storage(space: Space) -> Storage:
    """The Storage of an action: int64 for choices, otherwise float32; SpaceError without support.

    A Discrete is a number; a MultiDiscrete, MultiBinary or Box is a flat row; a Tuple or Dict is
    one float32 row of all its leaves (whole numbers below 2^24 are exact).
    """
    spaces = [leaf.space for leaf in leaves(space, kind="actions")]
    if isinstance(space, Discrete):
        return Storage("<i8", ())
    sizes = [math.prod(one.shape) for one in spaces]
    if not sizes or 0 in sizes:
        raise SpaceError(f"actions of the space {brief_text(space)} are empty: nothing can be"
                         " learnt", "give at least one number to choose, such as Box(-1, 1, (1,))")
    for one in spaces:
        whole = isinstance(one, Box) and one.dtype.kind in "iu"  # float64 must hold it exactly
        if whole and max(abs(int(one.low.min())), abs(int(one.high.max()))) > MAX_EXACT:
            raise SpaceError(f"actions of the space {brief_text(one)} have bounds beyond 2**53, but"
                             " they are sampled as floats", NARROWER)
    return Storage("<i8" if isinstance(space, CHOICES) else "<f4", (sum(sizes),))


def has_mask(obs_space: Space) -> bool:
    """Returns True for a Dict with the key of an action mask."""
    return isinstance(obs_space, Dict) and MASK in obs_space.spaces


def masked_space(obs_space: Space, act_space: Space) -> Dict:
    """The space of observations with the mask: a Dict gets one more part, others a MaskedDict."""
    mask = MultiBinary(int(choice_counts(act_space).sum()))
    if isinstance(obs_space, Dict):
        return Dict({**obs_space.spaces, MASK: mask})
    return MaskedDict({OBS_KEY: obs_space, MASK: mask})


def mask_leaf(obs_space: Space, act_space: Space) -> int | None:
    """The index of the leaf that is the action mask; None without one, or for other actions.

    A mask has one flag for each choice, one factor after the other. Raises SpaceError if
    "action_mask" has another shape, or is the only part of the observations.
    """
    if not (has_mask(obs_space) and isinstance(act_space, CHOICES)):
        return None
    mask, size = obs_space[MASK], int(choice_counts(act_space).sum())
    binary = isinstance(mask, MultiBinary) or isinstance(mask, Box) and (
        mask.dtype.kind in "biu" and (mask.low >= 0).all() and (mask.high <= 1).all())
    if not binary or mask.shape != (size,):
        raise SpaceError(f"observation['{MASK}'] of the space {brief_text(mask)} is no mask for"
                         f" the actions {brief_text(act_space)}, which have {size} choices",
                         f"make it gymnasium.spaces.MultiBinary({size}), or give it another name")
    if len(obs_space.spaces) == 1:
        raise SpaceError("observations are an action mask and nothing else",
                         "add a part that actions depend on, such as np.zeros(1, np.float32)")
    return [leaf.path for leaf in leaves(obs_space)].index((MASK,))


def can_store(dtype: np.dtype, given: np.dtype) -> bool:
    """Returns True if numbers of `given`, in any byte order, may be stored as `dtype`."""
    return given.char in {"|u1": "?B", "|b1": "?", "<i4": "?bBhHiIlLqQ"}.get(
        np.dtype(dtype).str, "?bBhHiIlLqQefdg")


def fitting_array(value: Any, name: Any, shape: tuple[int, ...], dtype: np.dtype,
                  fits: Callable[[np.dtype, np.dtype], bool] = can_store) -> np.ndarray:
    """`value` as an array of `shape`, whose own dtype `fits` to be kept as `dtype`, not converted.

    Raises ValueError, with its `name`, otherwise.
    """
    array = np.asarray(value)
    if array.dtype.kind in "OSU" and not isinstance(value, np.ndarray):
        raise ValueError(f"the {name} is {type(value).__name__}, not an array of numbers")
    if array.shape != shape:
        raise ValueError(f"the {name} has shape {array.shape}, its space {shape}")
    if not fits(dtype, array.dtype):
        raise ValueError(f"the {name} is {array.dtype}, which {dtype} does not keep")
    return array


def brief_text(space: Any, most: int = 120) -> str:
    """A space in at most `most` characters, with the lowest and the highest bound of a Box."""
    text = str(space)
    if isinstance(space, Dict):
        text = f"Dict({', '.join(f'{key!r}: {brief_text(one)}' for key, one in space.items())})"
    elif isinstance(space, Box) and "[" in text and space.low.size:
        text = f"Box{space.shape} {space.dtype} from {space.low.min()} to {space.high.max()}"
    return text if len(text) <= most else text[:most - 3] + "..."
