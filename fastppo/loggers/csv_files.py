"""The sinks that write metrics.csv and episodes.csv."""

import contextlib
import csv
import errno
import io
import logging
import os
import time
from pathlib import Path
from typing import Any, Callable, Iterable, Sequence

from fastppo.machine.file_access import free_path, open_regular, write_bytes
from fastppo.machine.stderr import note
from fastppo.settings import known_names

MAX_WAITING = 10_000  # iterations that wait for a disk
EPISODE_SECONDS = 1.0  # between two writes of episodes.csv

log = logging.getLogger("fastppo")


class CsvTable:
    """A table of a run that gets rows after every iteration; the first column is the step.

    When training begins, an older table at `path` is renamed, with a warning in the log, and so is
    a damaged one; a run that is resumed at `step` continues the table after that step. If the disk
    is full, a note is printed once, the run goes on, and the rows are written as soon as there is
    room, those of the last MAX_WAITING iterations. `hold` keeps the folder for this run, see
    FolderLock.
    """

    content: str  # in notes
    columns: Sequence[str]  # the first ones

    def __init__(self, path: Path, step: int | None = None, hold: Callable = int):
        self.path, self.step, self.hold, self.begun = path, step, hold, False
        self.names = [*self.columns]
        self.waiting: list[tuple[int, Any]] = []  # (step, what _fields makes rows of)
        self.failed = False

    def on_start(self, ppo) -> None:
        """Begins the table, or continues that of the run that is resumed."""
        if not self.begun:
            with contextlib.suppress(OSError):  # the first row tries again, and says so
                self._begin()

    def on_end(self, ppo) -> None:
        """Writes what is waiting."""
        self.flush()

    def flush(self) -> None:
        """Writes what is waiting; if that is not possible a note says so, once."""
        try:
            if self.waiting:
                self._write_waiting()
            self.failed = False
        except OSError as error:
            if not self.failed:
                note(f"{self.path}: {error.strerror}; {self.content} from step"
                     f" {self.waiting[0][0]:,} on wait until they can be written")
            self.failed = True

    close = flush

    def put(self, step: int, one: Any) -> None:
        """Adds what belongs to the iteration that ended at `step`."""
        self.waiting = [*self.waiting, (step, one)][-MAX_WAITING:]

    def _fields(self) -> Iterable[Sequence[Any]]:
        """The rows that wait, in the order of `names`, to which it may add columns."""
        raise NotImplementedError

    def _begin(self) -> None:
        if self.path.exists():
            try:
                if self.step is None:
                    self._rename("of an earlier run")
                else:
                    self._cut(self.step)
            except (ValueError, csv.Error):  # it may hold anything
                self._rename("damaged")
        if not self.path.exists():
            self._rewrite(self.names, [])
        self.begun = True

    def _write_waiting(self) -> None:
        self.hold()
        if not self.begun or not self.path.exists():  # somebody has moved or removed it
            self._begin()
        text = io.StringIO(newline="")
        csv.writer(text).writerows(self._fields())
        data = text.getvalue().encode()
        with open(self.path, "r+b", buffering=0, opener=open_regular) as file:
            end = file.seek(0, os.SEEK_END)
            if file.write(data) < len(data):
                file.truncate(end)  # no half rows
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.waiting = []

    def _rename(self, kind: str) -> None:
        """Renames the table that is there, which is of a `kind` that is not continued."""
        older = free_path(self.path, 1)
        os.replace(self.path, older)
        log.warning("%s is %s, and is now %s", self.path, kind, older.name)

    def _cut(self, step: int) -> None:
        """Takes over the columns of the table, and ends it after the last whole row up to `step`.

        It needs no room on the disk. Raises ValueError or csv.Error if it is no table of a run.
        """
        with open(self.path, "r+b", opener=open_regular) as file:
            names = next(csv.reader([file.readline().decode()]), [])
            if names[:1] != [known_names.GLOBAL_STEP]:
                raise ValueError(f"{self.path} has no column {known_names.GLOBAL_STEP}")
            end = file.tell()
            for line in file:
                first = line.partition(b",")[0]
                whole = line.endswith(b"\n") and line.count(b",") == len(names) - 1
                if not whole or not first.isdigit() or int(first) > step:
                    break
                end += len(line)
            file.truncate(end)
        self.names = names

    def _rewrite(self, names: list[str], rows: list[dict]) -> None:
        """Writes the whole table; a reader sees the old one or this one."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, names)
        writer.writeheader()
        writer.writerows(rows)
        write_bytes(self.path, text.getvalue().encode())
        self.names = names


class CsvSink(CsvTable):
    """metrics.csv: a row for every iteration; a metric that appears later gets a new column."""

    content = "metrics"
    columns = (known_names.GLOBAL_STEP, known_names.MEAN_RETURN, known_names.MEAN_LENGTH,
               known_names.EPISODES)

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Writes a row; metrics without a value are empty."""
        self.put(ppo.step, {known_names.GLOBAL_STEP: ppo.step, **stats})
        self.flush()

    def _fields(self) -> Iterable[Sequence[Any]]:
        if new := [name for _, row in self.waiting for name in row if name not in self.names]:
            with open(self.path, newline="", encoding="utf-8", opener=open_regular) as file:
                self._rewrite([*self.names, *dict.fromkeys(new)], list(csv.DictReader(file)))
        return [[row.get(name, "") for name in self.names] for _, row in self.waiting]


class EpisodeSink(CsvTable):
    """episodes.csv: a row for every episode, in the order in which they end.

    Of an iteration it has the last 100 at most, so that short ones cost no time and little room. It
    is written every EPISODE_SECONDS, before a checkpoint, and at the end.
    """

    content = "episodes"
    columns = known_names.EPISODE_COLUMNS
    due = 0.0  # when it is written next

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Takes the episodes that ended in the last rollout."""
        if ppo.episodes.ended:
            ends = ppo.progress.begin + ppo.arena["valid"].sum(axis=1).cumsum()
            self.put(ppo.step, [(int(ends[row]), *one) for row, *one in ppo.episodes.ended])
        if time.monotonic() >= self.due:
            self.flush()
            self.due = time.monotonic() + EPISODE_SECONDS

    def _fields(self) -> Iterable[Sequence[Any]]:
        return [row for _, rows in self.waiting for row in rows]
