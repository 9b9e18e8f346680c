"""Undoing an update that was interrupted or failed."""

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
