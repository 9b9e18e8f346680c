"""Workers: Serials on slices of the environments, each in a process of its own.

Worker w of W steps environments [E*w//W, E*(w+1)//W) into the same arrays that the main process
sees whole; nothing else distinguishes it from a Serial in the main process.
"""

import gc
from functools import partial
from typing import Sequence

from fastppo.envs.actions import ActionMapping
from fastppo.envs.make import Factory
from fastppo.envs.observations import ObservationLayout
from fastppo.machine import global_rng
from fastppo.machine.arena import Arena
from fastppo.stepping.actors import CentralActor, LocalActor, PolicyPlan, WaitingActor, first_turn
from fastppo.stepping.episodes import RolloutViews
from fastppo.vecenv import Serial
from fastppo.workers.protocol import BEGIN, ROLLOUT, WARMUP, WorkerJob, worker_slices
from fastppo.workers.team import WorkerTeam
from fastppo.workers.update_helper import HelperPlan, NoHelper, UpdateHelper, helper_count


class WorkerVecEnv:
    """Serials on slices of the environments in other processes; the same calls, the same arrays.

    `central` infers for them between their steps; None where they act for themselves.
    """

    def __init__(self, team: WorkerTeam, steps: int, central: CentralActor | None):
        self.team, self.steps, self.central = team, steps, central
        self.served, self.said = (-1, 0), False

    def warmup(self, steps: int) -> None:
        """See Serial.warmup."""
        self.team.run(WARMUP, steps)

    def begin(self) -> None:
        """See Serial.begin."""
        self.team.run(BEGIN)

    def rollout(self, iteration: int) -> None:
        """See Serial.rollout."""
        self.team.post(ROLLOUT, iteration)
        if self.central:
            self.central.start(iteration)
            self._serve(first_turn(iteration, self.steps, len(self.central.groups)))
        self.team.run(ROLLOUT, iteration)
        if self.central:
            self.central.finish(self.steps)
        self.said = self.said or global_rng.warn_global_rng(self.team.arena["drawn"])

    def close(self) -> None:
        """Stop the processes; always returns, twice is fine."""
        self.team.close()

    def _serve(self, first: int) -> None:
        """Infer for one group while the other one steps."""
        groups, cells = self.central.groups, self.team.cells
        turns = self.steps * len(groups)
        for k in range(self.served[1] if self.served[0] == first else 0, turns):
            t, g = divmod(k, len(groups))
            self.team.wait(cells.stepped, first + 1 + max(0, k - len(groups) + 1))
            self.central.infer(t, groups[g])
            cells.turns[g].post(first + k + 1 & 0xFFFFFFFF)
            self.served = first, k + 1


class WorkerSerial(Serial):
    """A worker's Serial, with a hand for the update."""

    def __init__(self, hand: UpdateHelper | NoHelper, *serial):
        super().__init__(*serial)
        self.update = hand.update


def worker_jobs(factories: Sequence[Factory], arena: Arena, workers: int, groups: Sequence[range],
         recipe: PolicyPlan | None, seen: ObservationLayout, acts: ActionMapping, seed: int,
         share: HelperPlan | None = None) -> list[WorkerJob]:
    """What each worker is to make: a Serial on its slice, acting by `recipe` or waiting for it.

    With a `share` as many as there are cores for help with updates, too.
    """
    todo = []
    for w, (first, last) in enumerate(worker_slices(len(factories), workers)):
        make = partial(serial_on_slice, factories[first:last], first, groups, recipe, seen, acts,
                       seed, w, share if w < helper_count(workers) else None)
        todo.append(WorkerJob(make, arena.spec, w, first))
    return todo


def serial_on_slice(factories: Sequence[Factory], first: int, groups: Sequence[range],
                    recipe: PolicyPlan | None, seen: ObservationLayout, acts: ActionMapping, seed: int,
                    worker: int, share: HelperPlan | None, arena: Arena, note, turns) -> WorkerSerial:
    """Runs in the worker: its Serial, with the actor that it needs."""
    last = first + len(factories)
    if recipe is None:
        groups = [_within(group, first, last) for group in groups]
        actor = WaitingActor(arena, first, last, groups, acts, turns)
    else:
        groups, actor = (), LocalActor(arena, first, last, recipe, seen, acts, seed)
    hand = UpdateHelper(arena, share, turns, worker) if share else NoHelper()
    views = RolloutViews.of(arena, first, last, worker)
    member = WorkerSerial(hand, factories, views, actor, seed, first, groups, note, f"worker {worker}, ")
    gc.freeze()  # what is there now stays: no later search for garbage need look at it
    return member


def _within(group: range, first: int, last: int) -> range:
    """The part of `group` in [first, last), counted from first."""
    start = min(max(group.start, first), last)
    return range(start - first, min(max(group.stop, start), last) - first)
