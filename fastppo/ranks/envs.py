"""The environments of one rank, whose rollouts are completed by those of the other ranks.

    the rank's environments step into columns [first, last) of the arena  ->  the other columns of
    act logp val raw nxt term trunc ... come from the other ranks; observations stay where they are
"""

from typing import Any

import numpy as np

from fastppo.machine.arena import Arena
from fastppo.ranks.ranks import Ranks
from fastppo.stepping.episodes import EPISODE_WINDOW, EpisodeInfos, read_infos, rows_by_step
from fastppo.stepping.replay import ResumedEpisodes

# Arrays [t e ...] that every rank has completely after a rollout.
EXCHANGED = ("act", "logp", "val", "raw", "nxt", "term", "trunc", "valid", "same_game", "total",
             "length")


class RankEnvs:
    """The calls of a Serial on `vec`, the environments [first, last) of a rank.

    After a rollout all ranks have the same arena but for the observations, of which only the last
    ones are exchanged: a checkpoint of one rank is one of the whole run.
    """

    def __init__(self, vec: Any, arena: Arena, ranks: Ranks):
        self.vec, self.arena, self.ranks = vec, arena, ranks
        count = arena["act"].shape[1]
        self.first, self.last = ranks.first(count), ranks.last(count)
        self.exchanged = -1  # the last iteration

    def __getattr__(self, name: str) -> Any:
        return getattr(self.vec, name)

    def begin(self, resumed: ResumedEpisodes | None = None) -> list[int]:
        """See Serial.begin; the environments that cannot continue are those of all ranks."""
        own = self.vec.begin(resumed and resumed.part(self.first, self.last))
        return [e for found in self.ranks.gather([self.first + e for e in own]) for e in found]

    def rollout(self, iteration: int) -> None:
        """Does what Serial.rollout does, and exchanges it."""
        self.vec.rollout(iteration)
        if iteration != self.exchanged:
            own = slice(self.first, self.last)
            arrays = [array[:, own].copy() for array in self._shared_arrays()]
            self._take(self.ranks.gather((arrays, read_infos(self.arena))))
            self.exchanged = iteration

    def _shared_arrays(self) -> list[np.ndarray]:
        """Views [t e ...] of all that is exchanged; the last observations as one row."""
        last = rows_by_step(self.arena["obs"], len(self.arena["raw"]))[-1]
        return [*(self.arena[name] for name in EXCHANGED), last[None]]

    def _take(self, parts: list[tuple[list[np.ndarray], dict]]) -> None:
        """Fills the columns of all ranks, and merges the infos of their episodes."""
        for views, arrays in zip(self._shared_arrays(), zip(*(arrays for arrays, _ in parts))):
            np.concatenate(arrays, 1, out=views)
        merged, slots = EpisodeInfos(), self.arena["infos"]
        infos = sorted(pair for _, found in parts for pair in found.items())
        for slot in slots:
            merged.write(slot)
        merged.scalars = dict(infos[-EPISODE_WINDOW:])
        merged.write(slots[0])
