"""Notes, warnings and a status line on stderr."""

import contextlib
import logging
import re
import shutil
import sys
import threading
import time
from typing import Any, Callable, Iterator

from fastppo.machine import limits
from fastppo.machine.file_access import CONTROL_CHARACTERS
from fastppo.settings.values import return_text

WAIT_SECONDS, AGAIN_SECONDS = 2.0, 0.2  # before the first line; between two lines
LINE_SECONDS = 10.0  # between two lines where there is no terminal
MUST_END = "; --max_episode_steps=1_000 would end them"


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


def note(text: str, kind: str = "note") -> None:
    """Prints one line on stderr, if that can be written, in the place of a status line."""
    show_status("")
    with contextlib.suppress(OSError):  # a closed terminal
        print(f"{kind}: {text.translate(CONTROL_CHARACTERS)}", file=sys.stderr, flush=True)


class WarningPrinter(logging.Handler):
    """Prints what is logged as `warning: ...` on stderr, whatever stream that is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one message, in which a setting of a fix is a flag."""
        note(re.sub(r"(?m)^(  fix: )(\w+=)", r"\1--\2", record.getMessage()), "warning")


@contextlib.contextmanager
def printed_warnings(shown: bool = True) -> Iterator[None]:
    """What the package logs inside is printed, or not, and goes nowhere else."""
    log, printer = logging.getLogger("fastppo"), WarningPrinter(0 if shown else 99)
    propagate, log.propagate = log.propagate, False
    log.addHandler(printer)
    try:
        yield
    finally:
        log.removeHandler(printer)
        log.propagate = propagate


@contextlib.contextmanager
def episode_status(episodes: int) -> Iterator[Callable[[Any], None]]:
    """Yields a function that takes the returns of the episodes that have ended, after each step.

    It shows their number of `episodes`, and their mean or else the steps, if they take long; these
    are also a note if Ctrl-C or a signal stops them.
    """
    begun, text, steps = time.monotonic(), "no step was taken", 0

    def report(returns) -> None:
        nonlocal text, steps
        steps += 1
        more = f"with a mean return of {return_text(returns.mean())}" if len(returns) else \
            f"{steps:,} steps in each environment" + MUST_END * (steps > 2_000)
        text = f"played {len(returns):,} of {episodes:,} episodes in" \
               f" {time.monotonic() - begun:.0f} s, {more}"
        status(text)
    try:
        with StatusLine() as status:
            yield report
    except KeyboardInterrupt:
        note(text)
        raise


def error_line(error: BaseException) -> str:
    """The type of an exception, and the first line of its text."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
