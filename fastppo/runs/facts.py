"""The machine and versions that the bits of a run depend on, and facts for who looks for a fault.

No environment variable is in them, and ~ stands for the home folder.
"""

import platform
import sys
from typing import Any

import gymnasium
import numpy
import torch

from fastppo import __version__
from fastppo.envs.families import FAMILIES_KNOWN, is_installed
from fastppo.machine import installation, kernels, limits
from fastppo.machine.installation import needed_packages, tilde
from fastppo.trainer.rules import can_start_workers


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


def system_facts(torch_threads: int) -> dict[str, Any]:
    """The facts as plain JSON values, by subject; numbers without a value are None.

    It takes some 50 ms: no device is opened, no environment is made, and nothing is measured.
    """
    needed = {extra: {package.name: version for package, version in packages}
              for extra, packages in needed_packages().items()}
    bits, file = fingerprint(torch_threads), installation.extension_file()
    quota, (total, allowed) = limits.core_quota(), limits.memory_sizes()
    return {"fastppo": {"version": __version__, "commit": installation.commit_of(),
                        "folder": tilde(installation.PACKAGE_FOLDER)},
            "python": {"version": platform.python_version(),
                       "implementation": sys.implementation.name,
                       "executable": tilde(sys.executable), "platform": platform.platform()},
            "torch": {"version": bits["torch"], "cuda": torch.version.cuda or torch.version.hip,
                      "devices": limits.gpus(), "no_device": limits.no_gpu() or None},
            "machine": {"cpu": limits.cpu_model(), "bf16": limits.has_bf16(),
                        "cores": limits.affinity_cores(),
                        "quota": None if quota == float("inf") else quota,
                        "usable": limits.usable_cores(), "memory": finite(total),
                        "memory_limit": finite(allowed),
                        "memory_free": finite(limits.free_memory())},
            "kernels": {"backend": kernels.backend(), "file": file and tilde(file),
                        "simd": vector_level({*bits["cpu_flags"].split()}) if file else None,
                        "workers": can_start_workers()},
            "packages": needed.pop("", {}), "extras": needed,
            "environments": {family.name: is_installed(family) for family in FAMILIES_KNOWN},
            "fingerprint": bits}


def finite(size: int) -> int | None:
    """A size, or None for no limit, which version 1 of control groups writes as about 2^63."""
    return size if size < 2**60 else None
