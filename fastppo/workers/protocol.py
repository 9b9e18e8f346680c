"""Commands, states and cells through which the main process and its workers talk."""

from typing import Any, Callable, NamedTuple

from fastppo.machine.arena import Arena, Spec
from fastppo.machine.limits import usable_cores

# What a worker can be told: a method of what its job made, called with the command's argument.
COMMANDS = "close", "begin", "warmup", "rollout", "update", "step", "take", "give", "ask"
CLOSE, BEGIN, WARMUP, ROLLOUT, UPDATE, STEP, TAKE, GIVE, ASK = range(len(COMMANDS))
IDLE, UPDATING, STARTING, RESET = -4, -3, -2, -1  # in a `done` cell, instead of a step
FAILED = 1  # state of a `done` cell whose worker has written into its slot of `errors`
ERROR_BYTES = 65_536
ALARM = 1 << 24  # a hint that is more than any wait can be for
STAMPS = 64  # commands of which the times are kept: (command, begin, end) in time.monotonic_ns
SLICE_NS = 50_000_000  # longest sleep before looking at signals, deaths and hangs
SPIN_NS = 50_000  # spinning before sleeping, where every worker has a core of its own


class WorkerJob(NamedTuple):
    """What one worker does: `make(arena, note, turns)` gives an object with methods of COMMANDS."""

    make: Callable[..., Any]
    spec: Spec
    index: int
    first: int  # its first environment


def worker_slices(envs: int, workers: int) -> list[tuple[int, int]]:
    """(first, last) environment of each worker."""
    return [(envs * w // workers, envs * (w + 1) // workers) for w in range(workers)]


def spin_times(busy: int, patience: int) -> tuple[int, int]:
    """How long a worker spins before it sleeps, in ns: in the middle of a command, and between two.

    Not at all where there are more `busy` processes than cores: it would keep others from working.
    """
    return (SPIN_NS, patience) if busy <= usable_cores() else (0, 0)


def protocol_spec(workers: int, groups: int) -> Spec:
    """The arrays through which `workers` processes and the main one talk."""
    return {"cells": ("u1", (4 + groups + 2 * workers, 128)), "command": ("<i8", (2,)),
            "errors": ("u1", (workers, ERROR_BYTES)), "stamps": ("<i8", (workers, STAMPS, 3))}


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
    """Whether the counter `value` has not reached `target`, both modulo 2**32."""
    return 0 < (target - value) & 0xFFFFFFFF < 1 << 31
