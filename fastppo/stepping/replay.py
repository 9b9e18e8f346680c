"""Exact continuation of episodes: the actions to replay, and snapshots between rollouts.

An episode is a function of its seed and its actions. So the state of an environment is not saved:
an environment is reset with the seed of its episode, and takes the logged actions again. This
continues a rollout that was interrupted, and a run that was stopped.

    save -> a rollout -> save -> a rollout that fails -> restore -> begin, in new environments
                     `-> a checkpoint -> load -> begin, in another process
"""

import json
import logging
import math
import textwrap
import time
from dataclasses import dataclass
from typing import Any, Callable, Iterable, NamedTuple, Sequence

import numpy as np

from fastppo.errors import ConfigError, EnvError, Set
from fastppo.machine.shared_memory import Arena
from fastppo.spaces.leaves import leaf_arrays
from fastppo.stepping.environments import Environments, ResetOptions, RunningEpisode, checked_reward
from fastppo.stepping.rewards import ReturnScaling
from fastppo.stepping.rollout_recorder import RolloutViews, rows_by_step

log = logging.getLogger("fastppo")


class EpisodeHistory(NamedTuple):
    """The running episode of an environment, and how it is reached again.

    That is from the episode with which its game began: the same one, unless the environment goes on
    with a game after the end of an episode, such as a lost life of Atari (SAME_GAME in the info).
    """

    number: int
    start: int  # its first step, counted from the first of the run
    first_number: int  # of the episode with which its game began
    first_start: int
    actions: np.ndarray | None  # [n ...] as stored, since first_start; None if there are too many
    total: float = math.nan  # its return until now; nan: not known


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
    episodes: np.ndarray  # i64 [e 4] the first four fields of the EpisodeHistory of each
    totals: np.ndarray  # f64 [e] the returns of these episodes
    rollouts: tuple[tuple[int, np.ndarray], ...] = ()  # (first step, act [t e ...]) of the earlier
    options: ResetOptions = ()  # of these episodes, and of those that begin next


class EpisodeLog:
    """The stored actions of the running episodes of all environments, `limit` steps at most.

    Those of the current rollout are in `views`, those of earlier rollouts are copies. With several
    `agents` an episode is a game, which begins for as many rows at once.
    """

    def __init__(self, views: RolloutViews, limit: int, agents: int = 1):
        self.views, self.limit, self.agents = views, limit, agents
        episodes = np.zeros((views.act.shape[1], 4), np.int64)
        self.state = LogState(0, episodes, np.zeros(len(episodes)))

    def record(self, step: int) -> None:
        """Adds the complete rollout that began at `step`; one that is there changes nothing.

        What no running episode needs is dropped.
        """
        before, act = self.state, self.views.act
        if before.step != step:
            return
        stop = step + len(act)
        episodes, rollouts = self._episodes_at(stop), (*before.rollouts, (step, act.copy()))
        oldest = max(episodes[:, 3].min(), stop - self.limit)
        totals = np.where(self.views.length[-1] > 0, 0.0, self.views.total[-1])
        self.state = LogState(stop, episodes, totals, tuple(
            (first, rows) for first, rows in rollouts if first + len(rows) > oldest),
                              before.options)

    def set_options(self, given: Any, progress: float) -> None:
        """Makes the next episodes have the options `given`, of which a function gets the progress.

        What no running episode needs is dropped. Raises ConfigError for what are no options.
        """
        state, count = self.state, len(self.state.episodes) // self.agents
        found = given(progress) if callable(given) else given
        try:
            found = json.loads(json.dumps(found))  # as a checkpoint holds them
            each = found if isinstance(found, list) else [{} if found is None else found] * count
            if [*map(type, each)] != [dict] * count:
                raise TypeError
        except (TypeError, ValueError):
            raise ConfigError(f"reset_options are {found!r}, but must be a dict that JSON can hold,"
                              f" or a list of one for each of {count} environments") from None
        kept = [one for one in state.options if one[0] < state.step]
        kept += [(state.step, found)] * (found != (kept[-1][1] if kept else None))
        unused = sum(step < max(1, state.episodes[:, 3].min()) for step, _ in kept) - 1
        if tuple(kept := kept[max(0, unused):]) != state.options:
            self.state = state._replace(options=tuple(kept))

    def _episodes_at(self, stop: int) -> np.ndarray:
        """The `episodes` of LogState at step `stop` of the current rollout."""
        begin, known, *_ = self.state
        if not (rows := min(stop - begin, len(self.views.length))):
            return known
        ended = self.views.length[:rows] > 0
        anew = ended & ~self.views.same_game[:rows]
        if self.agents > 1:
            ended = anew = anew.reshape(rows, -1, self.agents).any(2).repeat(self.agents, 1)
        ends = known[:, 0] + ended.cumsum(0)
        last, first = (rows - 1 - one[::-1].argmax(0) for one in (ended, anew))
        started, restarted = ended.any(0), anew.any(0)
        return np.stack([ends[-1], np.where(started, begin + last + 1, known[:, 1]), np.where(
            restarted, ends[first, np.arange(len(known))], known[:, 2]), np.where(
            restarted, begin + first + 1, known[:, 3])], 1)

    def history(self, e: int, episode: RunningEpisode, stop: int) -> EpisodeHistory:
        """The history of a running episode of environment e, up to step `stop`.

        In the warm-up, whose episodes have numbers below 0, the log has nothing else.
        """
        number, _, start, _ = episode
        ends = max(stop, start)  # an episode that begins after step `stop` has that step before it
        first = self._episodes_at(ends)[e, 2:].tolist() if number >= 0 else (number, start)
        rollouts = (*self.state.rollouts, (self.state.step, self.views.act))
        return EpisodeHistory(number, start, *first, None if ends - first[1] > self.limit else
                              actions_between(rollouts, e, first[1], ends))

    def running_now(self, e: int) -> tuple[int, int]:
        """(number, first step) of the running episode of environment e during a rollout."""
        number, start, *_ = self._episodes_at(self.state.step + len(self.views.act))[e].tolist()
        return number, start

    def histories(self, state: LogState) -> list[EpisodeHistory]:
        """The running episodes of all environments between two rollouts."""
        stop, episodes, totals, rollouts, _ = state
        rollouts = (*rollouts, (stop, self.views.act[:0]))  # for episodes without a step
        return [EpisodeHistory(*one, None if stop - one[3] > self.limit
                               else actions_between(rollouts, e, one[3], stop), total)
                for e, (one, total) in enumerate(zip(episodes.tolist(), totals.tolist()))]

    def resume(self, resumed: ResumedEpisodes, restarted: Sequence[int]) -> None:
        """Begins with resumed episodes; in the environments `restarted` new ones began."""
        episodes = np.array([one[:4] for one in resumed.histories], np.int64)
        actions = [one.actions for one in resumed.histories]
        totals = np.array([one.total for one in resumed.histories])
        for e in restarted:
            number, totals[e] = episodes[e, 0] + 1, 0.0
            episodes[e], actions[e] = (number, resumed.step, number, resumed.step), ()
        act, first = self.views.act, max(int(episodes[:, 3].min()), resumed.step - self.limit)
        rows = np.zeros((resumed.step - first, *act.shape[1:]), act.dtype)
        for e, taken in enumerate(actions):
            taken = () if taken is None else taken
            rows[len(rows) - len(taken):, e] = np.reshape(taken, (-1, *act.shape[2:]))
        self.state = LogState(resumed.step, episodes, totals, ((first, rows),), self.state.options)
        if restarted:
            log.warning("resumed, but not bit for bit: the running episodes of environments %s"
                        " could not be replayed, so new ones begin there",
                        textwrap.shorten(", ".join(map(str, restarted)), 80, placeholder=" ..."))


def actions_between(rollouts: Iterable[tuple[int, np.ndarray]], e: int, start: int, stop: int
                    ) -> np.ndarray:
    """The stored actions [n ...] of environment e in steps [start, stop)."""
    return np.concatenate([act[max(start - first, 0):max(stop - first, 0), e]
                           for first, act in rollouts])


def replay_episode(envs: Environments, e: int, history: EpisodeHistory,
                   to_env: Callable[[np.ndarray], list], seconds: float = math.inf
                   ) -> tuple[Any, float]:
    """Takes the steps of an episode again; (the last (observation, info), the return until then).

    Raises EnvError if the environment fails, if the episode is too long or takes longer than
    `seconds`, or if it ends at another step than it did.
    """
    if history.actions is None:
        raise EnvError(f"environment {e} was interrupted in an episode too long to be replayed",
                       (Set(num_workers=1), "raise replay_limit"))
    begun, total, first = time.monotonic(), 0.0, envs.new_episode(e, history.first_number)
    last = None, envs.begin_episode(e, first._replace(start=history.first_start))
    for step, action in enumerate(to_env(history.actions), history.first_start + 1):
        try:
            if time.monotonic() - begun > seconds:
                raise TimeoutError(f"its replay has taken more than {seconds:g} s")
            obs, rew, term, trunc, info = envs.envs[e].step(action)
            last, total = (obs, info), total + checked_reward(rew)
        except BaseException as error:
            raise envs.fault(e, "step()", error) from error
        if term or trunc:
            episode = envs.new_episode(e, envs.running[e].number + 1)._replace(start=step)
            last, total = (None, envs.begin_episode(e, episode)), 0.0
    if (envs.running[e].number, envs.running[e].start) != history[:2]:
        raise envs.fault(e, "step()", ValueError("in its replay the episode ended at another step"))
    return last, total


def begin_episodes(envs: Any, resumed: ResumedEpisodes | None, episode: int) -> list[int]:
    """Brings every environment of a Serial to the start of `episode`, or to where it was `resumed`.

    Returns those for which that is not possible, and which begin their next episode: they are no
    function of seed and actions, have failed in the replay or in the step after it, or the episode
    is too long for a replay.
    """
    restarted = []
    envs.views.length.fill(0)  # the warm-up's
    for e, env in enumerate(envs.envs):
        env.action_space.seed(envs.new_episode(e, 0).seed)
    for e in envs.starts:
        if resumed is None:
            envs.begin_episode(e, envs.new_episode(e, episode))
        elif not resume_episode(envs, e, resumed):
            envs.begin_episode(e, envs.new_episode(e, resumed.histories[e].number + 1))
            envs.recorder.returns[e:e + envs.agents] = 0.0
            restarted += range(e, e + envs.agents)
    return restarted


def resume_episode(envs: Any, e: int, resumed: ResumedEpisodes) -> bool:
    """Brings environment e of a Serial to where it was `resumed`; True if it is there.

    An environment that fails in its replay gets a second one: the cause may have been outside.
    """
    rows, history = slice(e, e + envs.agents), resumed.histories[e]
    histories = resumed.histories[rows]
    failed_twice = resumed.step - history.start >= envs.new_episode(e, history.number).limit
    too_long = history.actions is None and not envs.views.rows.size  # for a replay
    if failed_twice or too_long:
        return False
    for _ in range(2):
        try:
            totals = envs.play_again(e, histories, envs.actor, envs.rules.replay_timeout)
            envs.recorder.returns[rows] = totals
            envs.writer.copy(envs.obs[-1], range(rows.start, rows.stop))
            return all(total == one.total for total, one in zip(totals, histories)) and all(
                one.tobytes() == two.tobytes() for one, two in zip(
                    leaf_arrays(envs.obs[-1][rows]), leaf_arrays(resumed.obs[rows])))
        except EnvError as error:
            log.warning("a replay has failed: %s", error.what)
            if isinstance(error.__cause__, TimeoutError):
                break  # it would be as long again
    return False


@dataclass
class RolloutProgress:
    """Which environments have taken which step of a rollout.

    All have taken the steps before `t`; environments before `done` have also taken step `t`. The
    one called `stepping`, if any, may be anywhere inside that step. A rollout called again after an
    interrupt continues here.
    """

    iteration: int | None = None
    t: int = 0
    done: int = 0
    stepping: int | None = None


class EnvSnapshot(NamedTuple):
    """The state of the environments after a rollout."""

    progress: tuple[int, int, int]  # see collect.Progress
    returns: tuple[np.ndarray, ...]  # the state of ReturnScaling
    log: LogState
    obs: np.ndarray  # [e ...] the observations with which the next rollout begins, as stored
    memory: np.ndarray  # f32 [e s] the recurrent state there
    rows: np.ndarray  # u1 [e bytes] the state of compiled environments


class EnvSnapshots:
    """The snapshots of a run: the last one, and the episodes with which environments begin.

    `log` has the actions of the running episodes, `last` is the snapshot before the rollout that
    began last. `resumed`, of a checkpoint or of a rollout that failed, is what the next `begin`
    continues; without it new episodes begin.
    """

    def __init__(self, arena: Arena, returns: ReturnScaling, log: EpisodeLog):
        self.arena, self.returns, self.log = arena, returns, log
        self.last: EnvSnapshot | None = None
        self.resumed: ResumedEpisodes | None = None
        self.last_obs = rows_by_step(arena["obs"], len(arena["raw"]))[-1]  # of a rollout

    def now(self, progress: tuple[int, int, int]) -> EnvSnapshot:
        """The snapshot after as many rollouts as `progress` says, also inside the next one."""
        if self.last is not None and self.last.progress == progress:
            return self.last
        return EnvSnapshot(progress, self.returns.state, self.log.state, self.last_obs.copy(),
                           self.arena["state"][-1].copy(), self.arena["rows"].copy())

    def begin(self, vec: Any) -> None:
        """Brings the environments to where the next rollout begins."""
        restarted = vec.begin(self.resumed)
        if self.resumed is not None:
            self.log.resume(self.resumed, restarted)
        self.arena["state"][-1, restarted] = 0.0
        self.last = None

    def restore(self, progress: tuple[int, int, int]) -> None:
        """Makes new environments begin where the last rollout ended, or one that failed began."""
        at = self.now(progress)
        self.resumed = ResumedEpisodes(at.log.step, self.log.histories(at.log), at.obs)
        self.arena["state"][-1], self.arena["rows"][:] = at.memory, at.rows

    def load(self, tree: dict[str, Any], progress: tuple[int, int, int]) -> None:
        """Makes the environments begin at a snapshot from `snapshot_tree`.

        Raises ValueError if its arrays do not fit this run.
        """
        memory, obs = self.arena["state"][-1], np.empty_like(self.last_obs)
        here = self.arena["rows"]  # none of environments that run as Python
        if tree["step"] != progress[0] * len(self.arena["raw"]):
            raise ValueError(f"it has taken {tree['step']} steps in {progress[0]} rollouts")
        returns = tuple(tree["returns"])
        rows = tree["rows"] if "rows" in tree and here.size else here
        check_alike([*returns, tree["memory"], rows], [*self.returns.state, memory, here])
        self.returns.state = returns
        if tree["step"]:
            check_alike([tree["actions"][:0]], [self.log.views.act[:0, 0]])
            self.resumed = resumed_episodes(tree, obs)
            self.log.state = self.log.state._replace(options=read_options(
                json.loads(tree["options"])))
            self.log.resume(self.resumed, ())
            memory[...], here[:] = tree["memory"], rows
            self.last = EnvSnapshot(progress, returns, self.log.state, obs, tree["memory"], rows)


def snapshot_tree(snapshot: EnvSnapshot, log: EpisodeLog) -> dict[str, Any]:
    """An EnvSnapshot as a dict of arrays and numbers; each environment has its actions alone."""
    histories = log.histories(snapshot.log) if snapshot.log.step else []
    kept = [one.actions for one in histories if one.actions is not None]
    return {"progress": snapshot.progress, "returns": snapshot.returns, "step": snapshot.log.step,
            "episodes": snapshot.log.episodes, "totals": snapshot.log.totals,
            "length": np.array([-1 if one.actions is None else len(one.actions)
                                for one in histories], np.int64),
            "actions": np.concatenate(kept) if kept else log.views.act[:0, 0],
            "obs": leaf_arrays(snapshot.obs), "memory": snapshot.memory,
            **({"rows": snapshot.rows} if snapshot.rows.size else {}),
            "options": json.dumps(snapshot.log.options)}


def resumed_episodes(tree: dict[str, Any], rows: np.ndarray) -> ResumedEpisodes:
    """The episodes of a `snapshot_tree`; its observations are copied into `rows` [e ...].

    Raises ValueError if its arrays do not fit each other or the rows.
    """
    episodes, length, totals = tree["episodes"], tree["length"], tree["totals"]
    if not (len(length), 4) == (len(rows), 4) == (*totals.shape, 4) == episodes.shape or len(
            tree["actions"]) != length[length > 0].sum():
        raise ValueError("the running episodes do not fit each other")
    check_alike(tree["obs"], leaf_arrays(rows))
    for field, values in zip(leaf_arrays(rows), tree["obs"]):
        field[...] = values
    actions = np.split(tree["actions"], np.cumsum(length.clip(0))[:-1])
    return ResumedEpisodes(int(tree["step"]), [
        EpisodeHistory(*map(int, one), None if count < 0 else taken, float(total))
        for one, count, taken, total in zip(episodes, length, actions, totals)], rows)


def read_options(history: Iterable[Any]) -> ResetOptions:
    """The history of reset options in a file; raises TypeError or ValueError if it is none."""
    return tuple((int(step), given) for step, given in history)


def check_alike(arrays: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> None:
    """Raises ValueError unless `arrays` have the shapes and dtypes of those that they replace."""
    for one, two in zip(arrays, wanted, strict=True):
        if (one.shape, one.dtype) != (two.shape, two.dtype):
            raise ValueError(f"it has {one.dtype} {one.shape} for {two.dtype} {two.shape}")
