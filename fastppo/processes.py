"""Worker processes: starting, commanding, watching and stopping them.

A command is a word in the arena and a new generation in the `go` cell; a worker answers by posting
that generation in its own `done` cell, and touches the `hint` cell on which the main process
sleeps. There are no locks and no messages per step, so a worker that is killed leaves nothing
behind.
"""

import contextlib
import functools
import json
import logging
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from . import contract, kernels
from .arena import Arena, Spec, above_stdio
from .errors import ClosedError, ConfigError, Error, WorkerError
from .machine import usable_cores

# What a worker can be told: a method of what its job made, called with the command's argument.
COMMANDS = "close", "begin", "warmup", "rollout", "update", "step", "take", "give", "ask"
CLOSE, BEGIN, WARMUP, ROLLOUT, UPDATE, STEP, TAKE, GIVE, ASK = range(len(COMMANDS))
WAITING, UPDATING, STARTING, RESET = -4, -3, -2, -1  # in a `done` cell, instead of a step
NO_STEP = {WAITING: "it had nothing to do", UPDATING: "computing its share of the update"}
FAILED = 1  # state of a `done` cell whose worker has written into its slot of `errors`
ERROR_BYTES = 65_536
TAIL = 65_536  # characters of a worker's output that are kept for an error's text
ALARM = 1 << 24  # a hint that is more than any wait can be for
STAMPS = 64  # commands of which the times are kept: (command, begin, end) in time.monotonic_ns
SLICE_NS = 50_000_000  # longest sleep before looking at signals, deaths and hangs
SPIN_NS = 50_000  # spinning before sleeping, where every worker has a core of its own
CLOSE_SECONDS = 3.0
TOGETHER_SECONDS = 0.05  # faults of several workers this near to each other are told as one
STACK_SECONDS = 2.0  # waiting for the stack of a worker that hangs
NOTE_SECONDS = 30.0
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)
THREAD_LIMITS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS",
                 "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS")

log = logging.getLogger("fastppo")


class Job(NamedTuple):
    """What one worker does: `make(arena, note, turns)` gives an object with methods of COMMANDS."""

    make: Callable[..., Any]
    spec: Spec
    index: int
    first: int  # its first environment


def worker_count(asked: int | str | None, envs: int, pays: Callable[[int], bool]) -> int:
    """How many workers step `envs` environments where `asked` are asked for; None: one a core.

    0 is the main process; "auto" that or one a core, as `pays(workers)` says. Raises ConfigError
    where this machine cannot have any.
    """
    if asked == "auto":
        most = worker_count(None, envs, pays)
        return most if pays(most) else 0
    if not kernels.COMPILED or os.name == "nt":
        if asked:
            raise ConfigError("worker processes need the compiled extension, which is not here",
                              "install a C compiler, then pip install -e . ; or --num_workers=0")
        return 0
    return min(usable_cores() if asked is None else asked, envs)


def spins(busy: int, patience: int) -> tuple[int, int]:
    """How long a worker spins before it sleeps, in ns: in the middle of a command, and between two.

    Not at all where there are more `busy` processes than cores: it would keep others from working.
    """
    return (SPIN_NS, patience) if busy <= usable_cores() else (0, 0)


def shared_spec(workers: int, groups: int) -> Spec:
    """The arrays through which `workers` processes and the main one talk."""
    return {"cells": ("u1", (4 + groups + 2 * workers, 128)), "command": ("<i8", (2,)),
            "errors": ("u1", (workers, ERROR_BYTES)), "stamps": ("<i8", (workers, STAMPS, 3))}


class Cells:
    """The cells of an arena by their role; the same view on both sides."""

    def __init__(self, arena: Arena, groups: int):
        from ._cells import Cell  # the extension; without it there are no workers
        cells = [Cell(row) for row in arena["cells"]]
        self.go, self.hint, self.round, self.finished = cells[:4]
        self.turns = cells[4:4 + groups]
        workers = cells[4 + groups:]
        self.done, self.stepped = workers[:len(workers) // 2], workers[len(workers) // 2:]


def behind(value: int, target: int) -> bool:
    """Whether the counter `value` has not reached `target`, both modulo 2**32."""
    return 0 < (target - value) & 0xFFFFFFFF < 1 << 31


def work(payload: bytes, arena_fd: int, parent: int) -> None:
    """A worker's life: make what the job says, then obey commands until CLOSE."""
    spec, index, groups, spinning, make = pickle.loads(payload)
    arena = Arena(spec, arena_fd)
    cells = Cells(arena, groups)
    done, turns = cells.done[index], Turns(cells, index, spinning, parent)
    stamps, doing = arena["stamps"][index], "its start"
    try:
        made = pickle.loads(make)(arena, done.at, turns)
        generation = 0
        while True:
            done.at(WAITING, 0)
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
            error = contract.fault(f"worker {index}", doing, error)
        _leave_word(arena["errors"][index], error)
        done.state = FAILED
        cells.hint.hint(ALARM)
        os._exit(1)


def _leave_word(slot: np.ndarray, error: Error) -> None:
    what, word = error.what, b""
    while not 0 < len(word) <= ERROR_BYTES - 4:  # how long it gets depends on the characters
        word = json.dumps([what, error.fix], ensure_ascii=False).encode(errors="backslashreplace")
        what = contract.shortened(what, len(what) // 2)
    slot[:4] = np.frombuffer(len(word).to_bytes(4, "little"), np.uint8)
    slot[4:4 + len(word)] = np.frombuffer(word, np.uint8)


class Turns:
    """A worker's side of waiting: for commands, and for the main process's actions."""

    def __init__(self, cells: Cells, index: int, spinning: tuple[int, int], parent: int):
        self.cells, self.mine, self.parent = cells, cells.stepped[index], parent
        self.spin, self.patience = spinning  # see spins

    def next(self, cell, target: int, spin: int) -> int:
        """Sleep until `cell` reaches `target`, or for ever dead if the main process has died."""
        while behind(value := cell.value(), target):
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


class Team:
    """The workers of a run, as the main process sees them; `close()` always returns.

    With `patience` in nanoseconds they spin for so long before they sleep until the next command,
    where each has a core of its own: for commands that follow each other closely. The main process
    is `busy` if it works while they do.
    """

    def __init__(self, jobs: Sequence[Job], arena: Arena, groups: int, step_timeout: float,
                 reset_timeout: float, patience: int = 0, busy: bool = False):
        arena["cells"].fill(0)
        arena["errors"].fill(0)
        self.arena, self.cells = arena, Cells(arena, groups)
        self.step_timeout, self.reset_timeout = step_timeout, reset_timeout
        self.order, self.closed, self.pid = (0, CLOSE, 0), False, os.getpid()
        self.workers: list[Worker] = []
        self._finalizer = weakref.finalize(self, _kill, self.workers)
        for cell in self.cells.done:
            cell.at(STARTING, 0)
        try:
            self._start(jobs, groups, spins(len(jobs) + busy, patience))
        except BaseException:
            self._finalizer()
            raise
        self.noted = False
        self.watch()

    def _start(self, jobs: Sequence[Job], groups: int, spinning: tuple) -> None:
        for job in jobs:
            self.workers.append(Worker(self.arena.fd, job.index, job.first))
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
            behind(cell.value(), self.order[0] & 0xFFFFFFFF) for cell in self.cells.done)

    def wait(self, cells: Sequence, target: int) -> None:
        """Sleep until every worker's cell has reached `target`; raise WorkerError if one cannot."""
        self._open()
        target &= 0xFFFFFFFF
        self.watch()
        while True:
            seen = self.cells.hint.value()
            self._raise_faults()
            late = [w for w, cell in enumerate(cells) if behind(cell.value(), target)]
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
        busy = any(behind(cell.value(), self.order[0]) for cell in self.cells.done)
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


class Tail:
    """The last lines that a process wrote, TAIL characters of them; one line at least."""

    def __init__(self):
        self.lines, self.room = deque(), TAIL

    def add(self, line: str) -> None:
        """Keep a line, and as many before it as there is room for."""
        self.lines.append(line)
        self.room -= len(line) + 1
        while self.room < 0 and len(self.lines) > 1:
            self.room += len(self.lines.popleft()) + 1

    def text(self) -> str:
        """All that is kept."""
        return "\n".join(list(self.lines))  # a copy: another thread adds to it


class Worker:
    """One process, our ends of its socket, lifeline and output."""

    def __init__(self, arena_fd: int, index: int, first: int):
        self.first, self.output = first, Tail()
        ends = [above_stdio(end.detach()) for end in socket.socketpair()]
        self.channel, theirs = socket.socket(fileno=ends[0]), ends[1]
        lifeline, self.lifeline = map(above_stdio, os.pipe())
        fds = (theirs, arena_fd, lifeline)
        command = [sys.executable, "-P", str(Path(__file__).with_name("worker.py")),
                   *map(str, fds), str(os.getpid())]
        try:
            self.process = subprocess.Popen(
                command, pass_fds=fds, env=_environment(), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except OSError as error:
            self.channel.close()
            os.close(self.lifeline)
            raise ConfigError(f"cannot start worker {index}: {error}",
                              "--num_workers=0, or fewer of them") from error
        finally:
            os.close(theirs)
            os.close(lifeline)
        _HOLDERS.add(self)
        _let_go_in_forks()
        self.reader = threading.Thread(target=_read_lines, args=(self,), daemon=True)
        self.reader.start()

    def send(self, message: bytes) -> None:
        """Give the worker its place and its job; a dead one is noticed by who waits for it."""
        package = str(Path(__file__).parent.parent)
        path = [*sys.path, *([] if package in sys.path else [package])]
        place = json.dumps({"path": path, "argv": sys.argv}, default=str).encode()
        try:
            for part in (place, message):
                self.channel.sendall(len(part).to_bytes(8, "little") + part)
        except OSError:
            pass
        self.channel.close()

    def let_go(self) -> None:
        """Close our end of the lifeline: the process ends with the last copy of it."""
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    def last_words(self) -> str:
        """What the process wrote last, as lines to append to an error."""
        self.reader.join(0.5 if self.process.poll() is not None else 0.0)
        text = self.output.text()
        return f"\nits last output:\n{text}" if text else ""

    def show_stack(self) -> None:
        """Have the process write where its Python stands, and wait until that is here."""
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + STACK_SECONDS
        while "most recent call first" not in self.last_words() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.1)

    def end(self, deadline: float) -> None:
        """Wait for the process to end until `deadline`, then make it; and for its last lines."""
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.reader.join(0.5)


_HOLDERS = weakref.WeakSet()  # of Workers whose lifelines are ours


@functools.cache
def _let_go_in_forks() -> None:
    """A copy of a lifeline in a forked process would keep workers alive that have lost us."""
    def let_go() -> None:
        for worker in list(_HOLDERS):
            worker.let_go()
    os.register_at_fork(after_in_child=let_go)


def _kill(workers: Sequence[Worker]) -> None:
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
    for worker in workers:
        worker.process.wait()
        worker.channel.close()
        worker.let_go()


def _read_lines(worker: Worker) -> None:
    """Pass on whole lines of what a worker writes, and remember the last ones."""
    with worker.process.stdout as stream:
        for line in iter(lambda: stream.readline(TAIL), b""):
            text = line.decode(errors="replace").rstrip("\n")
            worker.output.add(text)
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
                sys.stderr.write(text + "\n")  # at once: two workers' lines must not mix
                sys.stderr.flush()


def _environment() -> dict[str, str]:
    """The environment variables of a worker: one thread a library, and no credentials."""
    kept = {name: value for name, value in os.environ.items() if not SECRET.search(name)}
    return kept | dict.fromkeys(THREAD_LIMITS, "1") | {"PYTHONUNBUFFERED": "1"}


def _portable(job: Any) -> bytes:
    import cloudpickle
    try:
        return cloudpickle.dumps(job)
    except Exception as error:  # pickling runs the user's own code
        raise ConfigError(f"the environment's factory cannot be sent to a worker: {error}",
                          "make what it needs inside the factory, or use num_workers=0") from error


def _read_word(slot: np.ndarray) -> tuple[str, str]:
    size = int.from_bytes(slot[:4].tobytes(), "little")
    what, fix = json.loads(slot[4:4 + size].tobytes())
    return what, fix
