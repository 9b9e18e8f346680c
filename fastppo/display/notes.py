"""Notes and warnings on stderr."""

import contextlib
import logging
import sys
from typing import Iterator

from fastppo.display.status_line import show_status


def note(text: str, kind: str = "note") -> None:
    """Prints one line on stderr, if that can be written, in the place of a status line."""
    show_status("")
    with contextlib.suppress(OSError):  # a closed terminal
        print(f"{kind}: {text}", file=sys.stderr, flush=True)


class WarningPrinter(logging.Handler):
    """Prints what is logged as `warning: ...` on stderr, whatever stream that is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Prints one message."""
        note(record.getMessage(), "warning")


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
