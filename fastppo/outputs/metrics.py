"""The metrics of a run: time shares, episode statistics, explained variance."""

import logging
import time
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from fastppo.collect import Rollout
from fastppo.machine.arena import Arena
from fastppo.stepping.infos import EPISODE_WINDOW, MAX_INFO_KEYS, InfosByStep, read_infos

log = logging.getLogger("fastppo")

EVAL_RETURN = "eval/return_mean"
EVALUATION = "evaluate"  # of the clock; no training


class PartTimer:
    """Seconds spent in each named part: `with clock("update"): ...`; `part` is the one now."""

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self.part = ""

    @contextmanager
    def __call__(self, part: str):
        """Count the time inside the block to `part`."""
        start, self.part = time.monotonic(), part
        try:
            yield
        finally:
            self.part = ""
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - start

    def stats(self, step: int) -> dict[str, float]:
        """Steps per second of training, and each part's seconds as a share of training's.

        Evaluating is a part that is no training: it stands beside the others, which add up to 1.
        """
        busy = sum(spent for part, spent in self.seconds.items() if part != EVALUATION)
        shares = {f"time/{part}": spent / busy for part, spent in self.seconds.items()}
        return {"charts/SPS": step / busy, **shares}


class RecentEpisodes(NamedTuple):
    """The episodes so far; replaced whole, so that an interrupt never leaves half a rollout's."""

    iteration: int | None = None  # the last rollout of which they were taken
    recent: tuple[tuple[float, int, dict], ...] = ()  # return, length and numbers of the last ones
    count: int = 0
    names: tuple[str, ...] = ()  # of the numbers that are shown


class EpisodeMetrics:
    """The last finished episodes, and the metrics that follow from them."""

    def __init__(self):
        self.seen = RecentEpisodes()

    @property
    def recent(self) -> tuple[tuple[float, int, dict], ...]:
        """(return, length, numbers told) of the last WINDOW finished episodes."""
        return self.seen.recent

    @property
    def count(self) -> int:
        """How many episodes have finished."""
        return self.seen.count

    def add(self, arena: Arena, iteration: int) -> None:
        """Adds the episodes that ended in the rollout of an iteration; repeating it adds nothing."""
        self.take(arena["total"], arena["length"], read_infos(arena), iteration)

    def take(self, total: np.ndarray, length: np.ndarray, told: InfosByStep | None = None,
             iteration: int | None = None) -> None:
        """Add those that ended in a rollout: return f64 and length i64 [t e], 0 where none did.

        `told` is what they said at their end; the first SLOTS names are shown, for all of the run.
        The rollout of an `iteration` given again, after an interrupt, is taken once.
        """
        if iteration is not None and iteration == self.seen.iteration:
            return
        ended, told = np.argwhere(length > 0), told or {}
        last = [(float(total[t, e]), int(length[t, e]), told.get((t, e), {}))
                for t, e in ended[-EPISODE_WINDOW:].tolist()]
        names = dict.fromkeys([*self.seen.names, *(name for *_, found in last for name in found)])
        self.seen = RecentEpisodes(iteration, (*self.recent, *last)[-EPISODE_WINDOW:], self.count + len(ended),
                         tuple(names)[:MAX_INFO_KEYS])

    def stats(self) -> dict[str, float]:
        """Means over the last 100, or those of them that told a number; none before the first."""
        if not self.recent:
            return {}
        total, length, told = zip(*self.recent)
        means = {"charts/episodic_return": float(np.mean(total)),
                 "charts/episodic_length": float(np.mean(length)),
                 "charts/episodes": float(self.count)}
        for name in self.seen.names:
            if found := [numbers[name] for numbers in told if name in numbers]:
                means[f"env/{name}"] = float(np.mean(found))
        return means


def explained_variance(rollout: Rollout) -> float:
    """1 - var(ret - val) / var(ret) over valid rows: 1 for a perfect critic, 0 for constant ret."""
    ret, val = rollout.ret[rollout.valid].double(), rollout.val[rollout.valid].double()
    variance = ret.var(correction=0).item() if len(ret) else 0.0
    return 1 - (ret - val).var(correction=0).item() / variance if variance > 0 else 0.0
