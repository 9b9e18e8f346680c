"""Environments stepped into shared arrays, in whatever process they are (see workers.py).

A rollout is T steps of E environments. An environment that ends is reset in the same step, with the
seed of its next episode, so that every row of a rollout is a step somebody took:

    obs[t] -> actor.act(t) -> env.step -> raw term trunc [t], obs[t+1]
                                  |- ended: fin = the true final observation, obs[t+1] = the reset's
"""

from typing import Sequence

import numpy as np

from fastppo.envs import faults
from fastppo.envs.make import Factory, make_envs
from fastppo.envs.observations import ObservationLayout
from fastppo.envs.wrappers import unchecked_step
from fastppo.machine import global_rng, kernels
from fastppo.stepping import checks
from fastppo.stepping.actors import Actor, RandomActor
from fastppo.stepping.episodes import WARMUP_EPISODE, EpisodeClock, EpisodeRecorder, RolloutViews
from fastppo.stepping.observation_buffer import observation_writer
from fastppo.stepping.replay import ActionLog, NoActionLog


class Serial:
    """Environments [first, first + n) of a run, stepped one after the other into `views`.

    A fault of an environment is raised as EnvError naming environment, seed, episode and step.
    `note(step, env)` is told where it stands (step -1: a reset) before every call into one.

    An interrupt can strike between any two lines: `place` is (t, environments that took step t),
    `busy` the one that may have taken half of it; lines run again write the same again.
    """

    def __init__(self, factories: Sequence[Factory], views: RolloutViews, actor: Actor, seed: int,
                 first: int = 0, groups: Sequence[range] = (), note=None, name: str = ""):
        self.envs, self.groups = make_envs(factories, first, name), groups or [range(len(factories))]
        self.actor, self.seed, self.first, self.name = actor, seed, first, name
        self.rows = list(views.obs)  # indexing a list costs a fifth of indexing the array
        self.fin, self.books = views.fin, EpisodeRecorder(views, first)
        self.seen = ObservationLayout(self.envs[0].observation_space, self.envs[0].action_space)
        self.intake = observation_writer(self.rows[0], self.seen)
        self.past = ActionLog(len(self.envs)) if note is None else NoActionLog()
        self.note, self.steps = note or (lambda step, env: None), [None] * len(self.envs)
        self.under_way, self.busy, self.place = None, -1, (0, 0)

    def warmup(self, steps: int) -> None:
        """Play `steps` random steps into obs[0 .. steps]; nothing of it is counted."""
        self.begin(WARMUP_EPISODE)
        actor = RandomActor(self.seen, self.rows, self.seed, self.first)
        self._run(WARMUP_EPISODE, actor, steps)

    def begin(self, episode: int = 0) -> None:
        """Reset every environment into its episode `episode`; the next rollout starts there."""
        self.busy, self.under_way, row = -1, None, self.rows[-1]
        self.noise = global_rng.GlobalRngWatch(self.books.views.drawn, self.name)
        self.books.begin()
        self.past.clear()
        into = self.intake.open(row)
        for e, env in enumerate(self.envs):
            env.action_space.seed(self._seed(e, 0))
            self._reset(e, episode, into, 0)
        self.intake.close(row, range(len(self.envs)))
        self._check(row, -1)

    def rollout(self, iteration: int) -> None:
        """Take T steps in every environment; the same iteration given again goes on with it."""
        self.noise.begin_rollout(iteration)
        self.actor.start(iteration)
        self._run(iteration, self.actor, len(self.rows) - 1)
        self.noise.end_rollout(self.books.first_episodes_over)

    def close(self) -> None:
        """Close the environments; what they raise now is printed and no longer stops anybody."""
        faults.close_all(self.envs)

    def _run(self, iteration: int, actor: Actor, steps: int) -> None:
        if iteration != self.under_way:
            self.rows[0][:] = self.rows[-1]
            self.past.forget(self.books.open())
            self.intake.settle()
            self.place, self.under_way = (0, 0), iteration
        if self.busy >= 0:
            self._restore(self.busy)
        for t in range(self.place[0], steps):
            for group in self.groups:
                actions = actor.act(t, group)
                self.past.keep(self.books.origin + t, group, actions)
                self._step(actor, t, group, actions)
            self._check(self.rows[t + 1], t)
            self.place = t + 1, 0
        actor.finish(steps)
        self.books.close(steps)

    def _step(self, actor: Actor, t: int, group: range, actions: list) -> None:
        """Take step t in those environments of `group` that have not."""
        books, intake, row, done = self.books, self.intake, self.rows[t + 1], self.place[1]
        now, clocks, rewards = books.origin + t, books.clocks, books.rewards[t]
        note, steps, into = self.note, self.steps, intake.open(row)
        for e, action in zip(group, actions):
            if e < done:
                continue
            self.busy = e
            episode, start, last = clocks[e]
            note(now - start, e)
            try:
                obs, rew, term, trunc, info = steps[e](action)
                if not isinstance(rew, float) or not abs(rew) <= checks.REWARD_MAX:
                    rew = checks.checked_reward(rew)
                if term is not False or trunc is not False:
                    term, trunc = checks.checked_flag(term), checks.checked_flag(trunc)
                if type(obs) is not np.ndarray or obs.shape != intake.shape \
                        or obs.dtype != intake.dtype:
                    obs = intake.unexpected(obs)
            except BaseException as error:
                raise self._fault(e, episode, now - start, "step()", error) from error
            rewards[e] = rew
            if not (term or trunc or now >= last):
                into[e][...] = obs
                continue
            trunc = trunc or now >= last
            intake.put(self.fin, e, obs)
            self._check(self.fin[e:e + 1], t, e)
            books.end(t, e, term, trunc, info)
            if trunc and not term:
                actor.cut(t, e)
            self._reset(e, episode + (1 if episode >= 0 else -1), into, now + 1)
        intake.close(row, group)
        self.place, self.busy = (t, max(done, group.stop)), -1

    def _reset(self, e: int, episode: int, into: list[np.ndarray], start: int) -> None:
        """Put the first observation of `episode`, whose first step will be `start`, in into[e]."""
        self.note(-1, e)
        try:
            obs, _ = self.envs[e].reset(seed=self._seed(e, episode))
            into[e][...] = self.intake.fitting(obs)
            self.steps[e], limit = unchecked_step(self.envs[e])
        except BaseException as error:
            raise self._fault(e, episode, 0, "reset()", error) from error
        self.books.clocks[e] = EpisodeClock(episode, start, start + limit - 1)

    def _restore(self, e: int) -> None:
        """Bring an environment interrupted inside a call back to where its clock stands."""
        (t, _), (episode, start, _) = self.place, self.books.clocks[e]
        now = self.books.origin + t
        self.past.replay(self.envs[e], self._seed(e, episode), e, start, now)
        self.steps[e], _ = unchecked_step(self.envs[e])
        self.place, self.busy = (t, e + (start > now)), -1

    def _check(self, rows: np.ndarray, t: int, first: int = 0) -> None:
        """Raise EnvError for the first of rows [e ...], of step t, that nobody can act on."""
        if found := self.seen.unusable(rows):
            e, bad = found
            episode, start, _ = self.books.clocks[first + e]
            step = self.books.origin + t - start
            field = "step()" if step >= 0 else "reset()"
            raise self._fault(first + e, episode, max(0, step), field, bad)

    def _seed(self, e: int, episode: int) -> int:
        return kernels.episode_seed(self.seed, kernels.Purpose.ENV_SEED, self.first + e, episode)

    def _fault(self, e: int, episode: int, step: int, field: str, error: BaseException):
        return faults.env_error_at(self.first + e, self.name, self._seed(e, episode), episode, step,
                                 field, error)
