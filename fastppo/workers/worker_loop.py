"""The loop of a worker process: wait for a command, do it, answer."""

import os
import pickle
import time

import numpy as np

from fastppo.envs import faults
from fastppo.errors import Error
from fastppo.machine.arena import Arena
from fastppo.workers.protocol import (
    ALARM,
    CLOSE,
    COMMANDS,
    ERROR_BYTES,
    FAILED,
    IDLE,
    SLICE_NS,
    STAMPS,
    ControlCells,
    is_behind,
)


def worker_loop(payload: bytes, arena_fd: int, parent: int) -> None:
    """A worker's life: make what the job says, then obey commands until CLOSE."""
    spec, index, groups, spinning, make = pickle.loads(payload)
    arena = Arena(spec, arena_fd)
    cells = ControlCells(arena, groups)
    done, turns = cells.done[index], WorkerSignals(cells, index, spinning, parent)
    stamps, doing = arena["stamps"][index], "its start"
    try:
        made = pickle.loads(make)(arena, done.at, turns)
        generation = 0
        while True:
            done.at(IDLE, 0)
            done.post(generation)
            cells.hint.hint()
            generation = turns.next(cells.go, generation + 1, turns.patience)
            command, argument = arena["command"].tolist()
            if command == CLOSE:
                break
            begin, doing = time.monotonic_ns(), COMMANDS[command]
            getattr(made, doing)(argument)
            stamps[generation % STAMPS] = command, begin, time.monotonic_ns()
        made.close()
    except BaseException as error:  # whatever it is, it must reach the main process as text
        if not isinstance(error, Error):
            error = faults.env_error(f"worker {index}", doing, error)
        _leave_word(arena["errors"][index], error)
        done.state = FAILED
        cells.hint.hint(ALARM)
        os._exit(1)


def _leave_word(slot: np.ndarray, error: Error) -> None:
    what, word = error.what, b""
    while not 0 < len(word) <= ERROR_BYTES - 4:  # how long it gets depends on the characters
        word = pickle.dumps([what, error.fix])
        what = faults.truncate_text(what, len(what) // 2)
    slot[:4] = np.frombuffer(len(word).to_bytes(4, "little"), np.uint8)
    slot[4:4 + len(word)] = np.frombuffer(word, np.uint8)


class WorkerSignals:
    """A worker's side of waiting: for commands, and for the main process's actions."""

    def __init__(self, cells: ControlCells, index: int, spinning: tuple[int, int], parent: int):
        self.cells, self.mine, self.parent = cells, cells.stepped[index], parent
        self.spin, self.patience = spinning  # see spins

    def next(self, cell, target: int, spin: int) -> int:
        """Sleep until `cell` reaches `target`, or for ever dead if the main process has died."""
        while is_behind(value := cell.value(), target):
            self.pause(cell, value, spin)
        return value

    def pause(self, cell, value: int, spin: int) -> None:
        """Sleep while `cell` has `value`, for a slice at most; end with one's parent."""
        if not cell.wait_change(value, spin, SLICE_NS) and os.getppid() != self.parent:
            os._exit(1)

    def stepped(self, count: int) -> None:
        """Say that `count` groups have been stepped since the run began."""
        self.mine.post(count & 0xFFFFFFFF)
        self.cells.hint.hint()

    def wait(self, group: int, count: int) -> None:
        """Wait until the main process has released group step `count`."""
        self.next(self.cells.turns[group], count & 0xFFFFFFFF, self.spin)
