"""The folder of a run: a new one, or that of the run to resume."""

import itertools
import os
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import datetime
from pathlib import Path
from typing import Iterator

from fastppo.errors import ConfigError
from fastppo.files.run_folder import CHECKPOINTS, write_error
from fastppo.settings.fixes import Omit, Set

LATEST = "latest"  # in runs/: a link to the folder of the last run that was started


def place_to_resume(resume: str | None, init_from: str | None, run_dir: str | None) -> Path | None:
    """The folder or file that --resume names; None for a new run.

    "auto" is the folder of --name or --run_dir, if it has a checkpoint.
    """
    if resume is None:
        return None
    if init_from is not None:
        raise ConfigError("--init_from starts a new run, and --resume continues one",
                          (Omit("resume"), Omit("init_from")))
    if resume != "auto":
        place = Path(resume)
        return place.parent / os.readlink(place) if place.is_symlink() else place
    if run_dir is None:
        raise ConfigError("resume=auto continues the run of a name, and there is none",
                          Set(name="my_run"))
    found = any(Path(run_dir).glob(CHECKPOINTS))
    return Path(run_dir) if found else None


def run_folder(place: Path | None, resume: str | None, run_dir: str | None, name: str
               ) -> AbstractContextManager[Path]:
    """The folder of the checkpoint at `place`, else a new one; see new_folder.

    With resume=auto the folder may hold files of a run that ended before its first checkpoint.
    """
    if place is not None:
        return nullcontext(place if place.is_dir() else place.parent)
    return new_folder(run_dir, name, resume is not None)


@contextmanager
def new_folder(run_dir: str | None, name: str, again: bool = False) -> Iterator[Path]:
    """A new folder for a run: `run_dir`, or runs/{name}__{now}, removed at the end if it is empty.

    Raises ConfigError if `run_dir` cannot be made, or is not empty, unless `again`.
    """
    folder = Path(run_dir or f"runs/{name}__{datetime.now():%Y%m%d-%H%M%S}")
    numbered = (folder.with_name(f"{folder.name}-{i}") for i in itertools.count(2))
    if run_dir and not again and folder.is_dir() and any(folder.iterdir()):
        free = next(path for path in numbered if not path.exists())
        raise ConfigError(f"the folder {run_dir} is not empty: it may hold another run",
                          Set(run_dir=str(free)))
    try:
        while folder.exists() and not run_dir:
            folder = next(numbered)
        folder.mkdir(parents=True, exist_ok=bool(run_dir))
    except OSError as error:
        raise write_error(folder, error) from error
    try:
        yield folder
    finally:
        if not run_dir:
            with suppress(OSError):  # it holds files
                folder.rmdir()
                link = folder.parent / LATEST
                if link.is_symlink() and not link.exists():
                    link.unlink()
                folder.parent.rmdir()


def link_latest(folder: Path) -> None:
    """Makes runs/latest a link to the folder of a run in runs/, if the system has links."""
    link, new = folder.parent / LATEST, folder.parent / f".{LATEST}.{os.getpid()}"
    if folder.parent.name != "runs" or link.exists() and not link.is_symlink():
        return
    with suppress(OSError, NotImplementedError):
        new.symlink_to(folder.name, target_is_directory=True)
        os.replace(new, link)
