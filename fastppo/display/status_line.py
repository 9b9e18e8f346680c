"""A line on a terminal that says how far something slow is."""

import contextlib
import sys
import time

WAIT_SECONDS, AGAIN_SECONDS = 2.0, 0.2  # before the first line; between two lines


class StatusLine:
    """Shows a text on stderr, in the place of the one before, if that is a terminal.

    It begins after two seconds. As a context manager it removes its line at the end.
    """

    def __init__(self):
        self.due, self.shown = time.monotonic() + WAIT_SECONDS, False

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(self, *_) -> None:
        self.clear()

    def __call__(self, text: str) -> None:
        """Shows `text`, unless a line was shown a moment ago."""
        if (now := time.monotonic()) >= self.due and sys.stderr.isatty():
            self.due, self.shown = now + AGAIN_SECONDS, True
            self._write(text)

    def clear(self) -> None:
        """Removes the line, so that something else can be printed."""
        if self.shown:
            self._write("")
        self.shown = False

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a closed terminal
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
