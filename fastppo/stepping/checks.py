"""Checks of what an environment returns: reward and flags of a step, and the info of a reset."""

from typing import Mapping

import numpy as np

from fastppo.envs.faults import NonFiniteValue

REWARD_MAX = float(np.finfo(np.float32).max)
# A reward of one of these types is checked faster.
SCALAR_TYPES = frozenset({int, float, np.float32, np.float64, np.int32, np.int64})


def checked_reward(rew) -> float:
    """`rew` as a float; raises ValueError unless it is one real number, finite in float32."""
    if type(rew) in SCALAR_TYPES and abs(rew) <= REWARD_MAX:
        return float(rew)
    kind = getattr(getattr(rew, "dtype", None), "kind", "f")  # torch's dtypes have none
    try:
        if isinstance(rew, (str, bytes)) or kind in "cSUmM" or np.ndim(rew):
            raise TypeError
        value = float(rew)
    except (TypeError, ValueError, RuntimeError):  # numpy and torch raise different ones
        raise ValueError(f"the reward is {rew!r}, not a number") from None
    if not abs(value) <= REWARD_MAX:
        raise NonFiniteValue(f"the reward is {value}, not finite in float32")
    return value


def check_info(info: object) -> None:
    """Raises ValueError unless `info` is a mapping, as dicts are."""
    if not isinstance(info, Mapping):
        raise ValueError(f"the info is {type(info).__name__}, not a dict")


def checked_flag(value, name: str = "terminated or truncated") -> bool:
    """`value` as a bool; raises ValueError for other values, such as None."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if value is None or isinstance(value, (str, bytes)) or np.ndim(value) or value not in (0, 1):
        raise ValueError(f"{name} is {value!r}, not True or False")
    return bool(value)
