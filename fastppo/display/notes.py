"""Notes on stderr."""

import contextlib
import sys


def note(text: str) -> None:
    """Prints one line on stderr, if that can be written."""
    with contextlib.suppress(OSError):  # a closed terminal
        print(f"note: {text}", file=sys.stderr, flush=True)


def status(text: str) -> None:
    """Shows one line on stderr in place of the last one, if that is a terminal; "" removes it."""
    with contextlib.suppress(OSError):
        if sys.stderr is not None and sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
