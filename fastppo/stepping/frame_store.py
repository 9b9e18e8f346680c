"""Stores each frame of stacked observations once."""

from typing import Sequence

import numpy as np

from fastppo.stepping.environments import RunningEpisode


class FrameStore:
    """The frames of the observations of environments [first, first + n), and which are in a stack.

    frames [n f ...] has the f = T + k frames of a rollout of T steps; the newest one of step t is
    frame t + k - 1. stacks i64 [t+1 n k] are the frames of an observation, counted over all
    environments. Those of step t are frame t or later ones.

    The observations themselves have two rows, for even and for odd steps: one is read while the
    next one is written.
    """

    def __init__(self, frames: np.ndarray, stacks: np.ndarray, first: int):
        self.frames, self.stacks, self.depth = frames, stacks, stacks.shape[2]
        self.base = np.arange(first, first + len(frames)) * frames.shape[1]

    def store_whole(self, rows: np.ndarray) -> None:
        """Stores all frames of observations [n k ...], those before the first step of a rollout."""
        last = len(self.stacks) - 1
        self.frames[:, last:] = rows
        self.stacks[last] = self.base[:, None] + last + np.arange(self.depth)

    def store(self, t: int, rows: np.ndarray, group: range, running: Sequence[RunningEpisode],
              now: int) -> None:
        """Stores the newest frames of the observations [n k ...] of row t for a `group`.

        Where the `running` [n] episode begins after step `now`, a stack is this frame alone.
        """
        part, newest = slice(group.start, group.stop), t + self.depth - 1
        self.frames[part, newest] = rows[part, -1]
        self.stacks[t, part, :-1] = self.stacks[t - 1, part, 1:]
        self.stacks[t, part, -1] = self.base[part] + newest
        for e in group:
            if running[e].start > now:
                self.stacks[t, e] = self.base[e] + newest


def carry_frames(frames: np.ndarray, stacks: np.ndarray) -> None:
    """Makes the last observations of a rollout the first ones of the next, see FrameStore."""
    if frames.size:
        depth, steps = stacks.shape[2], len(stacks) - 1
        frames[:, :depth] = frames[:, steps:]
        stacks[0] = stacks[steps] - steps


def rows_by_step(obs: np.ndarray, steps: int) -> list[np.ndarray]:
    """The row of the observations of each step, 0 to `steps`, in obs [t+1 e ...] or [2 e ...]."""
    return [obs[t % len(obs)] for t in range(steps + 1)]
