"""Ctrl-C and SIGTERM: the first stops training after the iteration, the second ends the process."""

import os
import signal
import threading
from typing import Any, Callable

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop(KeyboardInterrupt):
    """Raised by the first signal if there is no iteration to finish."""


class Interrupts:
    """Handles SIGINT and SIGTERM inside the block; afterwards the handlers are those of before.

    The first signal raises Stop if `stop_now()`, else it only stores its number in `signum`. The
    second ends the process with the exit code that shells expect. Outside the main thread nothing
    is handled, because Python does not allow it.
    """

    def __init__(self):
        self.signum = 0
        self.stop_now: Callable[[], bool] = lambda: True
        self.before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self.before = {signum: signal.signal(signum, self._handle) for signum in SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        for signum, handler in self.before.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)

    def _handle(self, signum: int, frame) -> None:
        if self.signum:
            os._exit(128 + signum)  # workers die with their parent
        self.signum, now = signum, self.stop_now()
        # Not print, which the signal may have interrupted.
        os.write(2, b"stopping%s; another Ctrl-C or SIGTERM ends the process at once\n" % (
            b"" if now else b" after this iteration"))
        if now:
            raise Stop
