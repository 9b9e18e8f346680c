"""Steps environments into shared arrays, in the main process or in a worker.

A rollout is T steps of E environments. An environment whose episode ends is reset in the same step,
so every row of a rollout is a step:

    obs[t] -> actor.act(t) -> env.step -> raw term trunc [t], obs[t+1]
                                  |- ended: fin = the final observation, obs[t+1] = the reset's

A KeyboardInterrupt may strike between any two lines. `rollout`, called again, continues the same
rollout: the environment that was inside a call is replayed (replay.py), and a line that runs again
writes the same values again.
"""

import math
from typing import Any, Sequence

import numpy as np

from fastppo.envs.make import Factory
from fastppo.machine.global_rng import GlobalRngWatch
from fastppo.spaces.observations import ObservationLayout
from fastppo.stepping import replay, rollout_recorder
from fastppo.stepping.actors import Actor, RandomActor
from fastppo.stepping.environments import NO_RULES, REWARD_MAX, WARMUP_EPISODE, Environments


class Serial(Environments):
    """Environments [first, first + n) of a run, stepped one after the other into `views`.

    The environments of one of `groups` act together. `log` has the actions to replay after an
    interrupt, which reaches the main process alone.
    """

    def __init__(self, factories: Sequence[Factory], views: rollout_recorder.RolloutViews,
                 actor: Actor, seed: int, first: int = 0, groups: Sequence[range] = (), note=None,
                 name: str = "", rules=NO_RULES, log: replay.EpisodeLog | None = None):
        super().__init__(factories, seed, first, note, name, rules)
        self.views, self.actor, self.groups = views, actor, groups or [range(len(self.envs))]
        self.layout = ObservationLayout(self.envs[0].observation_space, self.envs[0].action_space)
        self.writer = rollout_recorder.ObservationWriter(views, self.layout, first)
        self.obs = self.writer.rows
        self.log, self.steps = log, [None] * len(self.envs)  # (step, limit) of running episodes

    def warmup(self, steps: int) -> None:
        """Takes `steps` random steps into obs[0 .. steps]; no statistic counts them."""
        self.begin(episode=WARMUP_EPISODE)
        self.rng_watch.before = ()  # training is watched, from the next `begin` on
        self.rollout(WARMUP_EPISODE, steps, RandomActor(
            self.layout, self.obs, self.views.act, self.seed, self.first))

    def begin(self, resumed: replay.ResumedEpisodes | None = None, episode: int = 0) -> list[int]:
        """Resets every environment into episode `episode`, or continues the episodes `resumed`.

        The next rollout starts there. Returns the environments that cannot continue.
        """
        origin, self.progress = resumed.step if resumed else 0, replay.RolloutProgress()
        self.recorder = rollout_recorder.RolloutRecorder(self.views, self.first, origin)
        self.now, self.rng_watch = origin - 1, GlobalRngWatch(self.views.drawn, self.name)
        restarted = replay.begin_episodes(self, resumed, episode)
        self.writer.copy(self.obs[-1], range(len(self.envs)))
        if self.writer.frames:
            self.writer.frames.store_whole(self.obs[-1])
        self.check(self.obs[-1], self.layout)
        return restarted

    def rollout(self, iteration: int, steps: int = 0, actor: Actor | None = None) -> None:
        """Takes T steps in every environment; called again for an iteration, continues it.

        A warm-up has another number of `steps`, and an `actor` of its own.
        """
        actor, steps, recorder = actor or self.actor, steps or len(self.obs) - 1, self.recorder
        with self.rng_watch.rollout(iteration, self.running):
            actor.start(iteration)
            if self.progress.iteration != iteration:
                recorder.start_rollout()
                self.progress = replay.RolloutProgress(iteration)
            progress = self.progress
            if progress.stepping is not None:
                self._restore(actor, progress.stepping)
            for t in self._steps_left(actor, steps):
                self.now = recorder.origin + t
                for group in self.groups:
                    self._step(actor, t, group)
                self.check(self.obs[t + 1], self.layout)
                progress.t, progress.done, progress.stepping = t + 1, 0, None
            actor.finish(steps)
            recorder.finish_rollout(steps)

    def receive(self, e: int, obs: Any, info: dict, begins=None, ended: bool = False) -> None:
        """Stores the first observation of an episode of environment e."""
        self.writer.slots[e][...] = self.writer.convert(obs)
        if begins:
            self.steps[e] = self.episode_step(e, begins.limit, self.layout)

    def _steps_left(self, actor: Actor, steps: int) -> range:
        """The steps of a rollout that are left; a subclass may take them itself."""
        return range(self.progress.t, steps)

    def _step(self, actor: Actor, t: int, group: range) -> None:
        """Takes step t in the environments of `group` that have not taken it."""
        running, steps, now, rewards = self.running, self.steps, self.now, self.recorder.rewards[t]
        note, writer, progress = self.note, self.writer, self.progress
        slots, taken = writer.slots, max(0, progress.done - group.start)
        for e, action in zip(group[taken:], actor.act(t, group)[taken:]):
            progress.stepping = e
            length, (step, limit) = now - running[e].start, steps[e]
            if note is not None:
                note(length, e)
            try:
                obs, rew, term, trunc, info = step(action)
                if not (isinstance(rew, float) and abs(rew) <= REWARD_MAX
                        and (term is False or term is True) and (trunc is False or trunc is True)
                        and type(obs) is np.ndarray
                        and obs.shape == writer.shape and obs.dtype == writer.dtype):
                    rew, term, trunc = self.checked(rew, term, trunc)
                    obs = writer.convert(obs)
                rewards[e], slots[e][...] = rew, obs
            except BaseException as error:
                rollout_recorder.discard_or_raise(self, self.recorder, t, e, error)
                continue
            if term or trunc or length + 1 >= limit:
                self._end_episode(actor, t, e, term, trunc or length + 1 >= limit, info)
        writer.copy(self.obs[t + 1], group)
        if writer.frames:
            writer.frames.store(t + 1, self.obs[t + 1], group, running, now)
        progress.done, progress.stepping = max(progress.done, group.stop), None

    def _end_episode(self, actor: Actor, t: int, e: int, term: bool, trunc: bool, info) -> None:
        """Records that the episode of environment e ended in step t, and begins its next one."""
        self._record_end(actor, t, e, self.running[e].start, term, trunc, info)
        self.begin_next(e)

    def _record_end(self, actor: Actor, t: int, e: int, start: int, term: bool, trunc: bool, info
                    ) -> None:
        self.writer.copy(self.views.fin, range(e, e + 1))
        self._check_final(e)
        self.recorder.end(t, e, start, term, trunc, info)
        if trunc and not term:
            actor.truncated(t, e)

    def _check_final(self, e: int) -> None:
        """Raises EnvError if the final observation of environment e is none."""
        if self.layout.mask is not None:  # every action counts as legal
            self.layout.legal(self.views.fin)[e] = True
        self.check(self.views.fin[e:e + 1], self.layout, e)

    def play_again(self, e: int, histories: Sequence[replay.EpisodeHistory], actor: Actor,
                   seconds: float = math.inf) -> Sequence[float]:
        """Brings environment e to the end of its history, whose actions `actor` stored.

        Returns the return by row; see replay_episode.
        """
        (obs, info), total = replay.replay_episode(self, e, histories[0], actor.to_env, seconds)
        if obs is not None:
            self.receive(e, obs, info)
        return [total]

    def _restore(self, actor: Actor, e: int) -> None:
        """Brings environment e, interrupted inside a call, back to the end of its last step."""
        stop, rows = self.recorder.origin + self.progress.t, range(e, e + self.agents)
        histories = [self.log.history(row, self.running[e], stop) for row in rows]
        self.play_again(e, histories, actor)
        # Its next episode begins after step t.
        self.progress.done = e + self.agents * (histories[0].start > stop)
        self.progress.stepping = None
