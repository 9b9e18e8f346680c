"""A worker's share of the update: it claims shards of the current minibatch."""

from typing import NamedTuple

from fastppo.config import having
from fastppo.machine import kernels, limits
from fastppo.machine.arena import Arena, Spec
from fastppo.machine.kernels import UpdateBuffers, UpdateCoefficients, UpdateSamples
from fastppo.stepping.actors import PolicyPlan
from fastppo.workers.protocol import UPDATING
from fastppo.workers.worker_loop import WorkerSync

PAUSE, OVER = 0, 1  # rounds without pieces: another one follows; there is none any more


class HelperPlan(NamedTuple):
    """What a worker must know to compute shards."""

    recipe: PolicyPlan
    terms: UpdateCoefficients
    norm_obs: bool


def shards_spec(params: int, samples: int) -> Spec:
    """The arrays through which processes share the minibatches of a rollout of `samples`."""
    row = -(-params // 32) * 32  # whole 128 bytes: no two shards write into one cache line
    shards = kernels.MAX_SHARDS
    return {"grads": ("<f4", (shards, row)), "sums": ("<f8", (shards, kernels.SUMS)),
            "order": ("<i8", (samples,)), "minibatch": ("<i8", (2,)), "weights": ("<f8", (3,))}


def arena_samples(arena: Arena, norm_obs: bool) -> UpdateSamples:
    """The arena's rollout as samples, in time order."""
    obs, *rest = (arena[name][:len(arena["raw"])] for name in UpdateSamples._fields[:6])
    rest = [x.reshape(-1, *x.shape[2:]) for x in rest]
    moments = (arena["mean"], arena["scale"]) if norm_obs else ()
    if not len(frames := arena["frames"]):
        return UpdateSamples(obs.reshape(len(rest[0]), -1), *rest, *moments)
    frames = frames.reshape(frames.shape[0] * frames.shape[1], -1)
    return UpdateSamples(frames, *rest, stacks=arena["stacks"][:-1].reshape(len(rest[0]), -1))


def shared_memory(memory: UpdateBuffers, arena: Arena) -> UpdateBuffers:
    """`memory` with the arena's places for what shards leave behind."""
    return memory._replace(grads=arena["grads"], sums=arena["sums"])


def helper_count(workers: int) -> int:
    """How many of `workers` have a core to themselves while the main process computes, too."""
    return min(workers, limits.usable_cores() - 1)


class UpdateHelper:
    """A helper's side: shards of whatever minibatch is on offer.

    Meanwhile the cell of `worker` says UPDATING in place of an environment's step.
    """

    def __init__(self, arena: Arena, share: HelperPlan, turns: WorkerSync, worker: int):
        self.turns, self.minibatch = turns, arena["minibatch"]
        self.done = turns.cells.done[worker]
        self.cells, self.begun, self.terms = turns.cells, None, share.terms
        self.weights = arena["weights"]
        memory = kernels.update_memory(*share.recipe[:2], arena["params"], None, None)
        arena["order"].fill(0)
        self.shards = kernels.MinibatchUpdate(
            *share.recipe, shared_memory(memory, arena), arena_samples(arena, share.norm_obs),
            arena["order"], share.terms)

    def update(self, call: int) -> None:
        """Computes what can be claimed, until that is all or another command is given."""
        weights = (None if x < 0 else x for x in self.weights.tolist())
        self.shards.set_coefficients(self.terms._replace(**dict(zip(having("in_loss"), weights))))
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
