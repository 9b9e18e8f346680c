"""Builds fastppo._kernels and fastppo._cells from csrc/; everything else is in pyproject.toml.

Both are optional: without Cython, a C compiler or Python's headers the install succeeds, and
fastppo runs in pure Python with a note. FASTPPO_DEBUG=1 builds with bounds checks and -O1 -g,
FASTPPO_SANITIZE=address,undefined under the compiler's sanitizers too (`make sanitize`).
"""

import contextlib
import os
import sys
import warnings
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SANITIZE = os.environ.get("FASTPPO_SANITIZE", "")
DEBUG = bool(SANITIZE) or os.environ.get("FASTPPO_DEBUG", "0") not in ("", "0")
KIND = "-sanitize" if SANITIZE else "-debug" if DEBUG else ""

# Debug adds only checks: other values of wraparound and cdivision would change the results.
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "initializedcheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
}

# No fused multiply-add, so that a result does not depend on the compiler.
STRICT = ["-std=c11", "-ffp-contract=off", "-fno-math-errno"]
FLAGS = STRICT + (["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3"])

# No recovery, so that a finding ends the test. Python's own flags have -fwrapv, which would define
# an overflow and hide it.
CHECKED = [f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all", "-fno-wrapv"]
CHECKED = CHECKED if SANITIZE else []


class BuildExt(build_ext):
    """build_ext that removes the extensions of an earlier build in place."""

    def run(self):
        """Build; if that fails, an old extension must not be used silently."""
        if self.inplace:
            for ext in self.extensions:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(self.get_ext_fullpath(ext.name))
        super().run()


def extension(pyx):
    """The Extension fastppo._name of csrc/bindings/name.pyx, without the hand-written C."""
    posix = sys.platform != "win32"
    return Extension(
        "fastppo._" + os.path.basename(pyx).removesuffix(".pyx"),
        [pyx],
        include_dirs=["csrc"],
        libraries=["m"] if posix else [],
        extra_compile_args=FLAGS + CHECKED if posix else [],
        extra_link_args=CHECKED[:1] if posix else [],
    )


def c_sources(name):
    """The hand-written C of extension `name`: cells.c for the cells, the rest for the kernels."""
    paths = sorted(glob(os.path.join("csrc", "*", "*.c")))
    cells = [path for path in paths if os.path.basename(path) == "cells.c"]
    return cells if name == "fastppo._cells" else [path for path in paths if path not in cells]


def extensions():
    """Both extensions, with generated C under build/; without Cython none, and a warning."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        warnings.warn("no Cython: installing fastppo without compiled kernels", stacklevel=1)
        return []
    built = cythonize(
        [extension(pyx) for pyx in sorted(glob(os.path.join("csrc", "bindings", "*.pyx")))],
        build_dir=os.path.join("build", "cython" + KIND),  # builds of two kinds may run together
        compiler_directives=DIRECTIVES,
        force=True,
    )
    # After cythonize, which drops `optional` and would copy cells.c over the file it generates.
    for ext in built:
        ext.optional = True
        ext.sources += c_sources(ext.name)
        ext.depends += sorted(glob(os.path.join("csrc", "*", "*.[hp]*")))
    return built


# Always a full build: timestamps do not show a change of environment, Cython or compiler.
setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildExt},
    options={"build_ext": {"force": True}},
)
