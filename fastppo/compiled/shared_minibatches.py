"""Minibatches computed by the main process and idle workers together."""

from contextlib import contextmanager
from functools import partial
from typing import Callable, Iterator

import numpy as np

from fastppo.collect import Rollout
from fastppo.config import having
from fastppo.machine.kernels import MinibatchUpdate
from fastppo.machine.shared_memory import Arena
from fastppo.update.schedules import Coefficients
from fastppo.workers.protocol import SLICE_NS, SPIN_NS, UPDATE
from fastppo.workers.team import WorkerTeam
from fastppo.workers.worker import OVER, PAUSE, helper_count


class SharedMinibatches:
    """The minibatches of the rollout buffer, computed by the main process and idle workers.

    A minibatch is a round of shards in one cell; each free process claims the next one. Claims
    decide only who computes a shard, so they change no bit (csrc/update/update.h).

        main    post a round -> begin -> claim, shard, claim, shard ... -> wait -> finish
        worker                  claim -> begin -> shard, claim, shard ...
    """

    def __init__(self, team: WorkerTeam, arena: Arena, rollout: Rollout):
        self.team, self.arena, self.rollout = team, arena, rollout
        self.round, self.finished = team.cells.round, team.cells.finished
        self.helpers, self.calls, self.rounds = helper_count(len(team.workers)), 0, 0

    @contextmanager
    def session(self, coefs: Coefficients) -> Iterator[bool]:
        """Keeps the helpers at work on one update; yields False if they cannot be called."""
        self._dismiss()  # helpers that an interrupt has left at work
        self.arena["weights"][:] = [-1 if x is None else x for x in (
            getattr(coefs, name) for name in having("in_loss"))]
        called = self.team.is_idle()  # not after an interrupted rollout or a fault
        if called:
            self.calls += 1
            self.round.post(PAUSE)
            self.team.post(UPDATE, self.calls)
        try:
            yield called
        finally:
            self._dismiss()

    def minibatches(self, update: MinibatchUpdate, order: np.ndarray, first: np.ndarray | None
                    ) -> Callable[..., None]:
        """The function that computes a minibatch of `order`, as update.minibatch does.

        With memory, of which `first` [b] tells the sequences, the samples are ordered by
        environment, and those of the arena by step.
        """
        if first is not None:
            steps, envs = self.arena["term"].shape
            self.arena["first"].reshape(steps, envs)[:] = first.reshape(envs, steps).T
            order = order % steps * envs + order // steps
        self.arena["order"][:] = order
        return partial(self._minibatch, update)

    def _minibatch(self, update: MinibatchUpdate, first: int, last: int, *step) -> None:
        self.arena["minibatch"][:] = first, last
        shards = update.shards(last - first)
        target = self.finished.value() + shards & 0xFFFFFFFF
        self.rounds += 1
        self.round.post((self.rounds << 8 | shards << 4) & 0xFFFFFFFF)
        update.begin(first, last)  # the helpers do the same meanwhile
        while (claimed := self.round.claim()) >= 0:
            update.shard(claimed & 15)
            self.finished.hint()
        if not self.finished.wait_count(target, SPIN_NS, SPIN_NS):  # shards that helpers compute
            self.team.restart_timers()
            while not self.finished.wait_count(target, SPIN_NS, SLICE_NS):
                self.team.check_workers(range(self.helpers))
        update.finish(*step)

    def _dismiss(self) -> None:
        if not self.team.closed and self.team.posted.command == UPDATE:
            self.round.post(OVER)
            self.team.finish_last()
