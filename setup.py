"""Builds fastppo._kernels and fastppo._cells from csrc/; pyproject.toml says everything else.

Both are optional: where Cython, a C compiler or Python's headers are missing the install succeeds
and fastppo runs in pure Python, saying so. FASTPPO_DEBUG=1 builds with bounds checks and -O1 -g,
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

# Debug adds checks only: wraparound and cdivision would change what the code means.
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "initializedcheck": DEBUG,
    "wraparound": False,
    "cdivision": True,
}

# No fusing: a result must not depend on which compiler saw a multiply beside an add.
STRICT = ["-std=c11", "-ffp-contract=off", "-fno-math-errno"]
FLAGS = STRICT + (["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3"])

# No recovering: what a sanitizer finds must end the test. No wrapping, which Python's own flags ask
# for: an overflow would be defined, and not found.
CHECKED = [f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=all", "-fno-wrapv"]
CHECKED = CHECKED if SANITIZE else []


class BuildExt(build_ext):
    """setuptools' build_ext, which leaves no extension of an earlier build behind."""

    def run(self):
        """Build; where that fails now, the old extension must not go on in its place, silently."""
        if self.inplace:
            for ext in self.extensions:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(self.get_ext_fullpath(ext.name))
        super().run()


def extension(pyx):
    """The Extension fastppo._name of csrc/bindings/name.pyx, without its plain C."""
    posix = sys.platform != "win32"
    return Extension(
        "fastppo._" + os.path.basename(pyx).removesuffix(".pyx"),
        [pyx],
        include_dirs=["csrc"],
        libraries=["m"] if posix else [],
        extra_compile_args=FLAGS + CHECKED if posix else [],
        extra_link_args=CHECKED[:1] if posix else [],
    )


def plain(name):
    """The hand-written C of extension `name`: cells.c of the cells, the rest of the kernels."""
    paths = sorted(glob(os.path.join("csrc", "*", "*.c")))
    cells = [path for path in paths if os.path.basename(path) == "cells.c"]
    return cells if name == "fastppo._cells" else [path for path in paths if path not in cells]


def extensions():
    """Both extensions, their generated C under build/; none, and a warning, without Cython."""
    try:
        from Cython.Build import cythonize
    except ImportError:
        warnings.warn("no Cython: installing fastppo without compiled kernels", stacklevel=1)
        return []
    built = cythonize(
        [extension(pyx) for pyx in sorted(glob(os.path.join("csrc", "bindings", "*.pyx")))],
        build_dir=os.path.join("build", "cython" + KIND),  # builds of two kinds may run at once
        compiler_directives=DIRECTIVES,
        force=True,
    )
    # Only now: cythonize drops `optional`, and copies plain C onto what it generates (cells.c).
    for ext in built:
        ext.optional = True
        ext.sources += plain(ext.name)
        ext.depends += sorted(glob(os.path.join("csrc", "*", "*.[hp]*")))
    return built


# Always from scratch: timestamps do not know that the environment, Cython or the compiler changed.
setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildExt},
    options={"build_ext": {"force": True}},
)
