"""A worker process: its loop of commands, its Serial, and its share of the update.

Worker w of W steps environments [E*w//W, E*(w+1)//W) with a Serial of its own, which writes into
the same arena. In the update it claims shards of the current minibatch and computes them.
"""

import gc
import os
import pickle
import time
from typing import NamedTuple, Sequence

import numpy as np

from fastppo.config import having
from fastppo.envs import faults
from fastppo.envs.make import Factory
from fastppo.errors import Error
from fastppo.machine import kernels, limits
from fastppo.machine.kernels import UpdateCoefficients, UpdateSamples
from fastppo.machine.shared_memory import Arena, Spec
from fastppo.spaces.actions import ActionMapping
from fastppo.spaces.observations import ObservationLayout
from fastppo.stepping.actors import LocalActor, PolicyPlan, WaitingActor
from fastppo.stepping.environments import EpisodeRules
from fastppo.stepping.rollout_recorder import RolloutViews
from fastppo.vecenv import Serial
from fastppo.workers import protocol
from fastppo.workers.protocol import ControlCells, Mailbox

PAUSE, OVER = 0, 1  # rounds without pieces: another one follows; there is none any more


def worker_loop(job: bytes, mailbox_fd: int, arena_fd: int, parent: int) -> None:
    """Makes the object that the job describes, then runs its methods as commanded, until CLOSE."""
    spec, index, groups, spinning, make = pickle.loads(job)
    arena = Arena(spec, arena_fd)
    cells = ControlCells(arena, groups)
    sync, done = WorkerSync(cells, index, spinning, parent, Mailbox(mailbox_fd)), cells.done[index]
    stamps, name, generation = arena["stamps"][index], "its start", 0
    try:
        made = pickle.loads(make)(arena, sync)
        while True:
            done.at(protocol.IDLE, 0)
            done.post(generation)
            cells.hint.hint()
            generation = sync.wait_until(cells.go, generation + 1, sync.idle_spin)
            command, argument = arena["command"].tolist()
            if command == protocol.CLOSE:
                break
            begin, name = time.monotonic_ns(), protocol.COMMANDS[command]
            getattr(made, name)(argument)
            stamps[generation % protocol.STAMPS] = command, begin, time.monotonic_ns()
        made.close()
    except BaseException as error:  # the main process must get the text of every error
        if not isinstance(error, Error):
            error = faults.env_error(f"worker {index}", name, error)
        sync.mailbox.write(pickle.dumps(error))
        done.state = protocol.FAILED
        cells.hint.hint(protocol.ALARM)
        os._exit(1)


class WorkerSync:
    """A worker's connection with the main process: its cells and its mailbox.

    `note(step, env)` records the environment's step that begins; step -1 is a reset.
    """

    def __init__(self, cells: ControlCells, index: int, spinning: tuple[int, int], parent: int,
                 mailbox: Mailbox):
        self.cells, self.parent, self.mailbox = cells, parent, mailbox
        self.spin, self.idle_spin = spinning  # see spin_times
        self.note, self._stepped = cells.done[index].at, cells.stepped[index]

    def wait_until(self, cell, target: int, spin: int) -> int:
        """Sleeps until `cell` reaches `target`; returns its value; exits if the parent died."""
        while protocol.is_behind(value := cell.value(), target):
            self.pause(cell, value, spin)
        return value

    def pause(self, cell, value: int, spin: int) -> None:
        """Sleeps while `cell` has `value`, for a slice at most; exits if the parent has died."""
        if not cell.wait_change(value, spin, protocol.SLICE_NS) and os.getppid() != self.parent:
            os._exit(1)

    def stepped(self, count: int) -> None:
        """Reports that `count` groups have been stepped since the run began."""
        self._stepped.post(count & 0xFFFFFFFF)
        self.cells.hint.hint()

    def wait(self, group: int, count: int) -> None:
        """Waits until the main process has released group step `count`."""
        self.wait_until(self.cells.turns[group], count & 0xFFFFFFFF, self.spin)


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
            "order": ("<i8", (samples,)), "first": ("|b1", (samples,)),
            "minibatch": ("<i8", (2,)), "weights": ("<f8", (3,))}


def arena_samples(arena: Arena, norm_obs: bool) -> UpdateSamples:
    """The arena's rollout as samples, in time order."""
    obs, *rest = (arena[name][:len(arena["raw"])] for name in UpdateSamples._fields[:6])
    rest = [x.reshape(-1, *x.shape[2:]) for x in rest]
    moments, more = (arena["mean"], arena["scale"]) if norm_obs else (), {}
    if arena["state"].size:
        more = {"first": arena["first"], "state": arena["state"][:-1].reshape(len(rest[0]), -1)}
    if len(arena["frames"]):
        obs, moments = arena["frames"], ()
        more["stacks"] = arena["stacks"][:-1].reshape(len(rest[0]), -1)
    return UpdateSamples(obs.reshape(obs.shape[0] * obs.shape[1], -1), *rest, *moments, **more)


def helper_count(workers: int) -> int:
    """How many of `workers` have a core to themselves while the main process computes, too."""
    return min(workers, limits.usable_cores() - 1)


class UpdateHelper:
    """The worker's side of the shared update: claims shards of the current minibatch.

    Meanwhile the cell of `worker` says UPDATING in place of an environment's step.
    """

    def __init__(self, arena: Arena, share: HelperPlan, turns: WorkerSync, worker: int):
        self.turns, self.minibatch = turns, arena["minibatch"]
        self.done = turns.cells.done[worker]
        self.cells, self.begun, self.terms = turns.cells, None, share.terms
        self.weights = arena["weights"]
        memory = kernels.update_memory(*share.recipe[:2], arena["params"], None, None)._replace(
            grads=arena["grads"], sums=arena["sums"])
        arena["order"].fill(0)
        self.shards = kernels.MinibatchUpdate(
            *share.recipe, memory, arena_samples(arena, share.norm_obs),
            arena["order"], share.terms)

    def update(self, call: int) -> None:
        """Computes what can be claimed, until that is all or another command is given."""
        weights = (None if x < 0 else x for x in self.weights.tolist())
        self.shards.set_coefficients(self.terms._replace(**dict(zip(having("in_loss"), weights))))
        self.done.at(protocol.UPDATING, 0)
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


class InWorker:
    """What a Serial in a worker has, too: it begins with the episodes in its mailbox."""

    mailbox: Mailbox

    def start(self, number: int) -> None:
        """Calls `begin` with the message in the mailbox; what it returns is the answer."""
        self.mailbox.write(pickle.dumps(self.begin(self.mailbox.read())))

    def ask(self, number: int) -> None:
        """Calls `use_options` with the message in the mailbox."""
        self.use_options(self.mailbox.read())


def make_worker_serial(groups: Sequence[range], recipe: PolicyPlan | None, seen: ObservationLayout,
                       acts: ActionMapping, seed: int, rules: EpisodeRules,
                       share: HelperPlan | None, helpers: int, agents: int, stepper: type[Serial],
                       local: type[LocalActor], factories: Sequence[Factory], first: int,
                       worker: int, arena: Arena, sync: WorkerSync) -> Serial:
    """Makes, in the worker, a Serial on its slice of the environments.

    It acts by `recipe`, or waits for the main process's actions if that is None. With `share`, the
    first `helpers` workers also help to compute updates. Each environment has as many rows as
    `agents`, and is stepped by a `stepper`; `local` acts by the recipe.
    """
    first, last = agents * first, agents * (first + len(factories))
    if recipe is None:
        groups = [range(*np.clip((group.start, group.stop), first, last) - first)
                  for group in groups]
        actor = WaitingActor(arena, first, last, groups, acts, sync)
    else:
        groups, actor = (), local(arena, first, last, recipe, seen, acts, seed)
    views = RolloutViews.of(arena, first, last, worker)
    kind = type("WorkerSerial", (InWorker, stepper), {})
    serial = kind(factories, views, actor, seed, first, groups, sync.note, f"worker {worker}, ",
                  rules)
    serial.mailbox, serial.update = sync.mailbox, lambda call: None
    if share is not None and worker < helpers:
        serial.update = UpdateHelper(arena, share, sync, worker).update
    gc.freeze()  # no later garbage collection looks at the objects that exist now
    return serial
