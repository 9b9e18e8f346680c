"""The loop of a worker process: wait for a command, run it, report its end."""

import os
import pickle
import time

from fastppo.envs import faults
from fastppo.errors import Error
from fastppo.machine.arena import Arena
from fastppo.workers import protocol
from fastppo.workers.protocol import ControlCells, Mailbox


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
