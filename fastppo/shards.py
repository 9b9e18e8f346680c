"""The update's minibatches, computed by the main process and idle workers together.

A minibatch is a round of shards in one cell; whoever is free claims the next one. Nobody waits for
a turn, and who computes what changes no bit (csrc/update.h). Order, shards' gradients and samples
lie in the arena, so that a claim is all that is said.

    main    offer a round -> begin -> claim, shard, claim, shard ... -> wait for the rest -> finish
    worker                   claim -> begin -> shard, claim, shard ...
"""

from contextlib import contextmanager
from typing import Iterator, NamedTuple

import numpy as np

from . import kernels
from .actors import Recipe
from .arena import Arena, Spec
from .kernels import Memory, Samples, Terms, Update
from .machine import usable_cores
from .processes import SLICE_NS, SPIN_NS, UPDATE, UPDATING, Team, Turns

PAUSE, OVER = 0, 1  # rounds without pieces: another one follows; there is none any more


SCHEDULED = "clip_range", "clip_range_vf", "entropy_coef"  # what other iterations may have else


class Share(NamedTuple):
    """What a worker must know to compute shards."""

    recipe: Recipe
    terms: Terms
    norm_obs: bool


def shards_spec(params: int, samples: int) -> Spec:
    """The arrays through which processes share the minibatches of a rollout of `samples`."""
    row = -(-params // 32) * 32  # whole 128 bytes: no two shards write into one cache line
    return {"grads": ("<f4", (kernels.MAX_SHARDS, row)), "sums": ("<f8", (kernels.MAX_SHARDS, 6)),
            "order": ("<i8", (samples,)), "minibatch": ("<i8", (2,)), "weights": ("<f8", (3,))}


def samples_of(arena: Arena, norm_obs: bool) -> Samples:
    """The arena's rollout as samples, in time order."""
    rows = [arena[name][:len(arena["raw"])] for name in Samples._fields[:6]]
    obs, *rest = (x.reshape(-1, *x.shape[2:]) for x in rows)
    moments = (arena["mean"], arena["scale"]) if norm_obs else (None, None)
    return Samples(obs.reshape(len(obs), -1), *rest, *moments)


def shared_memory(memory: Memory, arena: Arena) -> Memory:
    """`memory` with the arena's places for what shards leave behind."""
    return memory._replace(grads=arena["grads"], sums=arena["sums"])


def helpers(workers: int) -> int:
    """How many of `workers` have a core to themselves while the main process computes, too."""
    return min(workers, usable_cores() - 1)


class Alone:
    """The main process by itself."""

    @contextmanager
    def session(self, terms: Terms) -> Iterator[None]:
        """Around all minibatches of one update, whose coefficients are `terms`."""
        yield

    def among(self, samples: Samples, order: np.ndarray) -> "Alone":
        """Who can compute minibatches of these samples in this order."""
        return self

    def minibatch(self, update: Update, first: int, last: int, *step) -> None:
        """See kernels.Update.minibatch."""
        update.minibatch(first, last, *step)


class Together(Alone):
    """The main process and its helpers among the workers, on what lies in the arena."""

    def __init__(self, team: Team, arena: Arena, norm_obs: bool):
        self.team, self.arena, self.norm_obs = team, arena, norm_obs
        self.round, self.finished = team.cells.round, team.cells.finished
        self.helpers, self.calls, self.rounds = helpers(len(team.workers)), 0, 0
        self.called = False

    @contextmanager
    def session(self, terms: Terms) -> Iterator[None]:
        """Have the helpers at hand; afterwards all workers wait for commands again."""
        self._dismiss()  # whom an interrupt has left at work
        now = (getattr(terms, name) for name in SCHEDULED)
        self.arena["weights"][:] = [-1 if x is None else x for x in now]
        self.called = self.team.idle()  # not while a rollout was interrupted, or after a fault
        if self.called:
            self.calls += 1
            self.round.post(PAUSE)
            self.team.post(UPDATE, self.calls)
        try:
            yield
        finally:
            self.called = False
            self._dismiss()

    def among(self, samples: Samples, order: np.ndarray) -> Alone:
        """All, if the samples are the arena's; else the main process alone."""
        own = samples_of(self.arena, self.norm_obs)
        if not self.called or any(_place(x) != _place(y) for x, y in zip(samples, own)):
            return Alone()
        self.arena["order"][:] = order
        return self

    def minibatch(self, update: Update, first: int, last: int, *step) -> None:
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
        self.team.watch()
        while not self.finished.wait_count(target, SPIN_NS, SLICE_NS):
            self.team.look_after(range(self.helpers))

    def _dismiss(self) -> None:
        if not self.team.closed and self.team.order[1] == UPDATE:
            self.round.post(OVER)
            self.team.settle()


class Idle:
    """A worker's side where it has no core of its own during an update."""

    def update(self, call: int) -> None:
        """Nothing."""


class Hand:
    """A helper's side: shards of whatever minibatch is on offer.

    Meanwhile the cell of `worker` says UPDATING in place of an environment's step.
    """

    def __init__(self, arena: Arena, share: Share, turns: Turns, worker: int):
        self.turns, self.minibatch = turns, arena["minibatch"]
        self.done = turns.cells.done[worker]
        self.cells, self.begun, self.terms = turns.cells, None, share.terms
        self.weights = arena["weights"]
        memory = kernels.update_memory(*share.recipe[:2], arena["params"], None, None)
        arena["order"].fill(0)
        self.shards = Update(*share.recipe, shared_memory(memory, arena),
                             samples_of(arena, share.norm_obs), arena["order"], share.terms)

    def update(self, call: int) -> None:
        """Compute what can be claimed, until that is all or another command is given."""
        weights = (None if x < 0 else x for x in self.weights.tolist())
        self.shards.weigh(self.terms._replace(**dict(zip(SCHEDULED, weights))))
        self.done.at(UPDATING, 0)
        go, cell = self.cells.go.value(), self.cells.round
        while (value := cell.value()) != OVER and self.cells.go.value() == go:
            claimed = cell.claim()
            if claimed < 0:
                self.turns.pause(cell, value, self.turns.spin)
                continue
            if claimed >> 8 != self.begun:
                self.shards.begin(*self.minibatch.tolist())
                self.begun = claimed >> 8
            self.shards.shard(claimed & 15)
            self.cells.finished.hint()


def _place(array: np.ndarray | None) -> tuple:
    return () if array is None else (array.ctypes.data, array.shape)
