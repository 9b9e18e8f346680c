"""What the bits of a run depend on beside its Config: the machine, the versions, the twin."""

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fastppo import __version__
from fastppo.machine import kernels

PACKAGES = "torch", "numpy", "gymnasium"
VECTORS = re.compile(r"(avx|fma|sse4|ssse3|f16c|amx|asimd|sve|neon)\w*$")


def fingerprint(torch_threads: int) -> dict[str, str | int]:
    """CPU and its vector instructions, versions, kernel twin, torch's level and threads, precision.

    Two runs of one Config promise the same bits where these are equal.
    """
    flags = _cpu_flags()
    avx2 = {"avx2", "fma"} <= set(flags)  # as csrc/simd/dispatch.h chooses
    return {"machine": platform.machine(), "cpu_flags": " ".join(flags),
            "fastppo": __version__, **{name: _version(name) for name in PACKAGES},
            "kernels": kernels.backend() + " avx2" * (kernels.COMPILED and avx2),
            "torch_cpu": torch.backends.cpu.get_cpu_capability(), "torch_threads": torch_threads,
            "precision": "fp32"}


def _cpu_flags() -> list[str]:
    """The vector instructions of this CPU in order of their names; none where nobody tells."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return []
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return sorted(filter(VECTORS.match, line[1].split())) if line else []


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
