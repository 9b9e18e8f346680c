"""The workers of a run: commands, waiting, faults, hangs, closing."""

import logging
import os
import pickle
import signal
import time
import weakref
from typing import Any, Sequence

import numpy as np

from fastppo.errors import ClosedError, ConfigError, WorkerError
from fastppo.machine.arena import Arena
from fastppo.workers.protocol import (
    CLOSE,
    FAILED,
    IDLE,
    RESET,
    SLICE_NS,
    STARTING,
    UPDATING,
    ControlCells,
    WorkerJob,
    is_behind,
    spin_times,
)
from fastppo.workers.worker_process import WorkerProcess, _kill

NO_STEP = {IDLE: "it had nothing to do", UPDATING: "computing its share of the update"}
CLOSE_SECONDS = 3.0
TOGETHER_SECONDS = 0.05  # faults of several workers this near to each other are told as one
NOTE_SECONDS = 30.0

log = logging.getLogger("fastppo")


class WorkerTeam:
    """The workers of a run, as the main process sees them; `close()` always returns.

    With `patience` in nanoseconds they spin for so long before they sleep until the next command,
    where each has a core of its own: for commands that follow each other closely. The main process
    is `busy` if it works while they do.
    """

    def __init__(self, jobs: Sequence[WorkerJob], arena: Arena, groups: int, step_timeout: float,
                 reset_timeout: float, patience: int = 0, busy: bool = False):
        arena["cells"].fill(0)
        arena["errors"].fill(0)
        self.arena, self.cells = arena, ControlCells(arena, groups)
        self.step_timeout, self.reset_timeout = step_timeout, reset_timeout
        self.order, self.closed, self.pid = (0, CLOSE, 0), False, os.getpid()
        self.workers: list[WorkerProcess] = []
        self._finalizer = weakref.finalize(self, _kill, self.workers)
        for cell in self.cells.done:
            cell.at(STARTING, 0)
        try:
            self._start(jobs, groups, spin_times(len(jobs) + busy, patience))
        except BaseException:
            self._finalizer()
            raise
        self.noted = False
        self.watch()

    def _start(self, jobs: Sequence[WorkerJob], groups: int, spinning: tuple) -> None:
        for job in jobs:
            self.workers.append(WorkerProcess(self.arena.fd, job.index, job.first))
        for worker, job in zip(self.workers, jobs):
            worker.send(pickle.dumps((job.spec, job.index, groups, spinning, _portable(job.make))))

    def run(self, command: int, argument: int = 0) -> None:
        """Have every worker do `command`, and wait for its end."""
        self.post(command, argument)
        self.wait(self.cells.done, self.order[0])

    def post(self, command: int, argument: int = 0) -> None:
        """Give a command without waiting for its end.

        The last command given once more is still the same one: so a call that was interrupted
        anywhere can simply be made again.
        """
        self._open()
        if (command, argument) != self.order[1:]:
            self.order = self.order[0] + 1, command, argument
        self.arena["command"][:] = command, argument
        self.cells.go.post(self.order[0] & 0xFFFFFFFF)

    def settle(self) -> None:
        """Wait for the end of the last command.

        It is given once more, for an interrupt may have struck before the workers saw it.
        """
        self.post(*self.order[1:])
        self.wait(self.cells.done, self.order[0])

    def idle(self) -> bool:
        """Whether every worker has done what it was told and can be told something else."""
        return not self.closed and not any(
            is_behind(cell.value(), self.order[0] & 0xFFFFFFFF) for cell in self.cells.done)

    def wait(self, cells: Sequence, target: int) -> None:
        """Sleep until every worker's cell has reached `target`; raise WorkerError if one cannot."""
        self._open()
        target &= 0xFFFFFFFF
        self.watch()
        while True:
            seen = self.cells.hint.value()
            self._raise_faults()
            late = [w for w, cell in enumerate(cells) if is_behind(cell.value(), target)]
            if not late:
                return
            if not self.cells.hint.wait_count(seen + len(late) & 0xFFFFFFFF, 0, SLICE_NS):
                self.look_after(late)

    def close(self) -> None:
        """Ask, then terminate, then kill; twice is fine."""
        if self.closed:
            return
        self.closed = True
        if os.getpid() != self.pid:  # a fork: the workers serve the process that started them
            self._finalizer()
            return
        busy = any(is_behind(cell.value(), self.order[0]) for cell in self.cells.done)
        self.arena["command"][:] = CLOSE, 0
        self.cells.go.post(self.order[0] + 1 & 0xFFFFFFFF)
        deadline = time.monotonic() + (0.0 if busy else CLOSE_SECONDS)
        try:
            for worker in self.workers:
                worker.end(deadline)
        finally:
            self._finalizer()

    def _open(self) -> None:
        if self.closed:
            raise ClosedError("the worker processes have been closed", "make a new trainer")
        if os.getpid() != self.pid:
            raise ClosedError("the worker processes serve the process this one was forked from",
                              "make a new trainer here")

    def _raise_faults(self) -> None:
        if any(cell.state == FAILED for cell in self.cells.done):
            self._raise_all()

    def watch(self) -> None:
        """Begin to count the time that workers stand still."""
        self.moves = [(None, time.monotonic())] * len(self.workers)

    def look_after(self, late: Sequence[int]) -> None:
        """Raise WorkerError if one of the workers `late` has failed, died, or stood still."""
        self._raise_faults()
        if any(self.workers[w].process.poll() is not None for w in late):
            self._raise_all()
        for w in late:
            self._check_time(w)

    def _raise_all(self) -> None:
        """Raise one error for all workers that have failed or died, or do so in this moment."""
        time.sleep(TOGETHER_SECONDS)
        told = [story for story in map(self._story, range(len(self.workers))) if story]
        self._fail("\n".join(what for what, _ in told), told[0][1])

    def _story(self, w: int) -> tuple[str, str] | None:
        if self.cells.done[w].state == FAILED:
            return _read_word(self.arena["errors"][w])
        code = self.workers[w].process.poll()
        return None if code is None else self._obituary(w, code)

    def _check_time(self, w: int) -> None:
        """Raise for a worker that has stood at the same environment step for too long."""
        stamp, now = (self.cells.done[w].where, self.cells.stepped[w].value()), time.monotonic()
        if stamp != self.moves[w][0]:
            self.moves[w] = stamp, now
            return
        step, env, _ = stamp[0]
        name = "reset_timeout" if step in (STARTING, RESET) else "step_timeout"
        limit = getattr(self, name)
        waited, where = now - self.moves[w][1], self._where(w)
        if NOTE_SECONDS < waited and not self.noted:
            self.noted = True
            log.warning("still waiting for %s since %.0f s", where, waited)
        if 0 < limit < waited:
            self.workers[w].show_stack()
            self._fail(f"{where} has not answered for {waited:.1f} s ({name} is {limit:g})"
                       + self.workers[w].last_words(), f"--{name}=0 waits for ever")

    def _where(self, w: int) -> str:
        step, env, _ = self.cells.done[w].where
        if step in NO_STEP:
            return f"worker {w} (while {NO_STEP[step]})"
        doing = {STARTING: "starting", RESET: "reset"}.get(step, f"step {step} of its episode")
        return f"worker {w} (environment {self.workers[w].first + env}, {doing})"

    def _obituary(self, w: int, code: int) -> tuple[str, str]:
        if code >= 0:
            return (f"{self._where(w)} exited with code {code}" + self.workers[w].last_words(),
                    "look for sys.exit or os._exit in the environment")
        name = signal.Signals(-code).name
        fix = {
            "SIGKILL": "usually the machine ran out of memory: fewer --num_envs or --num_workers",
            "SIGBUS": "usually memory or a disk was full",
            "SIGSEGV": "a fault in the environment's native code: --num_workers=1 to isolate it",
        }.get(name, "run the environment alone to find out why")
        return f"{self._where(w)} was killed by {name}" + self.workers[w].last_words(), fix

    def _fail(self, what: str, fix: str) -> None:
        self.closed = True
        self._finalizer()
        raise WorkerError(what, fix)


def _portable(job: Any) -> bytes:
    import cloudpickle
    try:
        return cloudpickle.dumps(job)
    except Exception as error:  # pickling runs the user's own code
        raise ConfigError(f"the environment's factory cannot be sent to a worker: {error}",
                          "make what it needs inside the factory, or use num_workers=0") from error


def _read_word(slot: np.ndarray) -> tuple[str, str]:
    size = int.from_bytes(slot[:4].tobytes(), "little")
    what, fix = pickle.loads(slot[4:4 + size].tobytes())
    return what, fix
