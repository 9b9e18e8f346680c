"""One anonymous block of shared memory that holds every array of a run, poisoned at birth.

Linux: a memfd (mode 0600, allocated up front, so that a full machine is an error here and not a
SIGBUS later); elsewhere an unlinked temporary file. It has no name: nothing can be left behind.
"""

import bisect
import math
import mmap
import os
import tempfile
import weakref
from typing import Any, Callable

import numpy as np

from fastppo.errors import ConfigError
from fastppo.machine.limits import free_memory

ALIGN = 128  # bytes; two x86 cache lines, so that neighbours never share one
POISON = {"f": np.nan, "i": -1, "u": 255, "b": True}

Spec = dict[str, tuple[Any, tuple[int, ...]]]  # name -> (dtype, shape)
Remedy = Callable[[int], str]  # free bytes -> the fix for what needs more


class Arena:
    """Arrays by name (`arena["obs"]`) over one shared block laid out by `spec`.

    `Arena(spec)` makes the block, `Arena(spec, fd)` maps one that another process made.
    Raises ConfigError, with the `remedy`, where the machine has less memory free than the arrays
    need and `beside`: bytes that whoever uses them will ask for.
    """

    def __init__(self, spec: Spec, fd: int | None = None, beside: int = 0,
                 remedy: Remedy = lambda free: "ask for less, or free memory"):
        self.spec = spec
        self.fd = _create(spec, beside, remedy) if fd is None else fd
        self._finalizer = weakref.finalize(self, os.close, self.fd)
        self._map = mmap.mmap(self.fd, spec_bytes(spec))
        self._arrays = {name: np.ndarray(shape, dtype, self._map, at)
                        for name, (dtype, shape, at) in _places(spec).items()}
        if fd is None:
            for array in self._arrays.values():
                for part in [array] if array.dtype.names is None else map(
                        array.__getitem__, array.dtype.names):
                    part.fill(POISON[part.dtype.kind])

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def close(self) -> None:
        """Give up the descriptor; the memory goes when its last array does. Twice is fine."""
        self._arrays, self._map = {}, None
        self._finalizer()


def above_stdio(fd: int) -> int:
    """`fd`, moved above 0, 1 and 2: where those are closed, a child's own would replace it."""
    if fd > 2:
        return fd
    import fcntl
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def spec_bytes(spec: Spec) -> int:
    """Bytes of the block that `spec` describes."""
    return max(ALIGN, sum(_padded(dtype, shape) for dtype, shape in spec.values()))


def _padded(dtype: str, shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGN) * ALIGN


def _places(spec: Spec) -> dict[str, tuple[str, tuple[int, ...], int]]:
    places, at = {}, 0
    for name, (dtype, shape) in spec.items():
        places[name] = dtype, shape, at
        at += _padded(dtype, shape)
    return places


def largest_fitting(need: Callable[[int], int], free: int, below: int) -> int:
    """The largest n in [0, below) of which need(n) bytes, growing with n, leave a tenth of `free`.

    What does not fit at all is 0.
    """
    return max(0, bisect.bisect_right(range(1, below), free * 9 // 10, key=need))


def _create(spec: Spec, beside: int, remedy: Remedy) -> int:
    size, free = spec_bytes(spec), free_memory()
    if size + beside > free:
        raise _too_large(spec, beside, free, remedy)
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            return os.dup(file.fileno())
    fd = above_stdio(os.memfd_create("fastppo", os.MFD_CLOEXEC))
    try:
        os.fchmod(fd, 0o600)
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        os.close(fd)
        raise _too_large(spec, beside, min(free, size), remedy) from error
    return fd


def _too_large(spec: Spec, beside: int, free: int, remedy: Remedy) -> ConfigError:
    largest = sorted(spec, key=lambda name: -_padded(*spec[name]))[:3]
    named = ", ".join(f"{name} {_mib(_padded(*spec[name]))}" for name in largest)
    rest = f" and about {_mib(beside)} beside" * bool(beside)
    return ConfigError(f"the rollout needs {_mib(spec_bytes(spec))} of shared memory ({named}, ...)"
                       f"{rest}, but {_mib(free)} are free", remedy(free))


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
