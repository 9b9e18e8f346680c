"""One anonymous block of shared memory that holds every array of a run, filled with poison.

On Linux it is a memfd (mode 0600, allocated at once, so that a full machine is an error here and
not a SIGBUS later); elsewhere a temporary file that is already deleted. Neither has a name, so
nothing can be left behind.
"""

import math
import mmap
import os
import tempfile
import weakref
from typing import Any

import numpy as np

from fastppo.errors import ConfigError
from fastppo.machine import limits

ALIGN = 128  # bytes; two x86 cache lines, so that two arrays never share one
POISON = 255  # every byte of a new block: NaN, -1, 255 or True, where nothing was written

Spec = dict[str, tuple[Any, tuple[int, ...]]]  # name -> (dtype, shape)


class Arena(dict[str, np.ndarray]):
    """Arrays by name (`arena["obs"]`) over one shared block laid out by `spec`.

    `Arena(spec)` allocates the block, `Arena(spec, fd)` maps one of another process. Its bytes are
    `block`, u8 [n]. Raises ConfigError if the machine has less free memory than the arrays need.
    """

    def __init__(self, spec: Spec, fd: int | None = None):
        sizes, start = array_bytes(spec), 0
        self.spec, self.fd = spec, _allocate(sizes) if fd is None else fd
        self._finalizer = weakref.finalize(self, os.close, self.fd)
        self.block = np.frombuffer(mmap.mmap(self.fd, 0), np.uint8)  # 0: the whole file
        for name, (dtype, shape) in spec.items():
            self[name] = np.ndarray(shape, dtype, self.block, start)
            start += sizes[name]
        if fd is None:
            self.block.fill(POISON)

    def close(self) -> None:
        """Closes the descriptor; memory stays until its last array is deleted. Twice is fine."""
        self.clear()
        self.block = np.empty(0, np.uint8)
        self._finalizer()


def anonymous_file() -> int:
    """The descriptor of an empty file without a name, in memory where the system can (Linux)."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
    fd = os.memfd_create("fastppo", os.MFD_CLOEXEC)
    os.fchmod(fd, 0o600)
    return fd if fd > 2 else above_stdio(fd)


def above_stdio(fd: int) -> int:
    """`fd`, moved above 0, 1 and 2: a child process replaces those by its own."""
    import fcntl
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def array_bytes(spec: Spec) -> dict[str, int]:
    """The bytes of each array of `spec` in the block, whole lines."""
    return {name: -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGN) * ALIGN
            for name, (dtype, shape) in spec.items()}


def _allocate(sizes: dict[str, int]) -> int:
    """The descriptor of a new block for arrays of `sizes`; ConfigError without enough memory."""
    size = max(ALIGN, sum(sizes.values()))
    free = limits.free_memory() if size > limits.SMALL_MEMORY else size
    fd = anonymous_file()
    try:
        if size > free:
            raise MemoryError
        os.ftruncate(fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
    except (MemoryError, OSError) as error:
        os.close(fd)
        largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
        named = ", ".join(f"{name} {_mib(sizes[name])}" for name in largest)
        raise ConfigError(f"the rollout needs {_mib(size)} of shared memory ({named}, ...), but"
                          f" {_mib(min(size, free))} are free", "free memory, or use fewer"
                          " environments or steps (num_envs, num_steps)") from error
    return fd


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
