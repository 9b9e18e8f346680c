"""The environments of a run in worker processes, with the interface of Serial.

Worker w of W steps environments [E*w//W, E*(w+1)//W) with a Serial of its own, which writes into
the same arena.
"""

import gc
import pickle
from typing import Sequence

import numpy as np

from fastppo.envs.make import Factory
from fastppo.machine import global_rng
from fastppo.machine.arena import Arena
from fastppo.spaces.actions import ActionMapping
from fastppo.spaces.observations import ObservationLayout
from fastppo.stepping.actors import CentralActor, LocalActor, PolicyPlan, WaitingActor, first_turn
from fastppo.stepping.environments import EpisodeRules
from fastppo.stepping.episodes import RolloutViews
from fastppo.stepping.replay import ResumedEpisodes
from fastppo.vecenv import Serial
from fastppo.workers.protocol import ROLLOUT, START, WARMUP, Mailbox, worker_slices
from fastppo.workers.restarts import WorkerRestarts
from fastppo.workers.team import WorkerTeam
from fastppo.workers.update_helper import HelperPlan, UpdateHelper
from fastppo.workers.worker_loop import WorkerSync


class WorkerVecEnv:
    """Environments in worker processes; the same calls and the same arrays as Serial.

    `central` computes the actions in the main process; None if the workers do. `restarts` starts
    the workers again after a fault.
    """

    def __init__(self, team: WorkerTeam, steps: int, central: CentralActor | None,
                 restarts: WorkerRestarts | None = None):
        self.restarts = restarts
        self.team, self.steps, self.central, self.begins = team, steps, central, 0
        self._inferred = -1, 0  # the first turn of a rollout, and how many turns of it are done
        self._warned = False

    def warmup(self, steps: int) -> None:
        """Does what Serial.warmup does."""
        self.team.run(WARMUP, steps)

    def begin(self, resumed: ResumedEpisodes | None = None) -> list[int]:
        """See Serial.begin."""
        team, restarted, self._inferred = self.team, [], (-1, 0)
        if self.central:
            self.central.iteration = None
        slices = worker_slices(len(team.factories), len(team.workers))
        team.finish_last()  # after an interrupt, the command before may still run
        for worker, (first, last) in zip(team.workers, slices):
            worker.mailbox.write(pickle.dumps(resumed and resumed.part(first, last)))
        self.begins += 1
        team.run(START, self.begins)
        for worker in team.workers:
            restarted += [worker.first_env - team.first + e for e in worker.mailbox.read()]
        return restarted

    def rollout(self, iteration: int) -> None:
        """Does what Serial.rollout does."""
        if self.central:
            self.team.post(ROLLOUT, iteration)
            self.central.start(iteration)
            self._infer(first_turn(iteration, self.steps, len(self.central.groups)))
        self.team.run(ROLLOUT, iteration)
        if self.central:
            self.central.finish(self.steps)
        if not self._warned:
            self._warned = global_rng.warn_global_rng(self.team.arena["drawn"])

    def close(self) -> None:
        """Stops the processes; always returns. A second call does nothing."""
        self.team.close()

    def _infer(self, first: int) -> None:
        """Infers for one group of environments while the other one steps, from turn `first` on."""
        groups, cells = self.central.groups, self.team.cells
        begin = self._inferred[1] if self._inferred[0] == first else 0
        for k in range(begin, self.steps * len(groups)):
            t, g = divmod(k, len(groups))
            self.team.wait(cells.stepped, first + 1 + max(0, k - len(groups) + 1))
            self.central.infer(t, groups[g])
            cells.turns[g].post(first + k + 1 & 0xFFFFFFFF)
            self._inferred = first, k + 1


class WorkerSerial(Serial):
    """A Serial in a worker, which begins with the episodes in its mailbox."""

    mailbox: Mailbox

    def start(self, number: int) -> None:
        """Calls `begin` with the message in the mailbox; what it returns is the answer."""
        self.mailbox.write(pickle.dumps(self.begin(self.mailbox.read())))


def make_worker_serial(groups: Sequence[range], recipe: PolicyPlan | None, seen: ObservationLayout,
                       acts: ActionMapping, seed: int, rules: EpisodeRules,
                       share: HelperPlan | None, helpers: int,
                       factories: Sequence[Factory], first: int, worker: int, arena: Arena,
                       sync: WorkerSync) -> Serial:
    """Makes, in the worker, a Serial on its slice of the environments.

    It acts by `recipe`, or waits for the main process's actions if that is None. With `share`, the
    first `helpers` workers also help to compute updates.
    """
    last = first + len(factories)
    if recipe is None:
        groups = [range(*np.clip((group.start, group.stop), first, last) - first)
                  for group in groups]
        actor = WaitingActor(arena, first, last, groups, acts, sync)
    else:
        groups, actor = (), LocalActor(arena, first, last, recipe, seen, acts, seed)
    views = RolloutViews.of(arena, first, last, worker)
    serial = WorkerSerial(factories, views, actor, seed, first, groups, sync.note,
                          f"worker {worker}, ", rules)
    serial.mailbox, serial.update = sync.mailbox, lambda call: None
    if share is not None and worker < helpers:
        serial.update = UpdateHelper(arena, share, sync, worker).update
    gc.freeze()  # no later garbage collection looks at the objects that exist now
    return serial
