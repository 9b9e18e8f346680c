"""The machine and versions that the bits of a run depend on, beside its Config."""

import platform

import gymnasium
import numpy
import torch

from fastppo import __version__
from fastppo.machine import kernels, limits


def fingerprint(torch_threads: int) -> dict[str, str | int]:
    """CPU, vector instructions, versions, kernels, torch's level and threads.

    Two runs of one Config give the same bits if these are equal.
    """
    flags = limits.cpu_flags()
    level = f" {vector_level({*flags})}" if kernels.COMPILED else ""
    return {"machine": platform.machine(), "cpu_flags": " ".join(flags),
            "fastppo": __version__, "torch": str(torch.__version__),
            "numpy": numpy.__version__, "gymnasium": gymnasium.__version__,
            "kernels": kernels.backend() + level,
            "torch_cpu": torch.backends.cpu.get_cpu_capability(), "torch_threads": torch_threads}


def vector_level(flags: set[str]) -> str:
    """The widest instructions of the compiled kernels, as csrc/simd/dispatch.h chooses them."""
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= flags:
        return "avx512"
    if {"avx2", "fma"} <= flags:
        return "avx2"
    return "neon" if "asimd" in flags else "plain C"
