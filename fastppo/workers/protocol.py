"""The commands, cells and messages between the main process and its workers."""

import os
import pickle
from typing import Any, NamedTuple

from fastppo.errors import ConfigError, Set
from fastppo.machine import limits
from fastppo.machine.shared_memory import Arena, Spec

# A command is a method of the object that a worker's job made, called with one integer.
COMMANDS = "close", "start", "warmup", "rollout", "update", "step", "ask"
CLOSE, START, WARMUP, ROLLOUT, UPDATE, STEP, ASK = range(len(COMMANDS))
IDLE, UPDATING, STARTING, RESET = -4, -3, -2, -1  # in a `done` cell, in place of a step's number
FAILED = 1  # the state of a `done` cell whose worker has written its error into its mailbox
ALARM = 1 << 24  # added to `hint` by a worker that fails: more than the main process waits for
STAMPS = 64  # commands whose times are kept: (command, begin, end) in time.monotonic_ns
SLICE_NS = 50_000_000  # longest sleep between two checks for signals, deaths and timeouts
SPIN_NS = 50_000  # spinning before sleeping, where every worker has a core of its own


class PostedCommand(NamedTuple):
    """The command that was posted last to all workers; `generation` counts commands."""

    generation: int
    command: int
    argument: int


class Mailbox:
    """The last message between the main process and one worker: a pickle in a file in memory.

    Both sides write and read the same file, in turns. A message has any size and stays until the
    next one, so reading can be repeated after an interrupt.
    """

    def __init__(self, fd: int):
        self.file = os.fdopen(fd, "r+b", 0)

    def write(self, message: bytes) -> None:
        """Replaces the message by this one, which is pickled already."""
        os.ftruncate(self.file.fileno(), 0)
        os.pwrite(self.file.fileno(), message, 0)

    def read(self) -> Any:
        """The object that the message holds."""
        fd = self.file.fileno()
        return pickle.loads(os.pread(fd, os.fstat(fd).st_size, 0))


def pickled_by_value(message: Any, name: str) -> bytes:
    """`message` pickled with its classes, which a worker cannot import from the user's `__main__`.

    Raises ConfigError, with its `name`, if it cannot be pickled.
    """
    import cloudpickle
    try:
        return cloudpickle.dumps(message)
    except Exception as error:  # pickling runs the user's own code
        why = f"{type(error).__name__}: {getattr(error, 'what', error)}"
        raise ConfigError(f"{name} cannot be sent to a worker: {why}",
                          ("create inside the environment what cannot be pickled",
                           Set(num_workers=0))) from error


def worker_slices(envs: int, workers: int) -> list[tuple[int, int]]:
    """(first, last) environment of each worker."""
    return [(envs * w // workers, envs * (w + 1) // workers) for w in range(workers)]


def spin_times(busy: int, idle_spin: int) -> tuple[int, int]:
    """Nanoseconds that a worker spins before it sleeps: within a command, and between two.

    Zero if there are more `busy` processes than cores: a spinning one would hold up the others.
    """
    return (SPIN_NS, idle_spin) if busy <= limits.usable_cores() else (0, 0)


def protocol_spec(workers: int, groups: int) -> Spec:
    """The shared arrays of the main process and `workers` processes."""
    return {"cells": ("u1", (4 + groups + 2 * workers, 128)), "command": ("<i8", (2,)),
            "stamps": ("<i8", (workers, STAMPS, 3))}


class ControlCells:
    """The cells of an arena by their role; the same view on both sides."""

    def __init__(self, arena: Arena, groups: int):
        from fastppo._cells import Cell  # the extension; without it there are no workers
        cells = [Cell(row) for row in arena["cells"]]
        self.go, self.hint, self.round, self.finished = cells[:4]
        self.turns = cells[4:4 + groups]
        workers = cells[4 + groups:]
        self.done, self.stepped = workers[:len(workers) // 2], workers[len(workers) // 2:]


def is_behind(value: int, target: int) -> bool:
    """True if the counter `value` has not reached `target`; counters wrap at 2**32."""
    return 0 < (target - value) & 0xFFFFFFFF < 1 << 31
