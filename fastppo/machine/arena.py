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


class Arena:
    """Arrays by name (`arena["obs"]`) over one shared block laid out by `spec`.

    `Arena(spec)` allocates the block, `Arena(spec, fd)` maps one of another process. Raises
    ConfigError if the machine has less free memory than the arrays need.
    """

    def __init__(self, spec: Spec, fd: int | None = None):
        self.spec = spec
        self.fd = _allocate(spec) if fd is None else fd
        self._finalizer = weakref.finalize(self, os.close, self.fd)
        self._map, self._arrays, offset = mmap.mmap(self.fd, spec_bytes(spec)), {}, 0
        for name, (dtype, shape) in spec.items():
            self._arrays[name] = np.ndarray(shape, dtype, self._map, offset)
            offset += _padded_bytes(dtype, shape)
        if fd is None:
            self.block[:] = POISON

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    @property
    def block(self) -> np.ndarray:
        """All its bytes, u8 [n]."""
        return np.frombuffer(self._map, np.uint8)

    def close(self) -> None:
        """Closes the descriptor; memory stays until its last array is deleted. Twice is fine."""
        self._arrays, self._map = {}, None
        self._finalizer()


def anonymous_file() -> int:
    """The descriptor of an empty file without a name, in memory where the system can (Linux)."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
    fd = above_stdio(os.memfd_create("fastppo", os.MFD_CLOEXEC))
    os.fchmod(fd, 0o600)
    return fd


def above_stdio(fd: int) -> int:
    """`fd`, moved above 0, 1 and 2: a child process replaces those by its own."""
    if fd > 2:
        return fd
    import fcntl
    moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return moved


def spec_bytes(spec: Spec) -> int:
    """Bytes of the block that `spec` describes."""
    return max(ALIGN, sum(_padded_bytes(dtype, shape) for dtype, shape in spec.values()))


def _padded_bytes(dtype: Any, shape: tuple[int, ...]) -> int:
    return -(-math.prod(shape) * np.dtype(dtype).itemsize // ALIGN) * ALIGN


def _allocate(spec: Spec) -> int:
    """The descriptor of a new block; ConfigError if there is not enough memory."""
    size, free = spec_bytes(spec), limits.free_memory()
    fd = anonymous_file()
    try:
        if size > free:
            raise MemoryError
        free = size  # at most, if the system refuses now
        os.ftruncate(fd, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
    except (MemoryError, OSError) as error:
        os.close(fd)
        largest = sorted(spec, key=lambda name: -_padded_bytes(*spec[name]))[:3]
        named = ", ".join(f"{name} {_mib(_padded_bytes(*spec[name]))}" for name in largest)
        raise ConfigError(f"the rollout needs {_mib(size)} of shared memory ({named}, ...), but"
                          f" {_mib(free)} are free", "free memory, or use fewer environments or"
                          " steps (num_envs, num_steps)") from error
    return fd


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
