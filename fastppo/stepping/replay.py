"""Exact continuation of an interrupted rollout: its progress, and the actions to replay.

An episode is a function of its seed and its actions. So the state of an environment is never saved:
an environment is reset with the seed of its episode, and takes the logged actions again.
"""

import numpy as np

from fastppo.errors import EnvError
from fastppo.settings.fixes import Set

REPLAY_LIMIT = 100_000  # longest replay in steps


class ActionLog:
    """The stored actions of running episodes, to replay them.

    `act` [t e ...] has the actions of the current rollout. Those of earlier rollouts are copies.
    """

    def __init__(self, act: np.ndarray):
        self.act = act
        self.earlier: dict[int, np.ndarray] = {}  # first step of a rollout -> act [t e ...]

    def record(self, origin: int, steps: int, oldest: int) -> None:
        """Copies a rollout that began at step `origin`; forgets what is before step `oldest`."""
        self.earlier[origin] = self.act[:steps].copy()
        needed = max(oldest, origin + steps - REPLAY_LIMIT)
        self.earlier = {first: act for first, act in self.earlier.items()
                        if first + len(act) > needed}

    def actions(self, e: int, start: int, origin: int, t: int) -> np.ndarray:
        """The stored actions [n ...] of environment e from step `start` to before step origin + t.

        `origin` is the first step of the current rollout. Raises EnvError for too many actions.
        """
        stop = origin + t
        if stop - start > REPLAY_LIMIT:
            raise EnvError(f"environment {e} was interrupted in step {stop - start} of its episode,"
                           f" but only {REPLAY_LIMIT} steps can be replayed: this run cannot go on."
                           " An interrupt never reaches a worker process", Set(num_workers=1))
        rollouts = {**self.earlier, origin: self.act}
        return np.concatenate([act[max(start - first, 0):max(stop - first, 0), e]
                               for first, act in rollouts.items()])


class RolloutProgress:
    """Which environments have taken which step of a rollout.

    All have taken the steps before `t`; environments before `done` have also taken step `t`. The
    one called `stepping`, if any, may be anywhere inside that step. A rollout called again after an
    interrupt continues here.
    """

    def __init__(self, iteration: int | None = None):
        self.iteration = iteration
        self.reach(0, 0)

    def reach(self, t: int, done: int) -> None:
        """Environments before `done` have taken step `t`, and no environment is inside it."""
        self.t, self.done, self.stepping = t, done, None
