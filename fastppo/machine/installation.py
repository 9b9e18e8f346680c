"""The installation of fastppo: its folder, the commit of a clone, the compiled extension."""

import importlib.metadata
import importlib.util
import json
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple, Sequence
from urllib.parse import unquote, urlparse

import fastppo
from fastppo.errors import ConfigError
from fastppo.settings.fixes import Install, Set

PACKAGE_FOLDER = Path(fastppo.__file__).parent
BUILD = "install a C compiler and Python's headers, then: pip install -e ."


class Problem(NamedTuple):
    """A fault of an installation or a machine."""

    what: str
    fix: str


def tilde(path: Path | str) -> str:
    """A path with ~ for the home folder, whose name is a person's."""
    text, home = str(path), str(Path.home())
    return "~" + text[len(home):] if text.startswith(home + "/") else text


def source_folder(package: Path = PACKAGE_FOLDER) -> Path | None:
    """The clone that holds the package; None if it is installed without its sources."""
    root = package.parent
    return root if (root / "pyproject.toml").is_file() and (root / "csrc").is_dir() else None


def commit_of(source: Path | None) -> str | None:
    """The commit of a clone, with -dirty if files differ from it; None if git does not say."""
    if source is None or not (source / ".git").exists():  # git would look in the folders above
        return None
    command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--exclude=*",
               "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True,
                              timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def editable_folder() -> Path | None:
    """The clone that is installed in editable mode; None if none is.

    A folder fastppo.egg-info in the clone is a distribution, too, which says nothing about it.
    """
    for found in metadata.distributions(name="fastppo"):
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable", False):
            return Path(unquote(urlparse(origin["url"]).path))
    return None


def extension_file(name: str = "_kernels") -> Path | None:
    """The file of a compiled extension that this Python can load; None if there is none."""
    spec = importlib.util.find_spec(f"fastppo.{name}")
    return Path(spec.origin) if spec and spec.origin else None


def missing_packages_fix(package: Path = PACKAGE_FOLDER) -> str:
    """The fix for packages that are missing: activate the environment that make made, or make it.
    """
    made = package.parent / ".venv"
    if any(made.glob("installed*")) and Path(sys.prefix) != made:
        return f"source {shlex.quote(str(made))}/bin/activate"
    return "make train, or pip install -e ."


def check_loggers(names: Sequence[str]) -> None:
    """Raises ConfigError for the first logger whose package is not installed.

    A folder that its runs leave, such as wandb/, is no package.
    """
    for name in names:
        if sys.modules.get(name) is not None:
            continue
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ConfigError(f'logger="{name}" needs the package {name}, which is not installed',
                              Install(name))


def check_cuda_build(device: str) -> None:
    """Raises ConfigError for a GPU if the installed torch is one for CPUs; does not import it."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return
    if device.startswith("cuda") and version.endswith("+cpu"):
        raise no_cuda(device, f"this torch ({version}) was built without CUDA")


def no_cuda(device: str, why: str) -> ConfigError:
    """The error for a GPU that torch cannot use."""
    return ConfigError(f"device={device}, but {why}", Set(device="cpu"))


def installation_problems(package: Path = PACKAGE_FOLDER) -> list[Problem]:
    """The faults of an installation that still lets fastppo run."""
    return [*extension_problems(package), *clone_problems(source_folder(package))]


def extension_problems(package: Path) -> list[Problem]:
    """The problem if there is no compiled extension for this Python."""
    if extension_file():
        return []
    others = sorted(path.name for path in package.glob("_kernels.*") if path.suffix != ".pyi")
    what = f"the compiled extension is of another Python: {others[0]}" if others else \
        "there is no compiled extension: one process only, and slower"
    return [Problem(what, "with this Python: pip install -e ." if others else BUILD)]


def clone_problems(source: Path | None) -> list[Problem]:
    """The problem if a clone is used, but is not what is installed in editable mode."""
    installed = editable_folder()
    if source is None or installed is not None and installed.resolve() == source.resolve():
        return []
    what = f"what is installed is the clone {tilde(installed)}" if installed else \
        "it is not installed in editable mode"
    return [Problem(f"fastppo is used from the clone {tilde(source)}, but {what}",
                    f"in {tilde(source)}: pip install -e .")]
