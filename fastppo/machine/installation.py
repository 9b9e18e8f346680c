"""What is installed: fastppo's folder and commit, the extension, the packages that it needs."""

import importlib.util
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Callable

from packaging.requirements import Requirement

import fastppo
from fastppo.errors import ConfigError, Install, Set

PACKAGE_FOLDER = Path(fastppo.__file__).parent
BUILD = "install a C compiler and Python's headers, then: pip install -e ."
FORMATS = {"onnx": ".onnx", "torchscript": ".pt"}  # and their usual endings
ONNX_PACKAGES = "onnx", "onnxscript", "onnxruntime"


def tilde(path: Path | str) -> str:
    """A path with ~ for the home folder, whose name is a person's."""
    text, home = str(path), str(Path.home())
    return "~" + text[len(home):] if text.startswith(home + "/") else text


def commit_of(clone: Path = PACKAGE_FOLDER.parent) -> str | None:
    """The commit of a clone, with -dirty if files differ from it; None if git does not say."""
    command = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--exclude=*",
               "--abbrev=12"]
    if (clone / ".git").exists():  # else git would look in the folders above
        with suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(command, capture_output=True, text=True, check=True,
                                  timeout=5).stdout.strip()


def extension_file() -> Path | None:
    """The file of the compiled kernels that this Python can load; None if there is none."""
    spec = importlib.util.find_spec("fastppo._kernels")
    return Path(spec.origin) if spec and spec.origin else None


def is_missing(package: str) -> bool:
    """True if a package is not installed; a folder that its runs leave, as wandb/, is none."""
    if sys.modules.get(package) is not None:
        return False
    spec = importlib.util.find_spec(package)
    return spec is None or spec.origin is None


def needed_packages() -> dict[str, list[tuple[Requirement, str | None]]]:
    """(package, its installed version) by extra; "" has those that fastppo itself needs.

    They are those of the installed distribution, for this platform; empty without one.
    """
    found: dict[str, list[tuple[Requirement, str | None]]] = {}
    for text in _metadata_of("fastppo", metadata.requires) or []:
        wanted = Requirement(text)
        extra = "".join(re.findall(r"extra == .([\w-]+)", str(wanted.marker)))
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            found.setdefault(extra, []).append(
                (wanted, _metadata_of(wanted.name, metadata.version)))
    return found


def _metadata_of(name: str, question: Callable[[str], Any]) -> Any:
    """What importlib.metadata answers for a distribution; None if it is not installed."""
    try:
        return question(name)
    except metadata.PackageNotFoundError:
        return None


def format_of(path: Path, to: str | None) -> str:
    """`to`, or else the format of the ending of `path`; ConfigError if it cannot be written."""
    endings = {ending: name for name, ending in FORMATS.items()}
    to = endings.get(path.suffix) if to is None else to
    if to not in FORMATS:
        raise ConfigError(f"there is no format {to or path.suffix!r}, only {' and '.join(FORMATS)}",
                          Set(to="onnx"))
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if to == "onnx" and missing:
        raise ConfigError("ONNX needs packages that are not installed: " + ", ".join(missing),
                          (Install("export"), Set(to="torchscript")))
    return to
