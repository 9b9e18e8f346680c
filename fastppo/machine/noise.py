"""Random numbers from which actions are sampled."""

import numpy as np

from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose


class ActionNoise:
    """Random numbers for environments [first, first + count), a function of seed and step.

    `letters` has one letter per number of an action: u is uniform in [0, 1), n is normal.
    """

    def __init__(self, letters: str, seed: int, first: int, count: int):
        self.seed, self.first = seed, first
        self.out = np.empty((count, len(letters)), np.float32)
        self.normal = np.array([letter == "n" for letter in letters])
        self.normals = np.empty_like(self.out) if self.normal.any() else None

    def at(self, step: int, purpose: Purpose = Purpose.ACT) -> np.ndarray:
        """The numbers [e k] of acting step `step`; the next call overwrites the array."""
        place = self.seed, purpose, self.first, step
        if self.normal.all():
            kernels.normal(*place, self.out)
            return self.out
        kernels.uniform(*place, self.out)
        if self.normals is not None:
            kernels.normal(*place, self.normals)
            np.copyto(self.out, self.normals, where=self.normal)
        return self.out
