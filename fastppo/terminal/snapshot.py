"""A run after an iteration, as the numbers that a display shows, and the hints they call for."""

import collections
import functools
import math
import os
import time
from pathlib import Path
from typing import Any, Iterator, NamedTuple

import gymnasium as gym
import numpy as np

from fastppo.machine import limits
from fastppo.networks.torch_state import preserved_buffers, seeded_rng, torch_threads
from fastppo.settings.known_names import ASIDE, EPISODES, EVAL_RETURN, KL, MEAN_RETURN, SPEED
from fastppo.update.arithmetic import flops, peak

PART_NAMES = {"collect": "collecting", "update": "updating", "evaluate": "evaluating",
              "video": "recording"}  # of a Clock
REDRAWS = 2  # a second; as many snapshots are taken
WINDOW_SECONDS = 10.0  # of the current speed
PARTS = "environment", "policy", "advantages", "update"  # of training
BOTTLENECK = 0.6  # share of the time
BUSY = 0.7  # other programs for each core
SETTLED = 20  # snapshots after which shares of the time are believed
HIGH_KL, KL_LOOKS = 0.05, 5
LONG_EPISODE = 200_000  # steps without the end of an episode


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
    others: float = 0.0  # programs beside this run, for each core, see load_of_others


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
            config.num_workers, cores, load_of_others(config, cores * ppo.ranks.size))


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


def current_part(clock) -> tuple[str, float]:
    """What a run does now, as its Clock says, and for how many seconds; "" between the parts."""
    return PART_NAMES.get(clock.part, clock.part), time.monotonic() - clock.since


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


def load_of_others(config: Any, cores: int) -> float:
    """Programs beside this run that used the machine in the last minute, for each of its cores.

    0 where it is not known: the load is that of the whole machine, of which a run may have a part.
    """
    own = max(1, config.num_workers, config.torch_threads, config.update_threads)
    return max(0.0, (limits.system_load(cores) - own) / cores)


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


class Hints:
    """Finds the hints that a new snapshot calls for.

    `looks` counts the snapshots, `high_looks` those with a high KL in a row until now.
    """

    def __init__(self):
        self.looks, self.high_looks, self.said = 0, 0, set()

    def take(self, now: Snapshot) -> list[str]:
        """The hints that were not found before."""
        self.looks += 1
        self.high_looks = self.high_looks + 1 if now.stats[KL] > HIGH_KL else 0
        found = {subject: text for subject, text in self._found(now) if subject not in self.said}
        self.said |= {*found}
        return [*found.values()]

    def _found(self, now: Snapshot) -> Iterator[tuple[str, str]]:
        """(subject, hint) of all that can be said now."""
        if self.looks >= SETTLED and now.others > BUSY:
            yield "cores", ("other programs use these cores, which slows this run; a limit assumes"
                            " they are free")
        elif self.looks >= SETTLED and now.shares.get("environment", 0.0) >= BOTTLENECK:
            workers = max(1, now.workers)
            more = f"{workers} of {now.cores} cores: --num_workers={now.cores}" \
                if workers < now.cores else \
                f"{now.cores} cores: more workers cannot help, a faster environment can"
            yield "environment", (f"{now.shares['environment']:.0%} of the time is environment"
                                  f" stepping on {more}")
        if self.high_looks >= KL_LOOKS:
            yield "kl", (f"the KL stays above {HIGH_KL}, now {now.stats[KL]:.2f}:"
                         f" try --lr={now.lr / 3:.0e}")
        if now.step >= LONG_EPISODE and not now.stats.get(EPISODES):
            yield "episodes", (f"no episode has ended in {now.step:,} steps:"
                               " --max_episode_steps=1000 truncates them")
