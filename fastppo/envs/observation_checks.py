"""Finds stored observations from which no policy can act."""

import numpy as np

from fastppo.envs.observations import ObservationLayout
from fastppo.machine import kernels


def find_unusable(rows: np.ndarray, seen: ObservationLayout) -> tuple[int, ValueError] | None:
    """(row, error) of the first stored observation of [e ...] that a policy cannot act on.

    One of its numbers is not finite, or its mask forbids every action. None if there is none.
    """
    if rows.dtype == np.float32 and (at := kernels.first_nonfinite(rows)) >= 0:
        row, place = divmod(at, max(1, rows[0].size))
        return row, ValueError(f"observation[{place}] is {rows.reshape(-1)[at]} in float32")
    return seen.stuck(rows)
