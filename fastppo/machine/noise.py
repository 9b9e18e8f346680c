"""The random numbers of actions, counted by steps."""

import numpy as np

from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose


class ActionNoise:
    """The random numbers of actions, counted by steps: a head's letters say of which kind each is.

    u is uniform in [0, 1), n normal.
    """

    def __init__(self, letters: str, seed: int, first: int, count: int):
        self.seed, self.first = seed, first
        self.out = np.empty((count, len(letters)), np.float32)
        self.normal = np.array([letter == "n" for letter in letters])
        self.beside = np.empty_like(self.out) if self.normal.any() else None

    def at(self, step: int, purpose: Purpose = Purpose.ACT) -> np.ndarray:
        """The numbers [e k] of acting step `step`; the array is reused."""
        where = self.seed, purpose, self.first, step
        if self.normal.all():
            kernels.normal(*where, self.out)
            return self.out
        kernels.uniform(*where, self.out)
        if self.beside is not None:
            kernels.normal(*where, self.beside)
            np.copyto(self.out, self.beside, where=self.normal)
        return self.out
