"""Minibatches computed by the main process and idle workers together."""

from contextlib import contextmanager
from typing import Iterator

import numpy as np

from fastppo.machine.arena import Arena
from fastppo.machine.kernels import MinibatchUpdate, UpdateCoefficients, UpdateSamples
from fastppo.workers.protocol import SLICE_NS, SPIN_NS, UPDATE
from fastppo.workers.team import WorkerTeam
from fastppo.workers.update_helper import OVER, PAUSE, SCHEDULED, arena_samples, helper_count


class OwnMinibatches:
    """The main process by itself."""

    @contextmanager
    def session(self, terms: UpdateCoefficients) -> Iterator[None]:
        """Around all minibatches of one update, whose coefficients are `terms`."""
        yield

    def among(self, samples: UpdateSamples, order: np.ndarray) -> "OwnMinibatches":
        """Who can compute minibatches of these samples in this order."""
        return self

    def minibatch(self, update: MinibatchUpdate, first: int, last: int, *step) -> None:
        """See kernels.Update.minibatch."""
        update.minibatch(first, last, *step)


class SharedMinibatches(OwnMinibatches):
    """The main process and its helpers among the workers, on what lies in the arena."""

    def __init__(self, team: WorkerTeam, arena: Arena, norm_obs: bool):
        self.team, self.arena, self.norm_obs = team, arena, norm_obs
        self.round, self.finished = team.cells.round, team.cells.finished
        self.helpers, self.calls, self.rounds = helper_count(len(team.workers)), 0, 0
        self.called = False

    @contextmanager
    def session(self, terms: UpdateCoefficients) -> Iterator[None]:
        """Have the helpers at hand; afterwards all workers wait for commands again."""
        self._dismiss()  # whom an interrupt has left at work
        now = (getattr(terms, name) for name in SCHEDULED)
        self.arena["weights"][:] = [-1 if x is None else x for x in now]
        self.called = self.team.is_idle()  # not while a rollout was interrupted, or after a fault
        if self.called:
            self.calls += 1
            self.round.post(PAUSE)
            self.team.post(UPDATE, self.calls)
        try:
            yield
        finally:
            self.called = False
            self._dismiss()

    def among(self, samples: UpdateSamples, order: np.ndarray) -> OwnMinibatches:
        """All, if the samples are the arena's; else the main process alone."""
        own = arena_samples(self.arena, self.norm_obs)
        if not self.called or any(_address(x) != _address(y) for x, y in zip(samples, own)):
            return OwnMinibatches()
        self.arena["order"][:] = order
        return self

    def minibatch(self, update: MinibatchUpdate, first: int, last: int, *step) -> None:
        """See kernels.Update.minibatch; interrupted, the session's end waits for the helpers."""
        self.arena["minibatch"][:] = first, last
        pieces = update.shards(last - first)
        target = self.finished.value() + pieces & 0xFFFFFFFF
        self.rounds += 1
        self.round.post((self.rounds << 8 | pieces << 4) & 0xFFFFFFFF)
        update.begin(first, last)  # while the helpers do the same
        while (claimed := self.round.claim()) >= 0:
            update.shard(claimed & 15)
            self.finished.hint()
        self._wait(target)
        update.finish(*step)

    def _wait(self, target: int) -> None:
        """Until the shards that helpers have claimed are there."""
        if self.finished.wait_count(target, SPIN_NS, SPIN_NS):
            return
        self.team.restart_timers()
        while not self.finished.wait_count(target, SPIN_NS, SLICE_NS):
            self.team.check_workers(range(self.helpers))

    def _dismiss(self) -> None:
        if not self.team.closed and self.team.posted.command == UPDATE:
            self.round.post(OVER)
            self.team.finish_last()


def _address(array: np.ndarray | None) -> tuple:
    return () if array is None else (array.ctypes.data, array.shape)
