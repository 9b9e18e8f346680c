"""The standard output of the command, which may end on a full disk: that must not cost a run."""

import os
import sys
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Iterator


class Output:
    """A text stream that says once, on stderr, that it cannot be written; what follows is dropped.

    A pipe that nobody reads any more is still a BrokenPipeError.
    """

    def __init__(self, stream):
        self.stream, self.lost = stream, False

    def __getattr__(self, name: str):
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Like the stream's own; the length of `text`, also where it is lost."""
        self._kept(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Like the stream's own."""
        self._kept(self.stream.flush)

    def _kept(self, call, *args) -> None:
        try:
            call(*args)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.lost = True
            # Python flushes what is left once more when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
            with suppress(OSError):
                print(f"error: the output cannot be written: {error.strerror}; the rest of it is"
                      " lost, nothing else", file=sys.stderr, flush=True)


@contextmanager
def output_kept() -> Iterator[None]:
    """Inside, what is printed goes through an Output; SystemExit(1) after it if any was lost."""
    if sys.stdout is None:  # closed by whoever started the command
        yield
        return
    output = Output(sys.stdout)
    with redirect_stdout(output):
        yield
    if output.lost:
        raise SystemExit(1)
