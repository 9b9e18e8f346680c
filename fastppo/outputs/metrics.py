"""The metrics of a run: time shares, episode statistics, explained variance."""

import time
from contextlib import contextmanager
from typing import Any, NamedTuple, Sequence

import numpy as np

from fastppo.collect import Rollout
from fastppo.envs.atari import GAME_LENGTH, GAME_RETURN
from fastppo.machine import limits
from fastppo.machine.arena import Arena
from fastppo.settings import metric_names
from fastppo.stepping.episodes import EPISODE_WINDOW, MAX_INFO_KEYS, InfosByStep, read_infos


class PartTimer:
    """Seconds in each named part: `with clock("update"): ...`.

    `part` is the current one, and `since` the time at which it, or the last one, began.
    `times` f64 [e+1 3], of the last rollout, divide "collect" (`within`), see parts_of_collect.
    """

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self.within: dict[str, float] = {}
        self.part, self.since, self.times = "", time.monotonic(), np.full((1, 3), np.nan)

    @contextmanager
    def __call__(self, part: str):
        """Counts the time inside the block to `part`."""
        start = self.since = time.monotonic()
        self.part = part
        try:
            yield
        finally:
            self.part = ""
            end = time.monotonic()
            self.seconds[part] = self.seconds.get(part, 0.0) + end - start
        if part == "collect":
            for name, inside in parts_of_collect(start, end, self.times).items():
                self.within[name] = self.within.get(name, 0.0) + inside

    @property
    def aside(self) -> float:
        """Seconds in parts that are not training."""
        return sum(self.seconds.get(part, 0.0) for part in metric_names.ASIDE)

    def stats(self, step: int) -> dict[str, float]:
        """Steps per second of training, and the seconds of each part as a share of training's.

        The shares of the parts of training add up to 1; evaluations and videos are none of them.
        The parts of collect, measured since this process began, add up to the share of collect.
        """
        busy = sum(spent for part, spent in self.seconds.items() if part not in metric_names.ASIDE)
        shares = {f"time/{part}": spent / busy for part, spent in self.seconds.items()}
        collect = shares.get("time/collect", 0.0) / (sum(self.within.values()) or 1.0)
        inside = {f"time/{part}": spent * collect for part, spent in self.within.items()}
        return {metric_names.SPEED: step / busy, **shares, **inside}


def parts_of_collect(start: float, end: float, times: np.ndarray) -> dict[str, float]:
    """The seconds from `start` to `end` of collecting a rollout, divided into its parts.

    `times` f64 [e+1 3]: see docs/vocabulary.md. Where the processes that take steps also act, the
    policy's part is its share of the time of all of them.
    """
    last_row = times[-1:]
    acting, begun, ended = (last_row if np.isfinite(last_row).all() else
                            times[np.isfinite(times[:, 0])]).T
    if not len(begun):
        return {}
    first, last = max(start, float(begun.min())), min(end, float(ended.max()))
    policy = (last - first) * float(acting.sum() / (ended - begun).sum())
    return {"start": first - start, "environment": last - first - policy, "policy": policy,
            "advantages": end - last}


class RecentEpisodes(NamedTuple):
    """The last finished episodes; replaced as a whole, so that an interrupt does not split it."""

    iteration: int | None = None  # of the last rollout that was added
    recent: tuple[tuple[float, int, dict], ...] = ()  # return, length and infos of each
    count: int = 0
    names: tuple[str, ...] = ()  # of the infos that are metrics
    discarded: int = 0  # steps that nan_policy=reset_env has discarded


class EpisodeMetrics:
    """Statistics of the last finished episodes."""

    def __init__(self):
        self.state = RecentEpisodes()
        self.ended: list[tuple[int, float, int]] = []  # row, return and length, in the last rollout

    @property
    def count(self) -> int:
        """The number of finished episodes."""
        return self.state.count

    def restore(self, state: Sequence[Any]) -> None:
        """Continues with a `state`; raises an exception if it is none."""
        iteration, recent, *counts = state
        count, names, discarded = [*counts, 0][:3]
        self.state = RecentEpisodes(
            iteration if iteration is None else int(iteration),
            tuple((float(total), int(length), {str(name): float(x) for name, x in infos.items()})
                  for total, length, infos in recent), int(count), tuple(map(str, names)),
            int(discarded))

    def add(self, arena: Arena, iteration: int) -> None:
        """Adds the episodes that ended in an iteration's rollout; repeating it adds nothing.

        An episode after which its game goes on, such as a lost life, is not counted.
        """
        known, length = self.state, arena["length"]
        discarded = (length > 0) & ~arena["valid"]  # no steps of the episodes that they end
        self.take(arena["total"], np.where(arena["same_game"], 0, length - discarded),
                  read_infos(arena), iteration)
        if discarded.any() and self.state is not known:
            self.state = self.state._replace(discarded=known.discarded + int(discarded.sum()))

    def take(self, total: np.ndarray, length: np.ndarray, infos: InfosByStep | None = None,
             iteration: int | None = None) -> None:
        """Adds the episodes that ended in a rollout: return f64 and length i64 [t e], else 0.

        `infos` are the numbers of their last infos; the first MAX_INFO_KEYS names of a run are
        metrics. The episode that ends a game has the return and the length of the whole game. A
        rollout given again after an interrupt, by its `iteration`, is added once. `ended` has the
        last EPISODE_WINDOW of them.
        """
        if iteration is not None and iteration == self.state.iteration:
            return
        rows, infos = np.argwhere(length > 0), infos or {}
        games = [(t, e, infos.get((t, e), {})) for t, e in rows[-EPISODE_WINDOW:].tolist()]
        last = [(float(info.get(GAME_RETURN, total[t, e])),
                 int(info.get(GAME_LENGTH, length[t, e])),
                 {name: x for name, x in info.items() if name not in (GAME_RETURN, GAME_LENGTH)})
                for t, e, info in games]
        self.ended = [(t, *one[:2]) for (t, *_), one in zip(games, last)]
        names = dict.fromkeys([*self.state.names, *(name for *_, info in last for name in info)])
        self.state = RecentEpisodes(iteration, (*self.state.recent, *last)[-EPISODE_WINDOW:],
                                    self.state.count + len(rows),
                                    tuple(names)[:MAX_INFO_KEYS], self.state.discarded)

    def stats(self) -> dict[str, float]:
        """Means over the last episodes, of an info over those that have it; {} before the first."""
        if not self.state.recent:
            return {}
        total, length, infos = zip(*self.state.recent)
        means = {metric_names.MEAN_RETURN: float(np.mean(total)),
                 metric_names.MEAN_LENGTH: float(np.mean(length)),
                 metric_names.EPISODES: float(self.state.count)}
        if len(total) > 1:
            means[metric_names.RETURN_STD] = float(np.std(total, ddof=1))
        if self.state.discarded:
            means["faults/discarded_steps"] = float(self.state.discarded)
        for name in self.state.names:
            if values := [info[name] for info in infos if name in info]:
                means[f"env/{name}"] = float(np.mean(values))
        return means


def explained_variance(rollout: Rollout, ranks: limits.OneProcess) -> float:
    """1 - var(ret - val) / var(ret) over the valid rows of all ranks.

    1 for a perfect critic, 0 for constant ret.
    """
    ret, val, valid = ranks.join(rollout.ret, rollout.val, rollout.valid)
    ret, val = ret[valid].double(), val[valid].double()
    variance = ret.var(correction=0).item() if len(ret) else 0.0
    return 1 - (ret - val).var(correction=0).item() / variance if variance > 0 else 0.0
