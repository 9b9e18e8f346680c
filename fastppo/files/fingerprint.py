"""The machine and versions that the bits of a run depend on, beside its Config."""

import platform
import re
from pathlib import Path

import gymnasium
import numpy
import torch

from fastppo import __version__
from fastppo.machine import kernels

VECTORS = re.compile(r"(avx|fma|sse4|ssse3|f16c|amx|asimd|sve|neon)\w*$")


def fingerprint(torch_threads: int) -> dict[str, str | int]:
    """CPU, vector instructions, versions, kernels, torch's level and threads, precision.

    Two runs of one Config give the same bits if these are equal.
    """
    flags = _cpu_flags()
    level = f" {vector_level({*flags})}" if kernels.COMPILED else ""
    return {"machine": platform.machine(), "cpu_flags": " ".join(flags),
            "fastppo": __version__, "torch": str(torch.__version__),
            "numpy": numpy.__version__, "gymnasium": gymnasium.__version__,
            "kernels": kernels.backend() + level,
            "torch_cpu": torch.backends.cpu.get_cpu_capability(), "torch_threads": torch_threads,
            "precision": "fp32"}


def vector_level(flags: set[str]) -> str:
    """The widest instructions of the compiled kernels, as csrc/simd/dispatch.h chooses them."""
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= flags:
        return "avx512"
    if {"avx2", "fma"} <= flags:
        return "avx2"
    return "neon" if "asimd" in flags else "plain C"


def _cpu_flags() -> list[str]:
    """The vector instructions of this CPU, sorted; none if the system does not list them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:  # not Linux
        return []
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return sorted(filter(VECTORS.match, line[1].split())) if line else []
