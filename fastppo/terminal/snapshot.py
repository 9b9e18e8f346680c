"""A run as what a display shows of it: numbers after an iteration, and how far that is within."""

import collections
import functools
import math
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from fastppo.collect import WARMUP_STEPS
from fastppo.machine import limits
from fastppo.networks.torch_state import preserved_buffers, seeded_rng, torch_threads
from fastppo.settings.known_names import (
    ASIDE,
    EVAL_RETURN,
    MEAN_RETURN,
    PART_NAMES,
    PARTS,
    SPEED,
)
from fastppo.update.arithmetic import flops, peak

REDRAWS = 2  # a second; as many snapshots are taken
WINDOW_SECONDS = 10.0  # of the current speed
SHOWN_AFTER = 2.0  # seconds after which the time in a part, or its steps, are shown
MEASURED_AFTER, LONG_ROLLOUT = 5.0, 60.0  # seconds of a first rollout, and of one that is long
FEWEST_STEPS = 16  # num_steps that is proposed


class Snapshot(NamedTuple):
    """The numbers of a run after an iteration; None is unknown."""

    step: int
    total: int
    seconds_left: float | None
    stats: dict[str, float]  # the metrics of the iteration
    returns: tuple[tuple[int, float], ...]  # (step, mean return then), see thinned
    best_return: float | None  # the largest mean of the last 100 episodes
    evaluation: float | None  # mean return of the last evaluation
    threshold: float | None  # return from which Gymnasium's registry calls the environment solved
    speed: float | None  # steps per second of the last seconds of training
    mean_speed: float  # steps per second, see RunHistory.mean_speed
    limit: float | None  # steps per second, the highest speed_limit of the run so far
    shares: dict[str, float]  # of the time of the last seconds, see shares_between
    memory: int | None  # bytes, of all processes
    lr: float
    workers: int
    cores: int


class Moment(NamedTuple):
    """The end of an iteration."""

    time: float  # monotonic
    step: int
    seconds: dict[str, float]  # spent in each part until then


class RunHistory:
    """What a Snapshot needs of the iterations before; it does not grow with the run."""

    def __init__(self):
        self.limit: float | None = None
        self.returns: list[tuple[int, float]] = []
        self.best: float | None = None
        self.evaluation: float | None = None
        self.moments: collections.deque[Moment] = collections.deque()
        self.flops: float | None = None  # per step, of acting and updating
        self.begun = time.monotonic(), 0, 0.0  # time, step, seconds that were not training

    def begin(self, ppo) -> None:
        """Begins the time of `mean_speed`, with a call of `learn`."""
        self.begun = time.monotonic(), ppo.step, ppo.clock.not_training

    def mean_speed(self, ppo) -> float:
        """Steps per second of this call of `learn`, all but evaluations and videos included.

        It is the speed in the last line of the command, and in summary.json.
        """
        begun, step, aside = self.begun
        seconds = time.monotonic() - begun - (ppo.clock.not_training - aside)
        return (ppo.complete_steps - step) / seconds

    def add(self, step: int, stats: dict[str, float]) -> None:
        """Adds an iteration that ended at `step` with the metrics `stats`."""
        self.evaluation = stats.get(EVAL_RETURN, self.evaluation)
        if MEAN_RETURN in stats:
            self.returns = thinned([*self.returns, (step, stats[MEAN_RETURN])])
            self.best = max(stats[MEAN_RETURN], -math.inf if self.best is None else self.best)

    def snapshot(self, ppo, stats: dict[str, float]) -> Snapshot:
        """The Snapshot after the last iteration, whose metrics are `stats`."""
        config = ppo.config
        if self.flops is None:
            self.flops = flops_per_step(ppo)
        threshold = getattr(gym.registry.get(config.env_name), "reward_threshold", None)
        cores = limits.usable_cores()
        now = Moment(time.monotonic(), ppo.step, {**ppo.clock.seconds, **ppo.clock.within})
        self.moments.append(now)
        while len(self.moments) > 2 and now.time - self.moments[1].time >= WINDOW_SECONDS:
            self.moments.popleft()
        before = self.moments[0]
        steps, seconds = now.step - before.step, now.time - before.time
        trained = training_seconds(before, now)
        speed = steps / trained if steps > 0 and trained > 0 else None
        left = max(0, ppo.total - ppo.step) * (seconds / steps if speed else
                                               1 / (stats[SPEED] or math.inf))
        if found := speed_limit(ppo, self.flops, cores):
            # Other programs lower the limit of a rollout, none raises it.
            self.limit = max(self.limit or 0.0, found)
        return Snapshot(
            ppo.step, ppo.total, left, stats, tuple(self.returns), self.best,
            self.evaluation, threshold, speed, self.mean_speed(ppo), self.limit,
            shares_between(before, now), memory_of(ppo), ppo.lr,
            config.num_workers, cores)


def shares_between(before: Moment, now: Moment) -> dict[str, float]:
    """Shares of the training between two moments by part; "other" is in none.

    {} if no time has passed.
    """
    total = training_seconds(before, now)
    if total <= 0:
        return {}
    spent = {part: spent_in(part, before, now) for part in PARTS}
    spent["other"] = max(0.0, total - sum(spent.values()))
    return {part: seconds / sum(spent.values()) for part, seconds in spent.items()}


def training_seconds(before: Moment, now: Moment) -> float:
    """The seconds between two moments without evaluations and videos."""
    return now.time - before.time - sum(spent_in(part, before, now) for part in ASIDE)


def spent_in(part: str, before: Moment, now: Moment) -> float:
    """The seconds between two moments that a part has taken."""
    return now.seconds.get(part, 0.0) - before.seconds.get(part, 0.0)


class CurrentPart:
    """The part of an iteration that a run is in; of a rollout that takes long, also its steps.

    They are counted where a display asks, so a step costs nothing: in the rollout the rows whose
    action is chosen have a `logp`, in the warm-up before the first one an `act`.
    """

    def __init__(self, ppo):
        own = ppo.ranks.own(ppo.config.num_envs)
        # Arrays, because the thread of a display may ask when the run has closed its arena.
        self.logp, act = (ppo.arena[name][:, own.start:own.stop] for name in ("logp", "act"))
        self.act = act[:WARMUP_STEPS].reshape(-1, len(own), math.prod(act.shape[2:]))[..., 0]
        self.ppo, self.clock, self.speed = ppo, ppo.clock, 0.0  # of the rollout, steps per second
        self.first = None, 0.0, 0  # look at this rollout or warm-up: which, time, count

    @property
    def seconds(self) -> float:
        """The seconds in this part."""
        return time.monotonic() - self.clock.since

    def text(self) -> str:
        """What the run does; if that takes long, also how far it is, or for how many seconds."""
        part, now, warming = self.clock.part, time.monotonic(), self.ppo.collector.prepared < 0
        name = PART_NAMES.get(part, part)
        if not part or self.seconds < SHOWN_AFTER:
            return name
        rows, which = self.act if warming else self.logp, (warming, self.clock.since)
        count = int((~np.isnan(rows) & (rows != -1)).sum()) if part == "collect" else 0
        self.first = self.first if self.first[0] == which else (which, now, count)
        self.speed = speed = (count - self.first[2]) / max(now - self.first[1], 1e-9)
        if not speed:
            return f"{name} {self.seconds:.0f} s"
        return (f"{'warming up' if warming else name} {count:,} of {rows.size:,} steps,"
                f" {speed:,.{int(speed < 10)}f} steps/s, {(rows.size - count) / speed:,.0f} s left")

    def hint(self) -> list[str]:
        """The num_steps with which a first rollout of over a minute takes less, if it is known."""
        (length, envs), seconds = self.logp.shape, self.logp.size / (self.speed or math.inf)
        if self.ppo.progress.iteration or seconds <= LONG_ROLLOUT \
                or time.monotonic() - self.first[1] < MEASURED_AFTER:
            return []
        steps = 1 << int(math.log2(max(FEWEST_STEPS, length * LONG_ROLLOUT / seconds,
                                       2 * self.ppo.config.num_minibatches / envs)))
        return [f"the first rollout of {length * envs:,} steps takes {seconds:,.0f} s;"
                f" --num_steps={steps}: {seconds * steps / length:,.0f} s"] * (steps < length)


def thinned(points: list[tuple[int, float]], most: int = 400) -> list[tuple[int, float]]:
    """`points`, or every second one of them and the last if there are more than `most`."""
    return points if len(points) <= most else [*points[:-1:2], points[-1]]


def flops_per_step(ppo) -> float:
    """FLOPs of acting and of the update for one step; changes no bit of the run.

    A backward pass has twice those of a forward pass, but for the gradient of the inputs.
    """
    with preserved_buffers(ppo.policy), seeded_rng(ppo.config.seed):
        return flops(ppo.policy)[0] * (1 + 3 * ppo.config.epochs)


def speed_limit(ppo, flops_per_step: float, cores: int) -> float | None:
    """Steps per second if all cores only stepped environments and multiplied matrices.

    The time of the environments is that of the last rollout. None where the learner is not on the
    CPU, or no process has reported its times.
    """
    times = ppo.arena["times"]
    acting, begun, ended = times[:-1][np.isfinite(times[:-1, 0])].T
    if not len(begun):  # the main process acts and steps
        acting, begun, ended = times[-1:].T
    env = float((ended - begun - acting).sum()) / ppo.arena["valid"].size
    if ppo.config.device != "cpu" or not math.isfinite(env) or env <= 0:
        return None
    return cores / (env + flops_per_step / measured_peak())


@functools.cache
def measured_peak() -> float:
    """FLOPs per second of one core, measured once per process in about 50 ms."""
    with torch_threads(1):
        return peak(seconds=0.015)


def memory_of(ppo) -> int | None:
    """Bytes in memory of a trainer's processes; what they share counts once. None if unknown."""
    team: Any = getattr(ppo.collector.vec, "team", None)
    pids = [os.getpid(), *(worker.process.pid for worker in team.workers)] if team else ["self"]
    page, private, shared = os.sysconf("SC_PAGE_SIZE"), 0, 0
    try:
        for pid in pids:
            _, resident, common, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
            private, shared = private + resident - common, max(shared, common)
    except (OSError, ValueError):  # not Linux, or a worker that has just ended
        return None
    return (private + shared) * page
