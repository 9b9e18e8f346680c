"""The random generators that a process shares: kept, and watched for use by environments."""

import logging
import pickle
import random
import sys
import threading
from contextlib import contextmanager
from typing import Iterator

import numpy as np

GENERATORS = "random", "numpy.random", "torch"  # that all of a process shares

log = logging.getLogger("fastppo")

RNG_LOCK = threading.RLock()  # one thread at a time borrows the host's generators


def rng_states() -> tuple[bytes, ...]:
    """The states of GENERATORS; nothing for torch's while nobody has imported torch."""
    torch = sys.modules.get("torch")
    return (*map(pickle.dumps, (random.getstate(), np.random.get_state())),
            torch.get_rng_state().numpy().tobytes() if torch else b"")


class GlobalRngWatch:
    """Notices environments that draw from a shared generator, until their first episodes are over.

    Enters in `drawn`, bool [3], from which of GENERATORS. Workers, which have a `name`, leave it to
    the main process to say so: once for all of them.
    """

    def __init__(self, drawn: np.ndarray, name: str):
        self.drawn, self.name, self.before = drawn, name, rng_states()
        drawn.fill(False)

    def listen(self, iteration: int) -> None:
        """A rollout begins; what others drew since the last one is none of its business."""
        if self.before and iteration:
            self.before = rng_states()

    def tell(self, over: bool) -> None:
        """It has ended; `over`: and with it every environment's first episode."""
        if not self.before:
            return
        self.drawn |= [bool(was) and was != is_ for was, is_ in zip(self.before, rng_states())]
        said = not self.name and warn_global_rng(self.drawn)
        if over or said:
            self.before = ()


def warn_global_rng(drawn: np.ndarray) -> bool:
    """Say which shared generators environments of any process have drawn from, bool [... 3]."""
    names = [which for which, any_ in zip(GENERATORS, drawn.reshape(-1, 3).any(0)) if any_]
    if names:
        log.warning("an environment, or a model of your own, draws from the global generator of %s:"
                    " the same seed will not give the same run; environments have self.np_random"
                    " instead", " and ".join(names))
    return bool(names)


@contextmanager
def preserved_global_rng() -> Iterator[None]:
    """Put back the generators that all of a process shares, torch's too if it is there."""
    torch = sys.modules.get("torch")
    with RNG_LOCK:
        before = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            if torch:
                torch.set_rng_state(before[2])
