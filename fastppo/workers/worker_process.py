"""One worker process as the main process sees it: start, output, stack, end."""

import contextlib
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from pathlib import Path
from typing import Sequence

from fastppo.errors import ConfigError
from fastppo.machine.arena import above_stdio
from fastppo.machine.child_env import worker_environment

TAIL_BYTES = 65_536  # characters of a worker's output that are kept for an error's text
STACK_SECONDS = 2.0  # waiting for the stack of a worker that hangs


class OutputTail:
    """The last lines that a process wrote, TAIL characters of them; one line at least."""

    def __init__(self):
        self.lines, self.room = deque(), TAIL_BYTES

    def add(self, line: str) -> None:
        """Keep a line, and as many before it as there is room for."""
        self.lines.append(line)
        self.room -= len(line) + 1
        while self.room < 0 and len(self.lines) > 1:
            self.room += len(self.lines.popleft()) + 1

    def text(self) -> str:
        """All that is kept."""
        return "\n".join(list(self.lines))  # a copy: another thread adds to it


class WorkerProcess:
    """One process, our ends of its socket, lifeline and output."""

    def __init__(self, arena_fd: int, index: int, first: int):
        self.first, self.output = first, OutputTail()
        ends = [above_stdio(end.detach()) for end in socket.socketpair()]
        self.channel, theirs = socket.socket(fileno=ends[0]), ends[1]
        lifeline, self.lifeline = map(above_stdio, os.pipe())
        fds = (theirs, arena_fd, lifeline)
        command = [sys.executable, "-P", str(Path(__file__).with_name("bootstrap.py")),
                   *map(str, fds), str(os.getpid())]
        try:
            self.process = subprocess.Popen(
                command, pass_fds=fds, env=worker_environment(), stdin=subprocess.DEVNULL,
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
        package = str(Path(__file__).parents[2])
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


def _kill(workers: Sequence[WorkerProcess]) -> None:
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
    for worker in workers:
        worker.process.wait()
        worker.channel.close()
        worker.let_go()


def _read_lines(worker: WorkerProcess) -> None:
    """Pass on whole lines of what a worker writes, and remember the last ones."""
    with worker.process.stdout as stream:
        for line in iter(lambda: stream.readline(TAIL_BYTES), b""):
            text = line.decode(errors="replace").rstrip("\n")
            worker.output.add(text)
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
                sys.stderr.write(text + "\n")  # at once: two workers' lines must not mix
                sys.stderr.flush()
