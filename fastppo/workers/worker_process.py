"""One worker process, as the main process sees it."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Sequence

from fastppo.errors import ConfigError, Set
from fastppo.machine.arena import above_stdio, anonymous_file
from fastppo.machine.child_process import import_path, worker_environment
from fastppo.workers.protocol import Mailbox

BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
# A terminal or a scheduler sends these to a whole group; the main process handles them.
GROUP_SIGNALS = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP")
                 if hasattr(signal, name)}
TAIL_CHARS = 65_536  # characters of a worker's output that are kept for an error's text
CRASH = "Fatal Python error"  # begins the stack of a crash, which the error shows
STACK_SECONDS = 2.0  # longest wait for the stack of a worker that hangs


class WorkerProcess:
    """A worker process, and the main process's ends of its mailbox, lifeline and output.

    The lifeline is a pipe without data. When the main process ends, it closes and Linux kills the
    worker. `allowed`: see worker_environment.
    """

    def __init__(self, arena_fd: int, index: int, first_env: int, job: bytes,
                 allowed: Sequence[str]):
        self.first_env, self.output, self.echo = first_env, "", True
        with ExitStack() as undo:
            try:
                self.mailbox = Mailbox(anonymous_file())
                undo.callback(self.mailbox.file.close)
                self.lifeline = undo.enter_context(self._start(arena_fd, job, allowed))
                for end in (self.process.stdout.close, self.process.wait, self.process.kill):
                    undo.callback(end)  # the last one is called first
                self.reader = threading.Thread(target=_copy_output, args=(self,), daemon=True)
                self.reader.start()
            except (OSError, RuntimeError) as error:  # a limit of files, processes or threads
                raise ConfigError(f"cannot start worker {index}: {error}",
                                  (Set(num_workers=0), "use fewer workers")) from error
            undo.pop_all()
        _LIFELINES.add(self.lifeline)

    def _start(self, arena_fd: int, job: bytes, allowed: Sequence[str]) -> IO[bytes]:
        """Starts the process; returns the main process's end of its lifeline."""
        theirs, ours = (fd if fd > 2 else above_stdio(fd) for fd in os.pipe())
        lifeline, fds = os.fdopen(ours, "wb", 0), (self.mailbox.file.fileno(), arena_fd, theirs)
        command = [sys.executable, "-P", str(BOOTSTRAP), *map(str, fds), str(os.getpid())]
        # Blocked signals stay so in the new process until it has handlers for them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
        try:
            self.mailbox.write(pickle.dumps((import_path(), list(map(str, sys.argv)), job)))
            self.process = subprocess.Popen(
                command, pass_fds=fds, env=worker_environment(allowed), stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        except BaseException:
            lifeline.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(theirs)
        return lifeline

    def release(self) -> None:
        """Closes the mailbox and the lifeline; a second call does nothing."""
        self.lifeline.close()
        self.mailbox.file.close()

    def last_output(self) -> str:
        """The end of what the process wrote, to append to an error's text."""
        self.reader.join(0.5 if self.process.poll() is not None else 0.0)
        return f"\nits last output:\n{self.output.rstrip()}" if self.output else ""

    def dump_stack(self) -> None:
        """Makes the process write its Python stack, for last_output alone, and waits for it."""
        self.echo = False  # the error shows it
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + STACK_SECONDS
        while "most recent call first" not in self.last_output() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.1)

    def wait(self, deadline: float) -> None:
        """Waits until `deadline`, in time.monotonic, for the process to end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, deadline - time.monotonic()))


_LIFELINES = weakref.WeakSet()  # of all workers


def _close_lifelines() -> None:
    for lifeline in list(_LIFELINES):
        lifeline.close()


if hasattr(os, "register_at_fork"):
    # A copy of a lifeline in a fork would keep workers alive after the main process has died.
    os.register_at_fork(after_in_child=_close_lifelines)


def kill_workers(workers: Sequence[WorkerProcess]) -> None:
    """Kills the processes that still run, waits for all of them, and closes their descriptors."""
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
    for worker in workers:
        worker.process.wait()
        worker.reader.join(0.5)
        worker.release()


def _copy_output(worker: WorkerProcess) -> None:
    """Copies whole lines of a worker's output to stderr, and keeps the end of it."""
    with worker.process.stdout as stream:
        for line in iter(lambda: stream.readline(TAIL_CHARS), b""):
            text = line.decode(errors="replace").rstrip("\n") + "\n"
            worker.output = (worker.output + text)[-TAIL_CHARS:]
            worker.echo = worker.echo and not text.startswith(CRASH)
            if not worker.echo:
                continue
            with contextlib.suppress(OSError, ValueError, AttributeError):  # stderr closed or None
                sys.stderr.write(text)  # in one call: lines of two workers must not mix
                sys.stderr.flush()
