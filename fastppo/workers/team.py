"""The worker processes of a run: one of them, and all: commands, waiting, failures, closing.

After a fault workers start again, within a budget; episodes that fail twice are ended.
"""

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from functools import partial
from pathlib import Path
from typing import IO, Callable, Sequence

from fastppo.envs.faults import CLOSE_SECONDS, episode_text
from fastppo.envs.make import Factory
from fastppo.errors import (
    ClosedError,
    ConfigError,
    Error,
    FaultPlace,
    NonFiniteError,
    Set,
    WorkerError,
)
from fastppo.machine import limits
from fastppo.machine.child_process import import_path, worker_environment
from fastppo.machine.shared_memory import Arena, above_stdio, anonymous_file
from fastppo.workers import protocol
from fastppo.workers.protocol import ControlCells, Mailbox, PostedCommand

BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
# A terminal or a scheduler sends these to a whole group; the main process handles them.
GROUP_SIGNALS = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP")
                 if hasattr(signal, name)}
TAIL_CHARS = 65_536  # characters of a worker's output that are kept for an error's text
CRASH = "Fatal Python error"  # begins the stack of a crash, which the error shows
STACK_SECONDS = 2.0  # longest wait for the stack of a worker that hangs
ACTIVITIES = {protocol.IDLE: "while it had nothing to do",
              protocol.UPDATING: "while computing its share of the update",
              protocol.STARTING: "starting", protocol.RESET: "reset"}
ALONE = "run the environment alone to find out why it ends its process"
COLLECT_SECONDS = 0.05  # failures of several workers within this time are one error
LOOKS_APART = 1.0  # seconds between two looks, usually 0.05, after which the waiting begins anew
RESTARTS, SECONDS = 3, 600.0  # so many restarts in so many seconds
PAUSES = 0.0, 1.0, 5.0  # seconds before the first, second and third of them


class WorkerProcess:
    """A worker process, and the main process's ends of its mailbox, lifeline and output.

    The lifeline is a pipe without data. When the main process ends, it closes and Linux kills the
    worker. `allowed`: see worker_environment.
    """

    def __init__(self, arena_fd: int, index: int, first_env: int, job: bytes,
                 allowed: Sequence[str]):
        self.first_env, self.output, self.echo = first_env, "", True
        with contextlib.ExitStack() as undo:
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
        worker.process.kill()  # nothing, if it has ended
    for worker in workers:
        worker.process.wait()
        worker.reader.join(0.5)
        worker.lifeline.close()
        worker.mailbox.file.close()


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


class WorkerTeam:
    """The worker processes of a run; `close()` always returns.

    In worker w, `make(its factories, its first environment, w, arena, sync)` returns the object
    whose methods the commands call; `sync` is a WorkerSync. The environments are those of the run
    from number `first` on.

    A worker that has a core of its own spins for `idle_spin` nanoseconds before it sleeps until the
    next command. `main_computes`: the main process needs a core while the workers work. `allowed`:
    see worker_environment.
    """

    def __init__(self, make: Callable, factories: Sequence[Factory], workers: int, arena: Arena,
                 groups: int, step_timeout: float, reset_timeout: float, idle_spin: int = 0,
                 main_computes: bool = False, allowed: Sequence[str] = (), first: int = 0):
        self.arena, self.cells = arena, ControlCells(arena, groups)
        self.make, self.factories, self.count, self.allowed = make, factories, workers, allowed
        self.first = first
        self.step_timeout, self.reset_timeout, self.pid = step_timeout, reset_timeout, os.getpid()
        self.spinning = protocol.spin_times(workers + main_computes, idle_spin)
        # (seed, number) of an environment's running episode, if there is one; for texts of errors
        self.episode_of: Callable[[int], tuple[int, int] | None] = lambda env: None
        self.workers: list[WorkerProcess] = []
        self.start()

    def start(self) -> None:
        """Starts all workers; those of before, which have failed, are killed first."""
        kill_workers(self.workers)
        self.workers.clear()
        self.arena["cells"].fill(0)
        self.posted, self.closed = PostedCommand(0, protocol.CLOSE, 0), False
        self.memory_kills = limits.memory_kills()
        self._finalizer = weakref.finalize(self, kill_workers, self.workers)
        for cell in self.cells.done:
            cell.at(protocol.STARTING, 0)
            cell.post(0xFFFFFFFF)  # one behind generation 0, which is the start
        groups = len(self.cells.turns)
        try:
            for w, (first, last) in enumerate(protocol.worker_slices(
                    len(self.factories), self.count)):
                made = protocol.pickled_by_value(
                    partial(self.make, self.factories[first:last], self.first + first, w),
                    "the environment's factory")
                job = pickle.dumps((self.arena.spec, w, groups, self.spinning, made))
                self.workers.append(WorkerProcess(self.arena.fd, w, self.first + first, job,
                                                  self.allowed))
        except BaseException:
            self._finalizer()
            raise
        self.restart_timers()

    def run(self, command: int, argument: int = 0, timeout: float | None = None) -> None:
        """Makes every worker run `command`, and waits for its end, at most `timeout` seconds."""
        self.post(command, argument)
        self.wait(self.cells.done, self.posted.generation, timeout)

    def post(self, command: int, argument: int = 0) -> None:
        """Posts a command without waiting for its end.

        The same command and argument posted again are the same command, which runs once. So a
        call that was interrupted can be repeated.
        """
        self._check_open()
        if (command, argument) != self.posted[1:]:
            self.posted = PostedCommand(self.posted.generation + 1, command, argument)
        self.arena["command"][:] = command, argument
        self.cells.go.post(self.posted.generation & 0xFFFFFFFF)

    def finish_last(self, timeout: float | None = None) -> None:
        """Waits for the end of the last command; posts it again, as its post may be interrupted."""
        self.run(self.posted.command, self.posted.argument, timeout)

    def is_idle(self) -> bool:
        """True if every worker has finished its last command and can take another one."""
        return not self.closed and not self._late(self.cells.done, self.posted.generation)

    def wait(self, cells: Sequence, target: int, timeout: float | None = None) -> None:
        """Sleeps until every worker's cell reaches `target`; raises WorkerError if one cannot.

        Raises multiprocessing.TimeoutError after `timeout` seconds; None: never.
        """
        self._check_open()
        self.restart_timers()
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            hints = self.cells.hint.value()
            self._raise_failures()
            late = self._late(cells, target)
            if not late:
                return
            slice_ns = protocol.SLICE_NS
            if timeout is not None:
                slice_ns = int(min(slice_ns, max(0.0, 1e9 * (end - time.monotonic()))))
            if not self.cells.hint.wait_count(hints + len(late) & 0xFFFFFFFF, 0, slice_ns):
                self.check_workers(late)
                if time.monotonic() > end:
                    raise multiprocessing.TimeoutError(
                        f"the workers have not finished within {timeout:g} s: wait again or close")

    def close(self) -> None:
        """Asks the workers to end, then kills those that do not; a second call does nothing."""
        if self.closed:
            return
        idle, self.closed = self.posted.generation == 0 or self.is_idle(), True
        try:
            if os.getpid() == self.pid:  # in a fork, the workers serve the parent process
                self.arena["command"][:] = protocol.CLOSE, 0
                self.cells.go.post(self.posted.generation + 1 & 0xFFFFFFFF)
                deadline = time.monotonic() + (CLOSE_SECONDS if idle else 0.0)
                for worker in self.workers:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        worker.process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            self._finalizer()

    def restart_timers(self) -> None:
        """Restarts the time that each worker has for its current step."""
        self._progress = [(None, *[time.monotonic()] * 2)] * len(self.workers)

    def check_workers(self, late: Sequence[int]) -> None:
        """Raises WorkerError if a worker has failed, or one of `late` has died or timed out."""
        self._raise_failures(late)
        for w in late:
            self._check_timeout(w)

    def _check_open(self) -> None:
        if self.closed or os.getpid() != self.pid:
            raise ClosedError("the worker processes are closed, or serve the parent of this fork",
                              "make a new trainer here")

    def _late(self, cells: Sequence, target: int) -> list[int]:
        """The workers whose cell has not reached `target`."""
        return [w for w, cell in enumerate(cells) if protocol.is_behind(cell.value(), target)]

    def _raise_failures(self, late: Sequence[int] = ()) -> None:
        """Raises one error for all workers, if one has failed or one of `late` has died."""
        if not any(cell.state == protocol.FAILED for cell in self.cells.done) and not any(
                self.workers[w].process.poll() is not None for w in late):
            return
        time.sleep(COLLECT_SECONDS)
        found = map(self._failure, range(len(self.workers)))
        self._close_and_raise([failure for failure in found if failure])

    def _failure(self, w: int) -> Error | None:
        """The error of worker `w`, if it has failed or died."""
        worker = self.workers[w]
        if self.cells.done[w].state == protocol.FAILED:
            return worker.mailbox.read()
        code = worker.process.poll()
        if code is None:
            return None
        name = signal.Signals(-code).name if code < 0 else ""
        how = f"was killed by {name}" if name else f"exited with code {code}"
        if name == "SIGKILL" and limits.memory_kills() >= self.memory_kills >= 0:
            how += ", because memory ran out" if limits.memory_kills() > self.memory_kills else \
                ", but not by the system for lack of memory"
            how += f" ({limits.free_memory() / 2**30:.1f} GiB are free now)"
        place, places = self._place(w)
        error = WorkerError(f"{place} {how}{worker.last_output()}", ALONE)
        error.places = places
        return error

    def _check_timeout(self, w: int) -> None:
        """Raises WorkerError if worker `w` has been at the same environment step for too long."""
        where, now = (self.cells.done[w].where, self.cells.stepped[w].value()), time.monotonic()
        before, since, looked = self._progress[w]
        if where != before or now - looked > LOOKS_APART:  # all was stopped, as by Ctrl-Z
            self._progress[w] = where, now, now
            return
        self._progress[w] = where, since, now
        resetting = where[0][0] in (protocol.STARTING, protocol.RESET)
        name = "reset_timeout" if resetting else "step_timeout"
        limit, waited = getattr(self, name), now - since
        place, places = self._place(w)  # before the stack is asked for: the signal ends a sleep
        if 0 < limit < waited:
            self.workers[w].dump_stack()
            error = WorkerError(
                f"{place} has not answered for {waited:.1f} s ({name}={limit:g}; 0: no limit)"
                f"{self.workers[w].last_output()}",
                ("correct the environment where its stack ends", Set(**{name: 10 * limit})))
            error.places = places
            self._close_and_raise([error])

    def _place(self, w: int) -> tuple[str, tuple[FaultPlace, ...]]:
        """(worker `w` with its environment and its step, the place if it is in an environment)."""
        step, env, _ = self.cells.done[w].where
        activity = ACTIVITIES.get(step, f"step {step} of its episode")
        if step in (protocol.IDLE, protocol.UPDATING):
            return f"worker {w} ({activity})", ()
        env += self.workers[w].first_env
        episode = self.episode_of(env)
        known = f"{episode_text(*episode)}, " if episode else ""
        places = (FaultPlace(env, episode[1], step),) if episode and step >= protocol.RESET else ()
        return f"worker {w} (environment {env}, {known}{activity})", places

    def _close_and_raise(self, failures: Sequence[Error]) -> None:
        """Kills the workers, and raises one error for all `failures`, of the kind of the first."""
        self.closed = True
        self._finalizer()
        kind = NonFiniteError if isinstance(failures[0], NonFiniteError) else WorkerError
        error = kind(joined_texts([one.what for one in failures]), failures[0].fix)
        if kind is WorkerError:
            error.places = tuple(place for one in failures for place in getattr(one, "places", ()))
        raise error


def joined_texts(texts: Sequence[str]) -> str:
    """The first text of failures, and below it the first lines of the others, each once."""
    others = [text.partition("\n")[0] for text in texts if text != texts[0]]
    return "\n".join(dict.fromkeys([texts[0], *others]))


class WorkerRestarts:
    """Starts the workers of a team again; `cuts` is that of their EpisodeRules.

    All of them start again, also those that have not failed: the same replay brings every
    environment to the beginning of the rollout, which is then collected once more.
    """

    def __init__(self, team: WorkerTeam, cuts: dict[tuple[int, int], int]):
        self.team, self.cuts = team, cuts
        self.count, self.times, self.failed = 0, [], set()

    def restart(self, places: Sequence[FaultPlace]) -> bool:
        """Starts the workers after a fault at `places`; False if the budget is used up."""
        now = time.monotonic()
        self.times = [before for before in self.times if now - before < SECONDS]
        if len(self.times) >= RESTARTS:
            return False
        for place in places:
            if place in self.failed:
                self.cuts[place.env, place.episode] = place.step
            self.failed.add(place)
        time.sleep(PAUSES[min(len(self.times), len(PAUSES) - 1)])
        self.times.append(time.monotonic())
        self.team.start()
        self.count += 1
        return True
