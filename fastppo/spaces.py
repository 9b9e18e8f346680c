"""Spaces: what of an observation is stored, how a stored action becomes the environment's.

Served: Box observations of any shape and dtype; Discrete actions with any start and floating Box
actions of any shape and bounds. Nothing here imports torch: workers live by this module.
"""

import math
from typing import Any, Callable, NamedTuple

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

from .errors import SpaceError
from .remedies import wrapper


class Store(NamedTuple):
    """How one observation or action is kept: numpy dtype, and shape of one environment's row."""

    dtype: str
    shape: tuple[int, ...]


def check_spaces(obs_space: Space, act_space: Space, env_name: str = "") -> None:
    """Raise SpaceError for spaces that are not served; where neither is, one fix for both."""
    obs, act = _unserved_observation(obs_space), _unserved_action(act_space)
    if obs or act:
        fix = wrapper(env_name, obs_space if obs else None, act_space if act else None)
        raise SpaceError("; and ".join(filter(None, (obs, act))), fix)
    observation_store(obs_space)
    action_store(act_space)


def observation_store(space: Space) -> Store:
    """uint8 and bool as they are, any other Box as float32; raises SpaceError for other spaces."""
    if why := _unserved_observation(space):
        raise SpaceError(why, wrapper("", space, None))
    if math.prod(space.shape) == 0:
        raise SpaceError(f"observations of the space {_short(space)} are empty",
                         "return at least one number, such as np.zeros(1, np.float32)")
    kept = space.dtype in (np.dtype("u1"), np.dtype("?"))
    return Store(space.dtype.str if kept else "<f4", space.shape)


def action_store(space: Space) -> Store:
    """int64 scalars for Discrete, one flat float32 row for Box; SpaceError for other spaces."""
    if why := _unserved_action(space):
        raise SpaceError(why, wrapper("", None, space))
    if isinstance(space, Discrete):
        return Store("<i8", ())
    if math.prod(space.shape) == 0:
        raise SpaceError(f"actions of the space {_short(space)} are empty: nothing can be learnt",
                         "have at least one number to choose, such as Box(-1, 1, (1,))")
    return Store("<f4", (math.prod(space.shape),))


def keeps(dtype: np.dtype, given: np.dtype) -> bool:
    """Whether observations of `given`, in any byte order, are kept as `dtype` without surprise."""
    return given.char in {"|u1": "?B", "|b1": "?"}.get(np.dtype(dtype).str, "?bBhHiIlLqQefdg")


def to_env(space: Space) -> Callable[[np.ndarray], list[Any]]:
    """The function from stored actions [n ...] to n actions of the environment.

    Discrete: `act + start`; Box: clipped to the bounds, in the space's dtype and shape. The arrays
    it returns are fresh, so an environment may keep them.
    """
    if isinstance(space, Discrete):
        dtype, start = space.dtype, space.start
        return lambda act: list((act + start).astype(dtype, copy=False))
    shape, dtype = space.shape, space.dtype
    low, high = space.low.reshape(-1), space.high.reshape(-1)

    def box(act: np.ndarray) -> list[Any]:
        actions = np.clip(act, low, high).astype(dtype).reshape(len(act), *shape)
        return list(actions) if shape else [row.reshape(()) for row in actions[:, None]]
    return box


def stacked(space: Space, actions: list) -> np.ndarray:
    """The environment's actions, any number of them, as one array [n ...] of the space's dtype."""
    return np.array(actions, space.dtype).reshape(-1, *space.shape)


def random_actions(space: Space) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The function from noise, uniform u and normal z [n k], to n uniformly random stored actions.

    Without two finite bounds a Box has no uniform law: then exponential from the one bound, or
    normal, as Gymnasium's own `sample` has it.
    """
    if isinstance(space, Discrete):
        return lambda u, z: np.minimum((u[:, 0] * space.n).astype(np.int64), space.n - 1)
    low, high = space.low.reshape(-1).astype("f8"), space.high.reshape(-1).astype("f8")
    below, above = np.isfinite(low), np.isfinite(high)
    base, top = np.where(below, low, 0.0), np.where(above, high, 0.0)

    def box(u: np.ndarray, z: np.ndarray) -> np.ndarray:
        tail = -np.log1p(-u.astype("f8"))
        open_ended = np.where(below, base + tail, np.where(above, top - tail, z))
        return np.where(below & above, base + (top - base) * u, open_ended).astype("f4")
    return box


def noise_size(space: Space) -> int:
    """Random numbers one action takes: 1 for Discrete, its components for Box."""
    return math.prod(action_store(space).shape)


def _unserved_observation(space: Space) -> str:
    return "" if isinstance(space, Box) else (
        f"observations of the space {_short(space)} are not served yet, only Box")


def _unserved_action(space: Space) -> str:
    floating = isinstance(space, Box) and (space.dtype.kind == "f" or math.prod(space.shape) == 0)
    return "" if floating or isinstance(space, Discrete) else (
        f"actions of the space {_short(space)} are not served yet, only Discrete and floating Box")


def _short(space: Space) -> str:
    text = str(space)
    return text if len(text) <= 120 else text[:117] + "..."
