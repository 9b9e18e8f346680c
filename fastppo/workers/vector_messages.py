"""The back ends of make_vec: the environments in this process, or in workers.

A step is a command without a message: actions, observations, rewards and ends are in the arena.
Everything else (resets, calls, infos) is a pickled message in a worker's mailbox. A worker without
infos writes none.
"""

import pickle
from functools import partial
from typing import Any, Sequence

from fastppo.envs.make import Factory
from fastppo.machine.arena import Arena, Spec
from fastppo.workers import protocol
from fastppo.workers.team import WorkerTeam
from fastppo.workers.vector_stepper import VectorSpec, VectorStepper
from fastppo.workers.worker_loop import WorkerSync

IDLE_SPIN_NS = 300_000  # a small policy's time between two steps


def messages_spec(workers: int) -> Spec:
    """The shared arrays of WorkerBackend and its workers."""
    return {**protocol.protocol_spec(workers, 0), "replied": ("|b1", (workers,))}


class LocalBackend(VectorStepper):
    """A VectorStepper in this process, with the calls of WorkerBackend."""

    def post(self) -> None:
        """Takes a step."""
        self.replies = [self.step()]

    def tell(self, method: str, arguments: Sequence[tuple]) -> None:
        """Calls a method of the stepper."""
        self.replies = [getattr(self, method)(*arguments[0])]

    def hear(self, timeout: float | None = None) -> list:
        """The infos of the step, or the reply of the method, as a list."""
        return self.replies


class WorkerBackend:
    """A VectorStepper in each of `workers` processes."""

    def __init__(self, factories: Sequence[Factory], plan: VectorSpec, arena: Arena, workers: int,
                 step_timeout: float, reset_timeout: float):
        self.team = WorkerTeam(partial(WorkerEndpoint, plan), factories, workers, arena, 0,
                               step_timeout, reset_timeout, IDLE_SPIN_NS)
        self.replied, self.number = arena["replied"], 0

    def post(self) -> None:
        """Makes every worker take a step."""
        self.number += 1
        self.team.post(protocol.STEP, self.number)

    def tell(self, method: str, arguments: Sequence[tuple]) -> None:
        """Makes every worker call a method of its stepper with its own arguments."""
        messages = [protocol.pickled_by_value((method, each), "this value") for each in arguments]
        self.team.finish_last()  # after an interrupt, a command may still run
        for worker, message in zip(self.team.workers, messages):
            worker.mailbox.write(message)
        self.number += 1
        self.team.post(protocol.ASK, self.number)

    def hear(self, timeout: float | None = None) -> list:
        """The replies of those that reply; can be repeated after an interrupt or a timeout."""
        self.team.finish_last(timeout)
        return [worker.mailbox.read()
                for worker, replied in zip(self.team.workers, self.replied) if replied]

    def close(self) -> None:
        """Stops the processes."""
        self.team.close()


class WorkerEndpoint:
    """The worker's end of WorkerBackend; `replied` [1] is True while the mailbox holds a reply."""

    def __init__(self, plan: VectorSpec, factories: Sequence[Factory], first: int, worker: int,
                 arena: Arena, sync: WorkerSync):
        self.stepper = VectorStepper(factories, plan, arena, first, sync.note, f"worker {worker}, ")
        self.mailbox, self.replied = sync.mailbox, arena["replied"][worker:worker + 1]
        self.close = self.stepper.close

    def step(self, number: int) -> None:
        """Takes a step, and replies with the infos if there are any."""
        self._reply(self.stepper.step())

    def ask(self, number: int) -> None:
        """Calls the method that the message names, and replies."""
        method, arguments = self.mailbox.read()
        self._reply(getattr(self.stepper, method)(*arguments))

    def _reply(self, reply: Any) -> None:
        if reply:
            self.mailbox.write(self._pickled_reply(reply))
        self.replied[0] = bool(reply)

    def _pickled_reply(self, reply: Any) -> bytes:
        try:
            return _pickled(reply)
        except Exception as error:  # pickling runs the environment's own code
            if isinstance(reply, dict):  # infos
                raise
            return _pickled(([], f"the reply cannot be sent: {type(error).__name__}: {error}"))


def _pickled(message: Any) -> bytes:
    """A pickle by reference if that works; by value for classes of the user's `__main__`."""
    try:
        return pickle.dumps(message, 5)
    except Exception:  # pickling runs the user's own code
        import cloudpickle
        return cloudpickle.dumps(message)
