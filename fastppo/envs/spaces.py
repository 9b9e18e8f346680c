"""Spaces: their leaves, and how an observation or action is stored.

    Box                      float32; uint8 and bool unchanged
    Discrete, MultiDiscrete  int32, counted from 0
    MultiBinary              bool
    Dict, Tuple of these     one record with an array for each leaf

Worker processes import this module, so it must not import torch.
"""

import math
from typing import Any, Callable, Iterator, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from fastppo.envs.env_hints import wrapper
from fastppo.errors import SpaceError

CHOICES = Discrete, MultiDiscrete, MultiBinary  # spaces whose actions a mask can forbid
MASKED_LOGIT = -1e38  # the logit of an illegal action: its probability is exactly 0
MASK = "action_mask"  # the key of the action mask in a Dict observation
OBS_KEY = "obs"  # the key of the observation beside a mask that masks.Masked has put there
MAX_DISCRETE = 1 << 20  # choices of one Discrete: each is a column of the network's input


class MaskedDict(Dict):
    """Dict(obs=..., action_mask=...) that masks.Masked has made of observations that are no Dict.

    A network gets the bare observation. A user's own Dict with these keys is equal to it, but a
    network gets it as a Dict.
    """


class Storage(NamedTuple):
    """The numpy dtype and the shape in which one observation or action is stored."""

    dtype: str | np.dtype
    shape: tuple[int, ...]


class Leaf(NamedTuple):
    """One array of a structured observation or action: its path of keys, and its space."""

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
    """The parts of a Dict or Tuple by key or index; an empty list for any other space."""
    if isinstance(space, Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, Tuple) else []


def leaves(space: Space, path: tuple = ()) -> list[Leaf]:
    """The leaves of `space`; raises SpaceError if one has no fixed shape."""
    if isinstance(space, (Dict, Tuple)):
        return [leaf for key, part in subspaces(space) for leaf in leaves(part, (*path, key))]
    if not isinstance(space, (Box, *CHOICES)):
        raise SpaceError(f"a vector environment cannot batch the space {space}",
                         "map it to Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple"
                         " of them, with a wrapper")
    return [Leaf(path, space)]


def build_structure(space: Space, values: Iterator) -> Any:
    """The structure of `space`, its leaves taken from `values` in the order of `leaves`."""
    if isinstance(space, Dict):
        return {key: build_structure(part, values) for key, part in subspaces(space)}
    if isinstance(space, Tuple):
        return tuple(build_structure(part, values) for _, part in subspaces(space))
    return next(values)


def tree_map(function: Callable[[Any], Any], value: Any) -> Any:
    """`value`, an array or tensor or a structure of them, with `function` applied to each."""
    if isinstance(value, dict):
        return {key: tree_map(function, part) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [tree_map(function, part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return function(value)


def check_spaces(obs_space: Space, act_space: Space, env_name: str = "") -> None:
    """Raise SpaceError for spaces that are not served; one fix mends both."""
    obs, act = _unserved("observations", obs_space), _unserved("actions", act_space)
    if obs or act:
        fix = wrapper(env_name, obs_space if obs else None, act_space if act else None)
        raise SpaceError("; and ".join(filter(None, (obs, act))), fix)
    observation_storage(obs_space)
    action_storage(act_space)


def leaf_storage(space: Space) -> Storage:
    """The storage of an observation of a space without parts; raises SpaceError if it has none."""
    if math.prod(space.shape) == 0:
        raise _empty_observations(space)
    if isinstance(space, MultiBinary):
        return Storage("|b1", space.shape)
    if isinstance(space, CHOICES):
        if (most := int(np.max(choice_counts(space)))) > MAX_DISCRETE:
            raise SpaceError(f"the space {_abbreviate(space)} has {most:,} choices, each of which"
                             " would be a column of the network's input",
                             "give a Box or a MultiDiscrete of its digits with a wrapper")
        return Storage("<i4", space.shape)
    unchanged = space.dtype in (np.dtype("u1"), np.dtype("?"))
    return Storage(space.dtype.str if unchanged else "<f4", space.shape)


def observation_storage(space: Space) -> Storage:
    """The storage of an observation: one array, or a record with a field ("0", "1", ...) a leaf.

    Raises SpaceError for spaces that are not served.
    """
    if why := _unserved("observations", space):
        raise SpaceError(why, wrapper("", space, None))
    if not isinstance(space, (Dict, Tuple)):
        return leaf_storage(space)
    fields = [(str(i), *leaf_storage(leaf.space)) for i, leaf in enumerate(leaves(space))]
    if not fields:
        raise _empty_observations(space)
    return Storage(np.dtype(fields, align=True), ())


def leaf_arrays(rows: np.ndarray) -> list[np.ndarray]:
    """The arrays [n ...] of stored observations [n ...], one for each leaf, as views."""
    return [rows] if rows.dtype.names is None else [rows[name] for name in rows.dtype.names]


def choice_counts(space: Space) -> np.ndarray:
    """The number of choices of each factor of a discrete space, i64 [factors]; 2 for a bit."""
    if isinstance(space, Discrete):
        return np.array([int(space.n)])
    if isinstance(space, MultiDiscrete):
        return space.nvec.reshape(-1).astype(np.int64)
    return np.full(math.prod(space.shape), 2)


def choice_starts(space: Space) -> np.ndarray:
    """The number of the first choice of each factor of a discrete space, i64 of its shape."""
    return np.asarray(getattr(space, "start", 0), np.int64)


def action_storage(space: Space) -> Storage:
    """The storage of an action: int64 for choices, else float32.

    Discrete is a number; MultiDiscrete, MultiBinary and Box are flat rows; a Tuple or Dict is one
    float32 row of all its leaves, in which integers below 2^24 are exact. Raises SpaceError for
    spaces that are not served.
    """
    if why := _unserved("actions", space):
        raise SpaceError(why, wrapper("", None, space))
    if isinstance(space, Discrete):
        return Storage("<i8", ())
    sizes = [math.prod(leaf.space.shape) for leaf in leaves(space)]
    if not sizes or 0 in sizes:
        raise SpaceError(f"actions of the space {_abbreviate(space)} are empty: nothing can be"
                         " learnt", "have at least one number to choose, such as Box(-1, 1, (1,))")
    return Storage("<i8" if isinstance(space, CHOICES) else "<f4", (sum(sizes),))


def has_mask(obs_space: Space) -> bool:
    """Returns True if a Dict has a part with the key of an action mask."""
    return isinstance(obs_space, Dict) and MASK in obs_space.spaces


def mask_leaf(obs_space: Space, act_space: Space) -> int | None:
    """The index of the action mask among the leaves; None if there is no mask.

    The mask is the part "action_mask" of a Dict, for actions that are choices: a flag for every
    choice of every factor, one factor after the other. Raises SpaceError if it does not fit them.
    """
    if not (has_mask(obs_space) and isinstance(act_space, CHOICES)):
        return None
    mask, size = obs_space[MASK], int(choice_counts(act_space).sum())
    binary = isinstance(mask, MultiBinary) or isinstance(mask, Box) and (
        mask.dtype.kind in "biu" and (mask.low >= 0).all() and (mask.high <= 1).all())
    if not binary or mask.shape != (size,):
        raise SpaceError(f"observation['{MASK}'] of the space {_abbreviate(mask)} is no mask for"
                         f" the actions {_abbreviate(act_space)}, which have {size} choices",
                         f"gymnasium.spaces.MultiBinary({size}); or another key")
    if len(obs_space.spaces) == 1:
        raise SpaceError("observations are an action mask and nothing else",
                         "return beside it what actions depend on, such as np.zeros(1, np.float32)")
    return [leaf.path for leaf in leaves(obs_space)].index((MASK,))


def with_binary_mask(obs_space: Dict) -> Dict:
    """The space with its action mask as a MultiBinary, which is stored as bool."""
    return Dict([(key, MultiBinary(part.shape[0]) if key == MASK else part)
                 for key, part in subspaces(obs_space)])


def can_store(dtype: np.dtype, given: np.dtype) -> bool:
    """Returns True if arrays of `given`, in any byte order, can be stored as `dtype`.

    Only numbers can be stored as float32, only integers as int32, bytes and bool as uint8.
    """
    return given.char in {"|u1": "?B", "|b1": "?", "<i4": "?bBhHiIlLqQ"}.get(
        np.dtype(dtype).str, "?bBhHiIlLqQefdg")


def _empty_observations(space: Space) -> SpaceError:
    return SpaceError(f"observations of the space {_abbreviate(space)} are empty",
                      "return at least one number, such as np.zeros(1, np.float32)")


def _unserved(what: str, space: Space) -> str:
    """The reason why observations or actions of `space` are not served; "" if they are."""
    for _, part in subspaces(space):
        if why := _unserved(what, part):
            return why
    served = isinstance(space, (Box, Dict, Tuple, *CHOICES)) and space.dtype != np.dtype(complex)
    return "" if served else f"{what} of the space {_abbreviate(space)} are not served"


def _abbreviate(space: Space) -> str:
    text = str(space)
    return text if len(text) <= 120 else text[:117] + "..."
