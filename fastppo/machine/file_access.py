"""Reads and writes the files of a run; without torch.

What is written is whole or not there, and in the place of its name, not where a link leads. What is
read is a file of a bounded size: no pipe, on which a reader waits, and no device without an end.
"""

import errno
import itertools
import json
import os
import re
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Iterator, Sequence

from fastppo.errors import ConfigError, Set

LARGEST_TEXT = 16 << 20  # bytes of a small file, such as config.json
DEEPEST = 50  # lists in lists of a JSON file
# What a terminal would obey: a name from a file may hold it. And its escapes in JSON.
CONTROL_CHARACTERS = dict.fromkeys({*range(32), *range(127, 160)} - {9, 10}, "?")
CONTROLS = re.compile(r"\\u00(0[0-8bcefBCEF]|1.|7[fF]|[89].)|[\x7f-\x9f]")


def open_regular(path: str, flags: int) -> int:
    """The opener of files that exist, or are appended to: OSError for what is none.

    A link is followed by who reads alone.
    """
    link = 0 if flags & (os.O_WRONLY | os.O_RDWR) == 0 else getattr(os, "O_NOFOLLOW", 0)
    fd = os.open(path, flags | link | getattr(os, "O_NONBLOCK", 0), 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return fd


def read_text(path: Path, most: int = LARGEST_TEXT, errors: str = "strict") -> str:
    """The text in a file, without a byte order mark; OSError if it has more than `most` bytes."""
    with open(path, "rb", opener=open_regular) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data.decode("utf-8-sig", errors)


def read_json(path: Path) -> Any:
    """The value in a JSON file; OSError if it cannot be read, ValueError if it is no JSON."""
    text = read_text(path)
    if CONTROLS.search(text):
        raise ValueError("it has control characters, which a terminal would obey")
    try:
        levels = depth(value := json.loads(text))
    except RecursionError:
        levels = DEEPEST + 1
    if levels > DEEPEST:
        raise ValueError(f"it has lists in lists, more than {DEEPEST} deep")
    return value


def depth(value: Any) -> int:
    """The number of lists and dicts that are in each other in `value`."""
    if not isinstance(value, (list, dict)):
        return 0
    return 1 + max(map(depth, value.values() if isinstance(value, dict) else value), default=0)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A new file beside `path` to write, which replaces that one at the end of the block.

    After an error `path` is as it was. A link becomes a file.
    """
    part = path.with_name(f".{path.stem[:100]}.{os.getpid()}.part{path.suffix}")
    try:
        part.unlink(missing_ok=True)  # of another process, which was killed
        yield part
        os.replace(part, path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Writes a file, whole or not at all, and waits until it is on the disk; `mode` says whose."""
    with replaced(path) as part:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    if os.name != "nt":  # where a folder cannot be opened; without this a new name may be lost
        fd = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def free_path(path: Path, first: int = 2) -> Path:
    """The first of video-2.mp4, video-3.mp4, ... for video.mp4, or of run-2, ... that is new.

    For a folder without a name of its own, such as . or /, it is in that folder.
    """
    path = path if path.name.strip(".") else path / "run"
    ending = "" if path.is_dir() else path.suffix
    stem = path.name.removesuffix(ending)
    numbered = (path.with_name(f"{stem}-{i}{ending}") for i in itertools.count(first))
    return next(one for one in numbered if not one.exists())


def check_output(path: Path, endings: Sequence[str] = ()) -> None:
    """Raises ConfigError if an output cannot be written, is no file, or has none of the `endings`.
    """
    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is {'a folder' if path.is_dir() else 'a device or pipe'}, and"
                          " the output is a file")
    if endings and path.suffix.lower() not in endings:
        raise ConfigError(f"{path} is no name that ends with {' or '.join(endings)}")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"there is no folder {path.parent} to write into",
                          "give a file in a folder that exists")


def write_error(path: Path, error: OSError) -> ConfigError:
    """The error for a file or folder of a run that cannot be written."""
    return ConfigError(f"cannot write {path}: {error.strerror}", Set(run_dir="another/folder"))
