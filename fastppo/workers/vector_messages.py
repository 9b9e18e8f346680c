"""Steppers here or in workers: told to step by a word, asked for everything else by letter.

A letter is what has no array (options of a reset, infos, calls), pickled and passed through the
worker's slot of the arena, in parts where it is longer than that. Where there is nothing to say no
letter is written, so a step of environments without infos is one word to the workers and one back.
"""

import pickle
from functools import partial
from typing import Sequence

import numpy as np

from fastppo.envs.make import Factory
from fastppo.errors import ConfigError
from fastppo.machine.arena import Arena, Spec
from fastppo.workers.protocol import ASK, GIVE, STEP, TAKE, WorkerJob, protocol_spec, worker_slices
from fastppo.workers.team import WorkerTeam
from fastppo.workers.vector_stepper import StepInfos, VectorSpec, VectorStepper

SLOT_BYTES = 1 << 18
PATIENCE_NS = 300_000  # a small policy's time between two steps, and most waits for a slower worker


def messages_spec(workers: int) -> Spec:
    """The arrays through which Away and its workers talk."""
    return {**protocol_spec(workers, 0), "slot": ("|u1", (workers, SLOT_BYTES)),
            "letter": ("<i8", (workers, 2))}  # bytes of the letter, or of its part; its number


class LocalBackend:
    """One Stepper, in this process; the same calls as Away's."""

    resumable = False  # after an interrupt inside a step nobody knows how far it came

    def __init__(self, stepper: VectorStepper):
        self.stepper, self.slices = stepper, [(0, len(stepper.envs))]

    def post(self) -> None:
        """Nothing: the step is taken when it is waited for."""

    def wait(self) -> StepInfos:
        """Take the step."""
        return self.stepper.step()

    def ask(self, method: str, letters: Sequence[tuple]) -> list:
        """Call a method of the Stepper; a list of its one reply."""
        return [getattr(self.stepper, method)(*letters[0])]

    def close(self) -> None:
        """Close the environments."""
        self.stepper.close()


class WorkerBackend:
    """A Stepper in each of `workers` processes."""

    resumable = True

    def __init__(self, factories: Sequence[Factory], plan: VectorSpec, arena: Arena, workers: int,
                 step_timeout: float, reset_timeout: float):
        self.slices = worker_slices(len(factories), workers)
        jobs = [WorkerJob(partial(make_endpoint, factories[a:b], plan, a, w), arena.spec, w, a)
                for w, (a, b) in enumerate(self.slices)]
        self.team = WorkerTeam(jobs, arena, 0, step_timeout, reset_timeout, PATIENCE_NS)
        self.slots, self.letters, self.count = arena["slot"], arena["letter"], 0

    def post(self) -> None:
        """Let every worker take the step."""
        self.count += 1
        self.team.post(STEP, self.count)

    def wait(self) -> StepInfos:
        """Wait for the step's end; asked again after an interrupt, for that of the same step."""
        self.team.settle()
        if not self.letters[:, 0].any():
            return {}
        return {e: told for reply in self._read() for e, told in (reply or {}).items()}

    def ask(self, method: str, letters: Sequence[tuple]) -> list:
        """Call a method of every worker's Stepper with its own arguments; their replies."""
        texts = [_cut(_sendable((method, letter))) for letter in letters]
        self.team.settle()  # after an interrupt a command may still be under way
        rounds = max(map(len, texts))
        for i in range(rounds):
            for w, parts in enumerate(texts):
                part = parts[i] if i < len(parts) else b""
                self.slots[w, :len(part)] = np.frombuffer(part, np.uint8)
                self.letters[w] = len(part), i
            self.count += 1
            self.team.run(ASK if i == rounds - 1 else TAKE, self.count)
        return self._read()

    def close(self) -> None:
        """Stop the processes."""
        self.team.close()

    def _read(self) -> list:
        """What every worker has to say, None where that is nothing."""
        sizes = self.letters[:, 0].tolist()
        texts, rounds = [bytearray() for _ in sizes], -(-max(sizes) // SLOT_BYTES)
        for i in range(rounds):
            if rounds > 1:
                self.team.run(GIVE, i)
            for text, size, slot in zip(texts, sizes, self.slots):
                text += slot[:max(0, min(SLOT_BYTES, size - i * SLOT_BYTES))].tobytes()
        return [pickle.loads(text) if text else None for text in texts]


def make_endpoint(factories: Sequence[Factory], plan: VectorSpec, first: int, worker: int, arena: Arena, note,
         turns) -> "WorkerEndpoint":
    """Runs in the worker: its Stepper, at a Desk."""
    stepper = VectorStepper(factories, plan, arena, first, note, f"worker {worker}, ")
    return WorkerEndpoint(stepper, arena["slot"][worker], arena["letter"][worker])


class WorkerEndpoint:
    """The worker's end of Away: a Stepper, and the slot through which letters come and go."""

    def __init__(self, stepper: VectorStepper, slot: np.ndarray, letter: np.ndarray):
        self.stepper, self.slot, self.letter = stepper, slot, letter
        self.received, self.sent = [], []

    def step(self, count: int) -> None:
        """Take a step and tell what the environments said."""
        told = self.stepper.step()
        if told or self.sent:
            self._reply(told)

    def ask(self, count: int) -> None:
        """Do what the letter says, of which the last part is in the slot, and reply."""
        self.take(count)
        method, arguments = pickle.loads(b"".join(self.received))
        self._reply(getattr(self.stepper, method)(*arguments))

    def take(self, count: int) -> None:
        """Take a part of a letter out of the slot."""
        size, number = self.letter.tolist()
        self.received[number:] = [self.slot[:size].tobytes()]

    def give(self, number: int) -> None:
        """Put a part of the last reply into the slot."""
        if number < len(self.sent):
            part = self.sent[number]
            self.slot[:len(part)] = np.frombuffer(part, np.uint8)

    def close(self) -> None:
        """Close the environments."""
        self.stepper.close()

    def _reply(self, reply) -> None:
        self.sent = _cut(self._pickled(reply)) if reply else []
        self.letter[0] = sum(map(len, self.sent))
        self.give(0)

    def _pickled(self, reply) -> bytes:
        try:
            return _pickled(reply)
        except Exception as error:  # pickling runs the environment's own code
            if not isinstance(reply, dict):
                return _pickled(([], f"the reply cannot be sent: {type(error).__name__}: {error}"))
            guilty = next(e for e, told in reply.items() if not _can_be_pickled(told))
            raise self.stepper.fault(guilty - self.stepper.first, "its info", error) from error


def _cut(text: bytes) -> list[bytes]:
    return [text[i:i + SLOT_BYTES] for i in range(0, len(text), SLOT_BYTES)]


def _pickled(message) -> bytes:
    """By reference where that works; what only a user's `__main__` has, by value."""
    try:
        return pickle.dumps(message, 5)
    except Exception:  # pickling runs the user's own code
        import cloudpickle
        return cloudpickle.dumps(message)


def _can_be_pickled(message) -> bool:
    try:
        return bool(_pickled(message))
    except Exception:  # as above
        return False


def _sendable(message) -> bytes:
    import cloudpickle  # plain pickle only names what is in `__main__`, which a worker has not
    try:
        return cloudpickle.dumps(message)
    except Exception as error:  # pickling runs the user's own code
        raise ConfigError(f"this cannot be sent to a worker: {type(error).__name__}: {error}",
                          "pass plain data, or use num_workers=0") from error
