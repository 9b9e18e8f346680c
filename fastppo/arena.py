"""One anonymous block of shared memory that holds every array of a run, poisoned at birth.

Linux: a memfd (mode 0600, allocated up front, so that a full machine is an error here and not a
SIGBUS later); elsewhere an unlinked temporary file. It has no name: nothing can be left behind.
"""

import math
import mmap
import os
import tempfile
import weakref

import numpy as np

from .errors import ConfigError

ALIGN = 128  # bytes; two x86 cache lines, so that neighbours never share one
POISON = {"f": np.nan, "i": -1, "u": 255, "b": True}

Spec = dict[str, tuple[str, tuple[int, ...]]]  # name -> (dtype, shape)


class Arena:
    """Arrays by name (`arena["obs"]`) over one shared block laid out by `spec`.

    `Arena(spec)` makes the block, `Arena(spec, fd)` maps one that another process made.
    Raises ConfigError where the machine has less memory than the arrays need.
    """

    def __init__(self, spec: Spec, fd: int | None = None):
        self.spec = spec
        self.fd = _create(spec) if fd is None else fd
        self._finalizer = weakref.finalize(self, os.close, self.fd)
        self._map = mmap.mmap(self.fd, size_of(spec))
        self._arrays = {name: np.ndarray(shape, dtype, self._map, at)
                        for name, (dtype, shape, at) in _places(spec).items()}
        if fd is None:
            for array in self._arrays.values():
                array.fill(POISON[array.dtype.kind])

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


def size_of(spec: Spec) -> int:
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


def _create(spec: Spec) -> int:
    size = size_of(spec)
    free = _free_memory()
    if size > free:
        raise _too_large(spec, size, free)
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
        raise _too_large(spec, size, free) from error
    return fd


def _too_large(spec: Spec, size: int, free: int) -> ConfigError:
    largest = sorted(spec, key=lambda name: -_padded(*spec[name]))[:3]
    named = ", ".join(f"{name} {_padded(*spec[name]) / 2**20:,.0f} MiB" for name in largest)
    envs = spec["raw"][1][1] if "raw" in spec else 1
    fit = max(1, int(envs * free * 0.8 / size))
    return ConfigError(f"the rollout needs {size / 2**20:,.0f} MiB of shared memory ({named}, ...),"
                       f" but {free / 2**20:,.0f} MiB are free", f"--num_envs={fit}")


def _free_memory() -> int:
    """Bytes this process can still have: the machine's, or what its cgroup leaves."""
    free = [2**63]
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        free.append(int(lines["MemAvailable"].split()[0]) * 1024)
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
        with open("/sys/fs/cgroup/memory.current") as file:
            free.append(int(limit) - int(file.read()))
    except (OSError, KeyError, ValueError):  # not Linux, no cgroup, or no limit ("max")
        pass
    return min(free)
