"""Exact continuation of episodes: the actions to replay, and the progress of a rollout.

An episode is a function of its seed and its actions. So the state of an environment is not saved:
an environment is reset with the seed of its episode, and takes the logged actions again. This
continues a rollout that was interrupted, and a run that was stopped.
"""

import logging
from typing import Any, Callable, Iterable, NamedTuple, Sequence

import numpy as np

from fastppo.envs.spaces import leaf_arrays
from fastppo.errors import EnvError
from fastppo.settings.fixes import Set
from fastppo.stepping.checks import checked_reward
from fastppo.stepping.environments import Environments, RunningEpisode
from fastppo.stepping.episodes import RolloutViews

REPLAY_LIMIT = 100_000  # longest replay in steps

log = logging.getLogger("fastppo")


class EpisodeHistory(NamedTuple):
    """The running episode of an environment: its number, and what was done in it."""

    number: int
    start: int  # its first step, counted from the first of the run
    actions: np.ndarray | None  # [n ...] as stored; None if there are too many


class ResumedEpisodes(NamedTuple):
    """The running episodes of several environments, and the observations that they stopped at."""

    step: int  # steps that every environment has taken in the run
    histories: list[EpisodeHistory]
    obs: np.ndarray  # [e ...] as stored

    def part(self, first: int, last: int) -> "ResumedEpisodes":
        """Those of environments [first, last)."""
        return ResumedEpisodes(self.step, self.histories[first:last], self.obs[first:last])


class LogState(NamedTuple):
    """The contents of an EpisodeLog; replaced as a whole, so that an interrupt never splits it."""

    step: int  # steps that every environment has taken
    number: np.ndarray  # i64 [e] of each running episode
    start: np.ndarray  # i64 [e] its first step
    rollouts: tuple[tuple[int, np.ndarray], ...] = ()  # (first step, act [t e ...]) of the earlier


class EpisodeLog:
    """The stored actions of the running episodes of all environments, `limit` steps at most.

    Those of the current rollout are in `views`, those of earlier rollouts are copies.
    """

    def __init__(self, views: RolloutViews, limit: int = REPLAY_LIMIT):
        self.views, self.limit = views, limit
        zeros = np.zeros(views.act.shape[1], np.int64)
        self.state = LogState(0, zeros, zeros)

    def record(self, step: int) -> None:
        """Adds the complete rollout that began at `step`; one that is there changes nothing.

        What no running episode needs is dropped.
        """
        before, act, ended = self.state, self.views.act, self.views.length > 0
        if before.step != step:
            return
        stop = step + len(act)
        start = np.where(ended.any(0), stop - ended[::-1].argmax(0), before.start)
        oldest = max(start.min(), stop - self.limit)
        rollouts = (*before.rollouts, (step, act.copy()))
        self.state = LogState(stop, before.number + ended.sum(0), start, tuple(
            (first, rows) for first, rows in rollouts if first + len(rows) > oldest))

    def running(self, e: int, episode: RunningEpisode, stop: int) -> EpisodeHistory:
        """The history of a running episode of environment e, up to step `stop`.

        Raises EnvError if it is too long.
        """
        number, _, start = episode
        if stop - start > self.limit:
            raise EnvError(f"environment {e} was interrupted in step {stop - start} of its episode,"
                           f" but only {self.limit} steps can be replayed: this run cannot go on."
                           " An interrupt never reaches a worker process", Set(num_workers=1))
        rollouts = (*self.state.rollouts, (self.state.step, self.views.act))
        return EpisodeHistory(number, start, actions_between(rollouts, e, start, stop))

    def running_now(self, e: int) -> int:
        """The number of the running episode of environment e during a rollout."""
        return int(self.state.number[e] + (self.views.length[:, e] > 0).sum())

    def histories(self, state: LogState) -> list[EpisodeHistory]:
        """The running episodes of all environments between two rollouts."""
        stop, number, start, rollouts = state
        rollouts = (*rollouts, (stop, self.views.act[:0]))  # for episodes without a step
        return [EpisodeHistory(n, first, None if stop - first > self.limit
                               else actions_between(rollouts, e, first, stop))
                for e, (n, first) in enumerate(zip(number.tolist(), start.tolist()))]

    def resume(self, resumed: ResumedEpisodes | None, restarted: Sequence[int]) -> None:
        """Begins with resumed episodes, if any; in the environments `restarted` new ones began."""
        if resumed is None:
            return
        number, start = (np.array([getattr(one, name) for one in resumed.histories])
                         for name in ("number", "start"))
        actions = [one.actions for one in resumed.histories]
        for e in restarted:
            number[e], start[e], actions[e] = number[e] + 1, resumed.step, ()
        act, first = self.views.act, max(int(start.min()), resumed.step - self.limit)
        rows = np.zeros((resumed.step - first, *act.shape[1:]), act.dtype)
        for e, taken in enumerate(actions):
            taken = () if taken is None else taken
            rows[len(rows) - len(taken):, e] = np.reshape(taken, (-1, *act.shape[2:]))
        self.state = LogState(resumed.step, number, start, ((first, rows),))
        if restarted:
            log.warning("resumed, but not bit for bit: the running episodes of environments %s"
                        " could not be replayed, so new ones begin there",
                        ", ".join(map(str, restarted)))


def actions_between(rollouts: Iterable[tuple[int, np.ndarray]], e: int, start: int, stop: int
                    ) -> np.ndarray:
    """The stored actions [n ...] of environment e in steps [start, stop)."""
    return np.concatenate([act[max(start - first, 0):max(stop - first, 0), e]
                           for first, act in rollouts])


def replay_episode(envs: Environments, e: int, history: EpisodeHistory,
                   to_env: Callable[[np.ndarray], list]) -> tuple[Any, float]:
    """Takes the steps of an episode again; (the last (observation, info), the return until then).

    Raises EnvError if the environment fails, or ends the episode earlier.
    """
    episode = envs.new_episode(e, history.number)._replace(start=history.start)
    last, total = (None, envs.begin_episode(e, episode)), 0.0
    for action in to_env(history.actions):
        try:
            obs, rew, term, trunc, info = envs.envs[e].step(action)
            total += checked_reward(rew)
            if term or trunc:
                raise ValueError("the episode ended in its replay, which it had not before")
        except BaseException as error:
            raise envs.fault(e, "step()", error) from error
        last = obs, info
    return last, total


def begin_episodes(envs: Any, resumed: ResumedEpisodes | None, episode: int) -> list[int]:
    """Brings every environment of a Serial to the start of `episode`, or to where it was `resumed`.

    Returns those for which that is not possible, and which begin their next episode: they are no
    function of seed and actions, have failed in the replay, or the episode is too long for it.
    """
    restarted = []
    for e in range(len(envs.envs) if resumed is None else 0):
        envs.begin_episode(e, envs.new_episode(e, episode))
    for e, history in enumerate(resumed.histories if resumed else ()):
        try:
            if history.actions is None:
                raise EnvError("the episode is too long to be replayed")
            (obs, info), envs.recorder.returns[e] = replay_episode(
                envs, e, history, envs.actor.to_env)
            if len(history.actions):
                envs.receive(e, obs, info)
            envs.writer.flush(envs.obs[-1], range(e, e + 1))
            same = all(one.tobytes() == two.tobytes() for one, two in zip(
                leaf_arrays(envs.obs[-1][e:e + 1]), leaf_arrays(resumed.obs[e:e + 1])))
        except EnvError:
            same = False
        if not same:
            envs.begin_episode(e, envs.new_episode(e, history.number + 1))
            envs.recorder.returns[e] = 0.0
            restarted.append(e)
    return restarted


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
