"""Ctrl-C and SIGTERM as a wish to stop: the first is granted when it suits, the second at once."""

import os
import signal
import threading
from typing import Callable

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop(KeyboardInterrupt):
    """Raised by the first signal where there is nothing worth finishing."""


class Interrupts:
    """Handles SIGINT and SIGTERM inside the block; outside it everything is as it was before.

    The first signal raises Stop if `at_once()`, else it only leaves its number in `signum`, for
    whoever asks. The second ends the process, with the exit code shells expect. In another thread
    than the main one nothing is handled, because Python does not allow it.
    """

    def __init__(self):
        self.signum = 0
        self.at_once: Callable[[], bool] = lambda: True
        self.before: dict[int, object] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            self.before = {one: signal.signal(one, self._handle) for one in SIGNALS}
        return self

    def __exit__(self, *_) -> None:
        for one, handler in self.before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)

    @property
    def code(self) -> int:
        """The exit code of a process that a signal ended: 130 or 143."""
        return 128 + self.signum

    def _handle(self, signum: int, frame) -> None:
        if self.signum:
            os._exit(128 + signum)  # workers die with their parent
        self.signum = signum
        if self.at_once():
            raise Stop
        # Not print: the signal may have come in the middle of one.
        os.write(2, b"stopping after this iteration; once more stops at once\n")
