"""A line on stderr that says how far something slow is."""

import contextlib
import shutil
import sys
import threading
import time
from typing import Iterator

from fastppo.machine import limits

WAIT_SECONDS, AGAIN_SECONDS = 2.0, 0.2  # before the first line; between two lines
LINE_SECONDS = 10.0  # between two lines where there is no terminal


def show_status(text: str) -> None:
    """Shows a text on stderr in the place of the one before, if that is a terminal; "" removes it.

    What is wider than the terminal is cut: the rest of a broken line could not be removed.
    """
    with contextlib.suppress(OSError):  # a closed terminal
        if limits.is_terminal(sys.stderr):
            shown = text[:shutil.get_terminal_size().columns - 1]
            print(f"\r\033[K{shown}", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def status_while(text: str) -> Iterator[None]:
    """Shows `text` at once, and again and again how long it has been true, until the block ends."""
    over, line, begun = threading.Event(), StatusLine(), time.monotonic()

    def show_again() -> None:
        while not over.wait(1.0):
            line(f"{text}, {time.monotonic() - begun:.0f} s")
    show_status(text)
    thread = threading.Thread(target=show_again, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        show_status("")


class StatusLine:
    """Shows texts by show_status, from two seconds on and not too often.

    As a context manager it removes its line at the end. Elsewhere than on a terminal it prints a
    line every ten seconds.
    """

    def __init__(self):
        self.in_place, self.shown = limits.is_terminal(sys.stderr), False
        self.due = time.monotonic() + (WAIT_SECONDS if self.in_place else LINE_SECONDS)

    def __enter__(self) -> "StatusLine":
        return self

    def __exit__(self, *_) -> None:
        self.clear()

    def __call__(self, text: str) -> None:
        """Shows `text`, unless a line was shown a moment ago."""
        if not self.is_due:
            return
        self.due = time.monotonic() + (AGAIN_SECONDS if self.in_place else LINE_SECONDS)
        self.shown = True
        if self.in_place:
            show_status(text)
        else:
            with contextlib.suppress(OSError, ValueError):  # closed
                print(text, file=sys.stderr, flush=True)

    @property
    def is_due(self) -> bool:
        """True unless a line was shown a moment ago."""
        return time.monotonic() >= self.due

    def clear(self) -> None:
        """Removes the line, so that something else can be printed."""
        if self.shown:
            show_status("")
        self.shown = False
