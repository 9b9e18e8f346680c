"""Other machines, pretended: PRETEND_MACHINE="cores-1 no-bf16" pytest, see WORDS.

The answers of fastppo.machine.limits are replaced for all tests of this process. Processes that a
test starts see the machine as it is. An instruction set can only be taken away, or the kernels die
of SIGILL; bf16 can be added, because it is only asked for the choice of precision=auto.
"""

import math
import os
import sys

from fastppo.machine import limits

BF16 = {"avx512_bf16", "amx_bf16"}


def _cores(count: int) -> None:
    limits.affinity_cores = lambda: count
    limits.core_quota = lambda root=limits.ROOT: math.inf


def _bf16(added: set[str]) -> None:
    flags = sorted({*limits.cpu_flags()} - BF16 | added)
    limits.cpu_flags = lambda: flags


def _no_terminal() -> None:
    limits.is_terminal = lambda stream: False


def _no_compiler() -> None:
    """Neither our extension was built, nor can torch.compile do anything."""
    sys.modules["fastppo._kernels"] = sys.modules["fastppo._cells"] = None
    os.environ["CC"] = os.environ["CXX"] = "no-such-compiler"


WORDS = {
    "bf16": lambda: _bf16({"amx_bf16"}), "no-bf16": lambda: _bf16(set()),
    "cores-1": lambda: _cores(1), "cores-2": lambda: _cores(2), "cores-16": lambda: _cores(16),
    "no-terminal": _no_terminal, "no-compiler": _no_compiler}


def pretend(words: str) -> None:
    """Makes the machine what `words` say, before a test or another module of fastppo is imported.
    """
    for word in words.split():
        WORDS[word]()
