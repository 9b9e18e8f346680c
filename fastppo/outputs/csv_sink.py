"""The sink that writes metrics.csv."""

import contextlib
import csv
import errno
import io
import logging
import os
from itertools import count
from pathlib import Path

from fastppo.display.notes import note
from fastppo.files.run_folder import write_error
from fastppo.settings.metric_names import EPISODES, GLOBAL_STEP, MEAN_LENGTH, MEAN_RETURN

MAX_WAITING = 10_000  # rows that wait for a disk

log = logging.getLogger("fastppo")


class CsvSink:
    """A table with a row for every iteration; a metric that appears later gets a new column.

    When training begins, an older table at `path` is renamed, with a warning in the log, and so is
    a damaged one; a run that is resumed at `step` continues the table after that step. If the disk
    is full, a note is printed once, the run goes on, and the rows are written as soon as there is
    room, the last MAX_WAITING of them. Raises ConfigError if a new file cannot be created.
    """

    def __init__(self, path: Path, step: int | None = None):
        self.path, self.step, self.waiting, self.begun = path, step, [], False
        self.names = [GLOBAL_STEP, MEAN_RETURN, MEAN_LENGTH, EPISODES]
        self.older = path.exists()
        if step is None and not self.older:
            try:
                self._rewrite([])
            except OSError as error:
                raise write_error(path, error) from error

    def on_start(self, ppo) -> None:
        """Begins the table, or continues that of the run that is resumed."""
        if not self.begun:
            with contextlib.suppress(OSError):  # the first row tries again, and says so
                self._begin()

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Writes a row; metrics without a value are empty."""
        row, noted = {GLOBAL_STEP: ppo.step, **stats}, bool(self.waiting)
        self.waiting = [*self.waiting, row][-MAX_WAITING:]
        try:
            self._write_waiting()
        except OSError as error:
            if not noted:
                note(f"{self.path}: {error.strerror}; metrics from step {ppo.step:,} on wait until"
                     " they can be written")

    def close(self) -> None:
        """Writes what is waiting, if that is possible now."""
        with contextlib.suppress(OSError):
            if self.waiting:
                self._write_waiting()

    def _begin(self) -> None:
        if self.step is None:
            if self.older:
                self._rename("of an earlier run")
        else:
            try:
                self._cut(self.step)
            except (ValueError, csv.Error):  # it may hold anything
                self._rename("damaged")
            except FileNotFoundError:
                pass
        self.begun = True

    def _write_waiting(self) -> None:
        if not self.begun:
            self._begin()
        if not self.path.exists():  # also where somebody has removed the folder
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._rewrite([])
        if new := [name for row in self.waiting for name in row if name not in self.names]:
            self._add_columns([*dict.fromkeys(new)])
        text = io.StringIO(newline="")
        csv.DictWriter(text, self.names).writerows(self.waiting)
        data = text.getvalue().encode()
        with open(self.path, "r+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if file.write(data) < len(data):
                file.truncate(end)  # no half rows
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.waiting = []

    def _rename(self, kind: str) -> None:
        """Renames the table that is there, which is of a `kind` that is not continued."""
        free = (self.path.with_name(f"{self.path.stem}-{i}{self.path.suffix}") for i in count(1))
        older = next(path for path in free if not path.exists())
        os.replace(self.path, older)
        log.warning("%s is %s, and is now %s", self.path, kind, older.name)

    def _cut(self, step: int) -> None:
        """Takes over the columns of the table, and ends it after the last whole row up to `step`.

        It needs no room on the disk. Raises ValueError or csv.Error if it is no table of a run.
        """
        with open(self.path, "r+b") as file:
            names = next(csv.reader([file.readline().decode()]), [])
            if names[:1] != [GLOBAL_STEP]:
                raise ValueError(f"{self.path} has no column {GLOBAL_STEP}")
            end = file.tell()
            for line in file:
                first = line.partition(b",")[0]
                whole = line.endswith(b"\n") and line.count(b",") == len(names) - 1
                if not whole or not first.isdigit() or int(first) > step:
                    break
                end += len(line)
            file.truncate(end)
        self.names = names

    def _add_columns(self, names: list[str]) -> None:
        with open(self.path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        known, self.names = self.names, [*self.names, *names]
        try:
            self._rewrite(rows)
        except OSError:
            self.names = known
            raise

    def _rewrite(self, rows: list[dict]) -> None:
        """Writes the whole table; a reader sees the old one or this one."""
        partial = self.path.with_name(f".{self.path.name}.part")
        try:
            with open(partial, "w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, self.names)
                writer.writeheader()
                writer.writerows(rows)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, self.path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
