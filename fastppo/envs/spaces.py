"""Spaces: of which arrays an observation or action consists, and how an observation is kept.

    Box                      float32; uint8 and bool as they are
    Discrete, MultiDiscrete  int32, less their start
    MultiBinary              bool
    Dict, Tuple of these     one array a leaf, side by side in one record

Nothing here imports torch: workers live by this module.
"""

import math
from typing import Any, Callable, Iterator, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

from fastppo.envs.env_hints import wrapper
from fastppo.errors import SpaceError

CHOICES = Discrete, MultiDiscrete, MultiBinary  # spaces whose actions a mask can forbid
MASKED_LOGIT = -1e38  # the logit of an illegal action: its probability is exactly 0
MASK = "action_mask"  # the key of a Dict observation that says which actions are legal
OBS_KEY = "obs"  # the key beside a mask that masks.Masked has put there
MAX_DISCRETE = 1 << 20  # of one Discrete: each is a column of what a network sees


class MaskedDict(Dict):
    """Dict(obs=..., action_mask=...) that masks.Masked has made of observations that are no Dict.

    Equal to a user's own Dict with these keys, which keeps its structure in what a network sees.
    """


class Storage(NamedTuple):
    """How one observation or action is kept: numpy dtype, and shape of one environment's row."""

    dtype: str | np.dtype
    shape: tuple[int, ...]


class Leaf(NamedTuple):
    """One array of a structured observation or action: where it stands in it, and its space."""

    path: tuple
    space: Space

    def of(self, value: Any) -> Any:
        """The part of an observation or action that is this leaf's."""
        for key in self.path:
            value = value[key]
        return value

    @property
    def where(self) -> str:
        """Its place as one would index it: ['camera'][0]."""
        return "".join(f"[{key!r}]" for key in self.path)

    def __str__(self) -> str:
        return "observation" + self.where


def subspaces(space: Space) -> list[tuple[Any, Space]]:
    """The parts of a Dict or Tuple by key or place; none of any other space."""
    if isinstance(space, Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, Tuple) else []


def leaves(space: Space, path: tuple = ()) -> list[Leaf]:
    """The arrays that `space` consists of; raises SpaceError where one has no fixed shape."""
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
    """Raise SpaceError for spaces that are not served; where neither is, one fix for both."""
    obs, act = _unserved("observations", obs_space), _unserved("actions", act_space)
    if obs or act:
        fix = wrapper(env_name, obs_space if obs else None, act_space if act else None)
        raise SpaceError("; and ".join(filter(None, (obs, act))), fix)
    observation_storage(obs_space)
    action_storage(act_space)


def leaf_storage(space: Space) -> Storage:
    """How an observation of a space without parts is kept; SpaceError where that cannot be."""
    if why := _unserved("observations", space):
        raise SpaceError(why, wrapper("", space, None))
    if math.prod(space.shape) == 0:
        raise SpaceError(f"observations of the space {_short(space)} are empty",
                         "return at least one number, such as np.zeros(1, np.float32)")
    if isinstance(space, MultiBinary):
        return Storage("|b1", space.shape)
    if isinstance(space, CHOICES):
        if (most := int(np.max(choice_counts(space)))) > MAX_DISCRETE:
            raise SpaceError(f"the space {_short(space)} has {most:,} choices, each of which would"
                             " be a column of the network's input",
                             "give a Box or a MultiDiscrete of its digits with a wrapper")
        return Storage("<i4", space.shape)
    kept = space.dtype in (np.dtype("u1"), np.dtype("?"))
    return Storage(space.dtype.str if kept else "<f4", space.shape)


def observation_storage(space: Space) -> Storage:
    """How an observation is kept: as one array, or one record with a field a leaf ("0", "1", ...).

    Raises SpaceError for spaces that are not served.
    """
    if not isinstance(space, (Dict, Tuple)):
        return leaf_storage(space)
    if why := _unserved("observations", space):
        raise SpaceError(why, wrapper("", space, None))
    stores = [leaf_storage(leaf.space) for leaf in leaves(space)]
    if not stores:
        raise SpaceError(f"observations of the space {_short(space)} are empty",
                         "return at least one number, such as np.zeros(1, np.float32)")
    kinds = [(str(i), store.dtype, store.shape) for i, store in enumerate(stores)]
    return Storage(np.dtype(kinds, align=True), ())


def leaf_arrays(rows: np.ndarray) -> list[np.ndarray]:
    """The arrays [n ...] of stored observations [n ...], one a leaf, as views."""
    return [rows] if rows.dtype.names is None else [rows[name] for name in rows.dtype.names]


def choice_counts(space: Space) -> np.ndarray:
    """How many choices each factor of a discrete space has, i64 [factors]; 2 of each bit."""
    if isinstance(space, Discrete):
        return np.array([int(space.n)])
    if isinstance(space, MultiDiscrete):
        return space.nvec.reshape(-1).astype(np.int64)
    return np.full(math.prod(space.shape), 2)


def choice_starts(space: Space) -> np.ndarray:
    """The number that each factor of a discrete space counts from, i64 of the space's shape."""
    return np.asarray(getattr(space, "start", 0), np.int64)


def action_storage(space: Space) -> Storage:
    """How an action is kept: int64 for choices, float32 else; SpaceError for other spaces.

    Discrete is a number; MultiDiscrete, MultiBinary and Box are flat rows; a Tuple or Dict is one
    float32 row of all its leaves, in which integers below 2^24 are exact.
    """
    if why := _unserved("actions", space):
        raise SpaceError(why, wrapper("", None, space))
    if isinstance(space, Discrete):
        return Storage("<i8", ())
    size = sum(math.prod(leaf.space.shape) for leaf in leaves(space))
    if size == 0 or any(not math.prod(leaf.space.shape) for leaf in leaves(space)):
        raise SpaceError(f"actions of the space {_short(space)} are empty: nothing can be learnt",
                         "have at least one number to choose, such as Box(-1, 1, (1,))")
    return Storage("<i8" if isinstance(space, CHOICES) else "<f4", (size,))


def has_mask(obs_space: Space) -> bool:
    """Whether a part of a Dict is called as an action mask is."""
    return isinstance(obs_space, Dict) and MASK in obs_space.spaces


def mask_leaf(obs_space: Space, act_space: Space) -> int | None:
    """Which leaf of the observations is the action mask, if one is; SpaceError where none fits.

    It is the part "action_mask" of a Dict, for actions that are choices: a flag for every choice of
    every factor, one factor after the other.
    """
    if not (has_mask(obs_space) and isinstance(act_space, CHOICES)):
        return None
    mask, size = obs_space[MASK], int(choice_counts(act_space).sum())
    binary = isinstance(mask, MultiBinary) or isinstance(mask, Box) and (
        mask.dtype.kind in "biu" and (mask.low >= 0).all() and (mask.high <= 1).all())
    if not binary or mask.shape != (size,):
        raise SpaceError(f"observation['{MASK}'] of the space {_short(mask)} is no mask for the"
                         f" actions {_short(act_space)}, which have {size} choices",
                         f"gymnasium.spaces.MultiBinary({size}); or call it otherwise")
    if len(obs_space.spaces) == 1:
        raise SpaceError("observations are an action mask and nothing else",
                         "return beside it what actions depend on, such as np.zeros(1, np.float32)")
    return [leaf.path for leaf in leaves(obs_space)].index((MASK,))


def with_binary_mask(obs_space: Dict) -> Dict:
    """The space, its action mask a MultiBinary: so it is kept, whatever numbers it comes in."""
    return Dict([(key, MultiBinary(part.shape[0]) if key == MASK else part)
                 for key, part in subspaces(obs_space)])


def can_store(dtype: np.dtype, given: np.dtype) -> bool:
    """Whether observations of `given`, in any byte order, are kept as `dtype` without surprise."""
    return given.char in {"|u1": "?B", "|b1": "?", "<i4": "?bBhHiIlLqQ"}.get(
        np.dtype(dtype).str, "?bBhHiIlLqQefdg")


def _unserved(what: str, space: Space) -> str:
    """Why observations or actions of `space` are not served; "" where they are."""
    for _, part in subspaces(space):
        if why := _unserved(what, part):
            return why
    served = isinstance(space, (Box, Dict, Tuple, *CHOICES)) and space.dtype != np.dtype(complex)
    return "" if served else f"{what} of the space {_short(space)} are not served"


def _short(space: Space) -> str:
    text = str(space)
    return text if len(text) <= 120 else text[:117] + "..."
