"""Notes on stderr."""

import contextlib
import sys


def note(text: str) -> None:
    """Prints one line on stderr, if that can be written."""
    with contextlib.suppress(OSError):  # a closed terminal
        print(f"note: {text}", file=sys.stderr, flush=True)
