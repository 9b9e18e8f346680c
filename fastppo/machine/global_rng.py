"""The random generators that a whole process shares: preserved, and watched for use."""

import logging
import pickle
import random
import sys
import threading
from contextlib import contextmanager
from typing import Any, Iterator, Sequence

import numpy as np

GENERATORS = "random", "numpy.random", "torch"  # shared by a whole process

log = logging.getLogger("fastppo")

RNG_LOCK = threading.RLock()  # only one thread at a time may change the host's generators


def rng_states() -> tuple[bytes, ...]:
    """The states of GENERATORS; torch's is empty if torch is not imported."""
    torch = sys.modules.get("torch")
    return (*map(pickle.dumps, (random.getstate(), np.random.get_state())),
            torch.get_rng_state().numpy().tobytes() if torch else b"")


class GlobalRngWatch:
    """Detects environments that draw from a shared generator, until their first episodes are over.

    `drawn`, bool [3], gets True for each of GENERATORS that was used. Workers have a `name`, and
    leave the warning to the main process: one for all of them.
    """

    def __init__(self, drawn: np.ndarray, name: str):
        self.drawn, self.name, self.before = drawn, name, rng_states()
        drawn.fill(False)

    @contextmanager
    def rollout(self, iteration: int, running: Sequence[Any]) -> Iterator[None]:
        """Records the generators used in a rollout, until all `running` are later episodes.

        What was drawn since the last rollout is ignored: it was not by environments.
        """
        if self.before and iteration:
            self.before = rng_states()
        yield
        if not self.before:
            return
        for i, (before, now) in enumerate(zip(self.before, rng_states())):
            self.drawn[i] |= bool(before) and before != now
        warned = self.drawn.any() and not self.name and warn_global_rng(self.drawn)
        if warned or all(episode.number > 0 for episode in running):
            self.before = ()


def warn_global_rng(drawn: np.ndarray) -> bool:
    """Warns if environments have used a shared generator, bool [... 3]; returns True if so."""
    names = [name for name, used in zip(GENERATORS, drawn.reshape(-1, 3).any(0)) if used]
    if names:
        log.warning("an environment, or a model of your own, draws from the global generator of %s:"
                    " the same seed will not give the same run; use self.np_random of the"
                    " environment", " and ".join(names))
    return bool(names)


@contextmanager
def preserved_global_rng() -> Iterator[None]:
    """Restores the shared generators afterwards, torch's too if it is imported."""
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
