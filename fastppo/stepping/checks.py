"""Checks of what an environment's step returns: reward, observation, end flags."""

import numpy as np

from fastppo.envs.spaces import can_store

REWARD_MAX = float(np.finfo(np.float32).max)
BOOL_TYPES = bool, np.bool_
SCALAR_TYPES = frozenset({int, float, np.float32, np.float64, np.int32, np.int64})  # fast to check


def checked_reward(rew) -> float:
    """`rew` as a float; raises ValueError for what is not one finite real number in float32."""
    if type(rew) in SCALAR_TYPES and abs(rew) <= REWARD_MAX:
        return float(rew)
    kind = getattr(getattr(rew, "dtype", None), "kind", "f")  # torch's dtypes have none
    try:
        real = not isinstance(rew, (str, bytes)) and kind not in "cSUmM" and np.ndim(rew) == 0
        value = float(rew) if real else np.nan
    except (TypeError, ValueError, RuntimeError):  # as numpy and torch refuse it
        value = np.nan
    if not abs(value) <= REWARD_MAX:
        raise ValueError(f"the reward is {rew!r}, not one finite number in float32")
    return value


def checked_observation(obs, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """`obs` as an array of its space's shape that `dtype` can keep; raises ValueError otherwise."""
    array = np.asarray(obs)
    if array.shape != shape:
        raise ValueError(f"the observation has shape {array.shape}, its space {shape}")
    if not can_store(dtype, array.dtype):
        raise ValueError(f"the observation is {array.dtype}, which {dtype} does not keep")
    return array


def checked_flag(value, name: str = "terminated or truncated") -> bool:
    """`value` as a bool; raises ValueError for what is none, None above all."""
    if isinstance(value, BOOL_TYPES):
        return bool(value)
    if value is None or isinstance(value, (str, bytes)) or np.ndim(value) or value not in (0, 1):
        raise ValueError(f"{name} is {value!r}, not True or False")
    return bool(value)
