"""Standard output that may fail: a full disk behind it must not end a run."""

import os
import sys
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, Callable, Iterator


class GuardedOutput:
    """A text stream that reports once, on stderr, that writing fails, and drops what follows.

    A pipe without a reader is still a BrokenPipeError.
    """

    def __init__(self, stream: Any):
        self.stream, self.failed = stream, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """As the stream's own; returns the length of `text` even if it is lost."""
        self._attempt(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        """As the stream's own."""
        self._attempt(self.stream.flush)

    def _attempt(self, call: Callable, *args: str) -> None:
        try:
            call(*args)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.failed = True
            # Python flushes the rest of the buffer once more when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
            with suppress(OSError):
                print(f"error: the output cannot be written: {error.strerror}; the rest of it is"
                      " lost, nothing else", file=sys.stderr, flush=True)


@contextmanager
def guarded_stdout() -> Iterator[None]:
    """Prints inside go through a GuardedOutput; raises SystemExit(1) at the end if one failed."""
    if sys.stdout is None:  # closed before the command started
        yield
        return
    output = GuardedOutput(sys.stdout)
    try:
        with redirect_stdout(output):
            yield
    except SystemExit as end:  # of --help
        raise SystemExit(end.code or int(output.failed)) from None
    if output.failed:
        raise SystemExit(1)
