"""Steps compiled environments into a rollout, all rows of a group by one call."""

import math
from typing import Any, Sequence

import numpy as np
from gymnasium.spaces import Box, Discrete

from fastppo.compiled_envs.rows import FAILS
from fastppo.machine.kernels import GOING
from fastppo.spaces.actions import bounds_of
from fastppo.spaces.leaves import leaf_arrays
from fastppo.spaces.observations import NonFiniteValue, ObservationLayout
from fastppo.stepping.actors import Actor, LocalActor, check_outputs
from fastppo.stepping.environments import ResetOptions, RunningEpisode, options_at
from fastppo.stepping.replay import EpisodeHistory, ResumedEpisodes
from fastppo.vecenv import Serial

CALL_SECONDS = 0.02  # after which a rollout returns to Python, for signals


class EpisodesOfRows:
    """The running episodes of rows, which the compiled steps count there."""

    def __init__(self, rows: np.ndarray):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, e: int) -> RunningEpisode:
        row = self.rows[e]
        return RunningEpisode(*map(int, (row.number, row.rng.seed, row.start)))

    def __setitem__(self, e: int, episode: RunningEpisode) -> None:
        self.rows[e].number, self.rows[e].start = episode.number, episode.start


class CompiledSerial(Serial):
    """A Serial of compiled environments, whose rows are in shared memory: a snapshot has them.

    Steps are Serial's, one environment after the other, where the rules say what is done about
    episodes that fail.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.kind = self.envs[0].unwrapped
        self.running = EpisodesOfRows(self.views.rows.view(self.kind.layout.row)[:, 0])
        for env, memory in zip(self.envs, self.views.rows):
            env.unwrapped.use(memory)
        self.actor.to_env = self.actor.actions.arrays()
        self.bounds = sent_bounds(self.actor) if type(self.actor) is LocalActor else None

    def begin(self, resumed: ResumedEpisodes | None = None, episode: int = 0) -> list[int]:
        """See Serial.begin."""
        restarted, views = super().begin(resumed, episode), self.views
        views.same_game.fill(False)
        self.compiled = self.kind.code.env_rows(
            views.rows, self.seed, self.first, views.fin, (
                self.recorder.rewards, views.term, views.trunc, views.obs, views.length, views.act,
                views.logp, views.val, views.nxt))
        self.use_options(self.options)
        return restarted

    def receive(self, e: int, obs: Any, info: dict, begins=None, ended: bool = False) -> None:
        """Stores an observation, and the limit of an episode that begins."""
        super().receive(e, obs, info, begins, ended)
        if begins:
            self.running.rows[e].limit = min(self.kind.limit, self.steps[e][1])

    def use_options(self, history: ResetOptions) -> None:
        """See Environments.use_options."""
        super().use_options(history)
        for e, env in enumerate(self.envs):
            env.unwrapped.set_options(options_at(history, self.number(e), self.now + 2) or {})

    def _steps_left(self, actor: Actor, steps: int) -> range:
        """See Serial: takes all steps, by calls of some milliseconds, if C can act."""
        if actor is not self.actor or not self.bounds or self.rules.cuts or self.rules.reset_on_nan:
            return super()._steps_left(actor, steps)
        (plan, _, limit), noise, out, progress = actor.plan, actor.noise, actor.out, self.progress
        (scaled, *bounds), starts = self.bounds, self.running.rows["start"]
        scratch, origin = (noise.out, np.empty_like(noise.out), out), self.recorder.origin
        while progress.t < steps:
            if self.note is not None:
                self.note(origin + progress.t - int(starts[0]), 0)
            stop = self.compiled.run(
                plan, *actor.weights, limit, bounds, scaled, noise.seed, scratch, progress.t, steps,
                origin, actor.first_step, CALL_SECONDS)
            actor.acting += stop["acting"]
            progress.t = t = stop["t"]
            self.now = origin + t - (stop["reason"] == GOING)
            if stop["reason"] != GOING:
                self._raise_stop(actor, t, stop["row"])
        return range(steps, steps)

    def _raise_stop(self, actor: Actor, t: int, row: int) -> None:
        """Raises the error for which step t of a rollout has stopped."""
        check_outputs(actor.checked[t], self.first, t)
        if row >= 0:
            self._raise_fault(row, actor.to_env(actor.act_rows[t])[row])
        for e in self._ended(t, range(len(self.envs))):
            self._check_final(e)
        self.check(self.obs[t + 1], self.layout)
        raise self.fault(0, "step()", RuntimeError("a rollout has stopped without a reason"))

    def _ended(self, t: int, group: range) -> list[int]:
        """The environments of a group whose episodes step t has ended."""
        return [e for e in np.flatnonzero(self.views.length[t]).tolist() if e in group]

    def check(self, rows: np.ndarray, layout: ObservationLayout, first: int = 0) -> None:
        """See Environments.check, which leaves the numbers of records to Serial's writer."""
        for i, part in enumerate(leaf_arrays(rows) if rows.dtype.names else ()):
            if part.dtype == np.float32 and not (fine := np.isfinite(part)).all():
                e = first + int(fine.reshape(len(part), -1).all(1).argmin())
                raise self.fault(e, "step()", NonFiniteValue(f"{layout.leaves[i].leaf} is not"
                                                             " finite"))
            if part.dtype.kind == "b":
                part[...] = part.view(np.uint8) != 0  # machine code writes any byte
        super().check(rows, layout, first)

    def _step(self, actor: Actor, t: int, group: range) -> None:
        if self.rules.cuts or self.rules.reset_on_nan:
            return super()._step(actor, t, group)
        act = np.ascontiguousarray(actor.act(t, group), self.kind.layout.act)
        if not group:
            return
        if self.note is not None:
            start = self.running.rows["start"][group.start]
            self.note(self.now - int(start), group.start)
        failed = self.compiled.step(t, self.now, group.start, group.stop, act)
        if failed >= 0:
            self._raise_fault(failed, act[failed - group.start])
        for e in self._ended(t, group):
            self._check_final(e)
            if self.views.trunc[t, e] and not self.views.term[t, e]:
                actor.truncated(t, e)

    def _raise_fault(self, e: int, action: Any) -> None:
        """Raises the error of a step of environment e, which Python takes again."""
        *_, term, trunc, _ = self.take_step(e, action)
        if term or trunc:
            self.begin_next(e)
        raise self.fault(e, "step()", RuntimeError(FAILS))

    def play_again(self, e: int, histories: Sequence[EpisodeHistory], actor: Actor,
                   seconds: float = math.inf) -> Sequence[float]:
        """See Serial.play_again; a row that is at the end of its history has nothing to replay."""
        row, (history,) = self.running.rows[e], histories
        at_end = (row.number, row.start) == history[:2] and row.start + row.length == self.now + 1
        if self.progress.stepping is not None or not at_end:
            return super().play_again(e, histories, actor, seconds)
        self.receive(e, self.envs[e].unwrapped.observe(), {},
                     self.new_episode(e, history.number)._replace(start=history.start))
        return [history.total]


def sent_bounds(actor: LocalActor) -> tuple[bool, Any, Any] | None:
    """(True if they are scaled, low, high) of the actions that C can send to environments.

    None if Python must encode observations, map actions or remember.
    """
    space, kind = actor.actions.space, actor.actions.bounds_map
    if not actor.encoding.identity or actor.layout.mask is not None or actor.state.size:
        return None
    if isinstance(space, Discrete):
        return (False, None, None) if space.start == 0 and space.dtype == np.int64 else None
    fits = isinstance(space, Box) and space.dtype == np.float32 and kind in ("clip", "scale")
    return (kind == "scale", *bounds_of(space)) if fits else None
