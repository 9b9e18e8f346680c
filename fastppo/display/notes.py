"""Notes and warnings on stderr."""

import contextlib
import logging
import re
import sys
import time
from typing import Any, Callable, Iterator

from fastppo.display.status_line import StatusLine, show_status
from fastppo.machine.file_access import CONTROL_CHARACTERS
from fastppo.settings.values import return_text

MUST_END = "; --max_episode_steps=1_000 would end them"


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
