"""Environments stepped into shared arrays, in whatever process they are (see workers.py).

A rollout is T steps of E environments. An environment that ends is reset in the same step, with the
seed of its next episode, so that every row of a rollout is a step somebody took:

    obs[t] -> actor.act(t) -> env.step -> raw term trunc [t], obs[t+1]
                                  |- ended: fin = the true final observation, obs[t+1] = the reset's
"""

from typing import NamedTuple, Sequence

import numpy as np

from . import contract, kernels
from .actors import Actor, Random
from .arena import Arena
from .envs import Factory, build

WARMUP_EPISODE = -1  # training's episodes are 0, 1, 2, ...; those before it count down


class Views(NamedTuple):
    """The arrays a Serial writes, all over one slice of environments."""

    obs: np.ndarray  # [t+1 e ...]
    fin: np.ndarray  # [e ...]
    raw: np.ndarray  # f32 [t e]
    term: np.ndarray  # bool [t e]
    trunc: np.ndarray  # bool [t e]
    total: np.ndarray  # f64 [t e]: return of the episode that ended at this step
    length: np.ndarray  # i64 [t e]: its length in steps; 0 where none ended

    @classmethod
    def of(cls, arena: Arena, first: int, last: int) -> "Views":
        """The environments [first, last) of an arena's arrays."""
        return cls(arena["obs"][:, first:last], arena["fin"][first:last],
                   *(arena[name][:, first:last] for name in cls._fields[2:]))


class Clock(NamedTuple):
    """Where one environment stands; replaced whole, so that an interrupt never sees half a step."""

    episode: int
    length: int  # steps taken in this episode,
    total: float  # and the sum of their rewards as the environment gave them
    steps: int  # steps taken in this rollout
    log: list  # the episode's actions, kept where an interrupt can strike (the main process)


class Serial:
    """Environments [first, first + n) of a run, stepped one after the other into `views`.

    A fault of an environment is raised as EnvError naming environment, seed, episode and step.
    `note(step, env)` is told where it stands (step -1: a reset) before every call into one.
    """

    def __init__(self, factories: Sequence[Factory], views: Views, actor: Actor, seed: int,
                 first: int = 0, groups: Sequence[range] = (), note=None, name: str = ""):
        self.envs = build(factories, first, name)
        self.views, self.actor, self.seed, self.first, self.name = views, actor, seed, first, name
        self.groups = groups or [range(len(factories))]
        self.rows = list(views.obs)  # indexing a list costs a fifth of indexing the array
        self.shape, self.dtype = views.obs.shape[2:], self.envs[0].observation_space.dtype
        self.note, self.keep_log = note or (lambda step, env: None), note is None
        self.clocks: list[Clock] = []
        self.under_way, self.busy = None, -1

    def warmup(self, steps: int) -> None:
        """Play `steps` random steps into obs[0 .. steps]; nothing of it is counted."""
        self.begin(WARMUP_EPISODE)
        actor = Random(self.envs[0].action_space, self.seed, self.first, len(self.envs))
        self._run(WARMUP_EPISODE, actor, steps)

    def begin(self, episode: int = 0) -> None:
        """Reset every environment into its episode `episode`; the next rollout starts there."""
        self.busy, self.under_way, self.clocks = -1, None, [None] * len(self.envs)
        self.noise = contract.global_noise()
        for e, env in enumerate(self.envs):
            env.action_space.seed(self._seed(e, 0))
            self._reset(e, episode, len(self.views.raw))

    def rollout(self, iteration: int) -> None:
        """Take T steps in every environment; the same iteration given again goes on with it."""
        self.actor.start(iteration)
        self._run(iteration, self.actor, len(self.views.raw))
        if iteration == 0:
            contract.check_global_noise(self.noise, self.name)

    def close(self) -> None:
        """Close the environments; what they raise now is printed and no longer stops anybody."""
        contract.close(self.envs)

    def _run(self, iteration: int, actor: Actor, steps: int) -> None:
        if iteration != self.under_way:
            self.rows[0][:] = self.rows[-1]
            self.clocks = [clock._replace(steps=0) for clock in self.clocks]
            self.under_way = iteration
        if self.busy >= 0:
            self._restore(self.busy)
        for t in range(min(clock.steps for clock in self.clocks), steps):
            for group in self.groups:
                for e, action in zip(group, actor.act(t, group)):
                    if self.clocks[e].steps == t:
                        self.busy = e
                        self._step(actor, t, e, action)
                        self.busy = -1
            self._check(self.rows[t + 1])
        actor.finish(steps)

    def _step(self, actor: Actor, t: int, e: int, action) -> None:
        episode, length, total, _, log = self.clocks[e]
        self.note(length, e)
        try:
            obs, rew, term, trunc, _ = self.envs[e].step(action)
            if not isinstance(rew, float) or not abs(rew) <= contract.REWARD_MAX:
                rew = contract.reward(rew)
            term, trunc = bool(term), bool(trunc)
            ended = term or trunc
            self._keep(self.views.fin if ended else self.rows[t + 1], e, obs)
        except BaseException as error:
            raise self._fault(e, episode, length, "step()", error) from error
        self.views.raw[t, e] = rew
        if self.keep_log and length < contract.REPLAY_LIMIT:
            log.append(action)
        if not ended:
            self.clocks[e] = Clock(episode, length + 1, total + rew, t + 1, log)
            return
        self._check(self.views.fin[e:e + 1], e, (episode, length, "step()"))
        self.views.term[t, e], self.views.trunc[t, e] = term, trunc
        self.views.total[t, e], self.views.length[t, e] = total + rew, length + 1
        if trunc and not term:
            actor.cut(t, e)
        self._reset(e, episode + 1 if episode >= 0 else episode - 1, t + 1)

    def _reset(self, e: int, episode: int, t: int) -> None:
        """Put the first observation of `episode` into row t."""
        self.note(-1, e)
        try:
            obs, _ = self.envs[e].reset(seed=self._seed(e, episode))
            self._keep(self.rows[t], e, obs)
        except BaseException as error:
            raise self._fault(e, episode, 0, "reset()", error) from error
        self._check(self.rows[t][e:e + 1], e, (episode, 0, "reset()"))
        self.clocks[e] = Clock(episode, 0, 0.0, t, [])

    def _restore(self, e: int) -> None:
        """Bring an environment interrupted inside a call back to where its clock stands."""
        episode, length, _, _, log = self.clocks[e]
        contract.replay(self.envs[e], self._seed(e, episode), log, length)
        self.busy = -1

    def _keep(self, row: np.ndarray, e: int, obs) -> None:
        """Copy an observation at once: an environment may reuse its array."""
        if type(obs) is not np.ndarray or obs.shape != self.shape or obs.dtype != self.dtype:
            obs = contract.observation(obs, self.shape, row.dtype)
            self.dtype = obs.dtype
        row[e] = obs

    def _check(self, rows: np.ndarray, first: int = 0, place: tuple | None = None) -> None:
        """Raise EnvError for the first number in rows [e ...] that is not finite.

        `place` is (episode, step, call) that returned them; none: each one's last step.
        """
        if rows.dtype == np.float32 and (at := kernels.first_nonfinite(rows)) >= 0:
            e, bad = contract.nonfinite(rows, at)
            episode, length = self.clocks[first + e][:2]
            raise self._fault(first + e, *(place or (episode, length - 1, "step()")), bad)

    def _seed(self, e: int, episode: int) -> int:
        return kernels.episode_seed(self.seed, kernels.Purpose.ENV_SEED, self.first + e, episode)

    def _fault(self, e: int, episode: int, step: int, field: str, error: BaseException):
        where = f"{self.name}seed {self._seed(e, episode)}, episode {episode}, step {step}"
        return contract.fault(f"environment {self.first + e} ({where})", field, error)
