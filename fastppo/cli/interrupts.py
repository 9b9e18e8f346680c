"""Ctrl-C, SIGTERM and SIGHUP: the first stops training, a later one ends the process."""

import contextlib
import os
import signal
import threading
import time
from typing import Any, Callable

from fastppo.machine import limits

SIGHUP = getattr(signal, "SIGHUP", signal.SIGTERM)  # a closed terminal; Windows has none
PATIENCE, AGAIN = 3.0, 0.2  # seconds that an update may still take; and between two looks
SAME_STOP = 1.0  # seconds in which several signals are one stop
SIGNALS = {signal.SIGINT, signal.SIGTERM, SIGHUP}


class Stop(KeyboardInterrupt):
    """Raised by the first signal if there is no iteration to finish."""


class Interrupts:
    """Handles SIGINT, SIGTERM and SIGHUP inside the block; then the handlers are those of before.

    Where the block is all that the process does, it `ends_process`: then a further signal of a stop
    is ignored.

    The first signal raises Stop if `stop_now()`, else it only stores its number in `signum`; from
    PATIENCE seconds after that on, Stop is raised where `stop_late()`, also if code of the user's
    has caught the first one. A signal more than SAME_STOP seconds after the first ends the process
    with the exit code that shells expect; until then it is the same stop, sent twice, as timeout
    and launchers do to a process and its group. Outside the main thread nothing is handled,
    because Python does not allow it.
    """

    def __init__(self, ends_process: bool = False):
        self.ends_process = ends_process
        self.signum, self.since = 0, 0.0  # of the first one; monotonic
        self.stop_now: Callable[[], bool] = lambda: True
        self.stop_late: Callable[[], bool] = lambda: False
        # That a signal was heard.
        self.say: Callable[[str], None] = write_line if limits.rank_of_process() == 0 else \
            lambda text: None
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            # Under nohup SIGHUP is ignored, and stays so.
            ignored = {SIGHUP} if signal.getsignal(SIGHUP) == signal.SIG_IGN else set()
            self.before = {signum: signal.signal(signum, self._handle)
                           for signum in SIGNALS - ignored}
            if hasattr(signal, "SIGALRM"):
                self.before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._stop_late)
        return self

    def __exit__(self, *_) -> None:
        if hasattr(signal, "SIGALRM") and self.before:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        for signum, handler in self.before.items():
            if self.ends_process and self.signum and signum in SIGNALS:
                handler = signal.SIG_IGN
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    def _handle(self, signum: int, frame) -> None:
        if self.signum:
            if time.monotonic() - self.since > SAME_STOP:
                os._exit(128 + signum)  # workers die with their parent
            return
        self.since, self.signum = time.monotonic(), signum
        now = self.stop_now()
        self.say("stopping; another signal ends the process at once")
        if hasattr(signal, "SIGALRM"):
            signal.setitimer(signal.ITIMER_REAL, PATIENCE, AGAIN)
        if now:
            raise Stop

    def _stop_late(self, signum: int, frame) -> None:
        if self.stop_late():
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            raise Stop


def write_line(text: str) -> None:
    """Writes a line on stderr, also from inside a print that a signal has interrupted."""
    with contextlib.suppress(OSError):  # the terminal may be closed
        os.write(2, f"{text}\n".encode())
