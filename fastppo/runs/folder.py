"""The folder of a run, its config.json and its checkpoints; without torch."""

import json
import os
import re
from pathlib import Path

from fastppo.config import Config
from fastppo.errors import PathError, path_errors
from fastppo.machine.child_process import public_config
from fastppo.machine.file_access import open_regular, write_bytes, write_error
from fastppo.settings.known_names import CONFIG_FILE, MODEL_FILE

CHECKPOINT_NAME = re.compile(r"checkpoint-(\d+)\.safetensors")  # with the step
HEADER_BYTES = 4 << 20  # longest header that is read: names, shapes and texts


@path_errors()
def check_file(path: Path, kind: str) -> None:
    """Raises PathError unless `path` is a file of ours of a `kind`, as far as its header says."""
    fix = f"give the file of a {kind}" + ", or the folder of its run" * (kind != "bundle")
    if not path.is_file():
        raise PathError(f"{path} is a folder without the file of a {kind}" if path.is_dir()
                        else f"there is no file {path}", fix)
    try:
        with open(path, "rb", opener=open_regular) as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(min(length, HEADER_BYTES))
    except OSError:
        return  # who reads the whole file says why
    if not 0 < length <= path.stat().st_size - 8:
        raise PathError(f"{path} is not a safetensors file", fix)
    stored = re.search(rb'"format": ?"fastppo (\w+)', header)
    if stored and stored[1].decode() != kind:
        raise PathError(f"{path} is a {stored[1].decode()}, not a {kind}", fix)


@path_errors()
def policy_at(path: Path) -> Path:
    """`path`; its file of the policy, if it is the folder of a run that has one."""
    return path / MODEL_FILE if (path / MODEL_FILE).is_file() else path


@path_errors()
def checkpoint_files(place: Path) -> list[Path]:
    """The checkpoint at `place`, or those in the folder of a run; PathError if there is none."""
    if not place.is_dir():
        check_file(place, "checkpoint")
        return [place]
    if not (found := checkpoints_in(place)):
        raise PathError(f"there is no checkpoint in {place}", "give the folder of a run")
    return found


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a run's folder, the newest first."""
    found = (path for path in folder.glob("*") if CHECKPOINT_NAME.fullmatch(path.name))
    return sorted(found, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """The step in the name of a checkpoint."""
    return int(path.stem.partition("-")[2])


class FolderLock:
    """Makes the folder of a run, and keeps it for this process, until close() or its end.

    Raises BlockingIOError if another process has it. A file system without locks locks nothing.
    """

    def __init__(self, folder: Path):
        self.folder, self.fd = folder, -1
        self.hold()

    def hold(self) -> None:
        """Makes and locks the folder again if it was moved or removed.

        Raises BlockingIOError if another process has the one that is there now.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.fd >= 0 and os.path.samestat(os.fstat(self.fd), os.stat(self.folder)):
            return
        self.close()
        try:
            import fcntl
            self.fd = os.open(self.folder, os.O_RDONLY)
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (OSError, ImportError) as error:  # Windows cannot open a folder
            self.close()
            if isinstance(error, BlockingIOError):
                error.strerror = f"another run is writing into {self.folder}"
                raise

    def close(self) -> None:
        """Gives the folder back; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


def make_run_folder(config: Config) -> tuple[Path, FolderLock]:
    """The `run_dir` of a Config, locked, with config.json in it."""
    folder = Path(config.run_dir)
    try:
        lock = FolderLock(folder)
        text = json.dumps(public_config(config), indent=2)
        write_bytes(folder / CONFIG_FILE, f"{text}\n".encode())
    except OSError as error:
        raise write_error(folder, error) from error
    return folder, lock
