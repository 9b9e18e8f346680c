"""Starts workers again after a fault, within a budget, and ends episodes that fail twice."""

import time
from typing import Sequence

from fastppo.errors import FaultPlace
from fastppo.workers.team import WorkerTeam

RESTARTS, SECONDS = 3, 600.0  # so many restarts in so many seconds
PAUSES = 0.0, 1.0, 5.0  # seconds before the first, second and third of them


class WorkerRestarts:
    """Starts the workers of a team again; `cuts` is that of their EpisodeRules.

    All of them start again, also those that have not failed: the same replay brings every
    environment to the beginning of the rollout, which is then collected once more.
    """

    def __init__(self, team: WorkerTeam, cuts: dict[tuple[int, int], int]):
        self.team, self.cuts = team, cuts
        self.count, self.times, self.failed = 0, [], set()

    def restart(self, places: Sequence[FaultPlace]) -> bool:
        """Starts the workers after a fault at `places`; False if the budget is used up."""
        now = time.monotonic()
        self.times = [before for before in self.times if now - before < SECONDS]
        if len(self.times) >= RESTARTS:
            return False
        for place in places:
            if place in self.failed:
                self.cuts[place.env, place.episode] = place.step
            self.failed.add(place)
        time.sleep(PAUSES[min(len(self.times), len(PAUSES) - 1)])
        self.times.append(time.monotonic())
        self.team.start()
        self.count += 1
        return True
