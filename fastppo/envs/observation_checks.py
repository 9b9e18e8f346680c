"""Finds stored observations on which nothing can act."""

import numpy as np

from fastppo.envs.observations import ObservationLayout
from fastppo.machine import kernels


def find_unusable(rows: np.ndarray, seen: ObservationLayout) -> tuple[int, ValueError] | None:
    """(row, why) of the first stored observation of [n ...] on which nobody can act.

    A number of it is not finite, or its mask forbids every action.
    """
    if rows.dtype == np.float32 and (at := kernels.first_nonfinite(rows)) >= 0:
        return describe_nonfinite(rows, at)
    return seen.stuck(rows)


def describe_nonfinite(rows: np.ndarray, at: int) -> tuple[int, ValueError]:
    """The environment whose number at the flat index `at` of rows [e ...] is not finite; why."""
    e, index = divmod(at, max(1, rows[0].size))
    return e, ValueError(f"observation[{index}] is {rows.reshape(-1)[at]} in float32")
