"""Undoing an update that was interrupted or failed, or a trial."""

from contextlib import contextmanager
from typing import Any, Iterator, Sequence


@contextmanager
def restored_on_error(parts: Sequence[Any]) -> Iterator[None]:
    """Restores the `state` of all parts if the block raises anything, an interrupt included."""
    before = [part.state for part in parts]
    try:
        yield
    except BaseException:
        for part, state in zip(parts, before):
            part.restore(state)
        raise


@contextmanager
def restored_at_end(parts: Sequence[Any]) -> Iterator[None]:
    """Restores the `state` of all parts, however the block ends."""
    before = [part.state for part in parts]
    try:
        yield
    finally:
        for part, state in zip(parts, before):
            part.restore(state)
