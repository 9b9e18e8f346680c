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

    An older table at `path` is renamed, with a warning in the log; a run that is resumed at `step`
    continues it after that step. If the disk is full, a note is printed once, the run goes on, and
    the rows are written as soon as there is room, the last MAX_WAITING of them. Raises ConfigError
    if the file cannot be created.
    """

    def __init__(self, path: Path, step: int | None = None):
        self.path, self.waiting = path, []
        self.names = [GLOBAL_STEP, MEAN_RETURN, MEAN_LENGTH, EPISODES]
        try:
            rows = [] if step is None or not path.exists() else self._rows()
            if path.exists() and step is None:
                self._rename_older()
            self._rewrite([row for row in rows if int(row[GLOBAL_STEP]) <= (step or 0)])
        except OSError as error:
            raise write_error(path, error) from error

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
            self._write_waiting()

    def _write_waiting(self) -> None:
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

    def _rename_older(self) -> None:
        free = (self.path.with_name(f"{self.path.stem}-{i}{self.path.suffix}") for i in count(1))
        older = next(path for path in free if not path.exists())
        os.replace(self.path, older)
        log.warning("%s of an earlier run is now %s", self.path, older.name)

    def _add_columns(self, names: list[str]) -> None:
        rows = self._rows()
        known, self.names = self.names, [*self.names, *names]
        try:
            self._rewrite(rows)
        except OSError:
            self.names = known
            raise

    def _rows(self) -> list[dict[str, str]]:
        """The rows of the table that is there; its columns become `names`."""
        with open(self.path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            rows = list(reader)
        self.names = list(reader.fieldnames or self.names)
        # A run that was killed may have left half a row.
        return [row for row in rows if None not in row.values() and row[GLOBAL_STEP].isdigit()]

    def _rewrite(self, rows: list[dict]) -> None:
        """Writes the whole table; a reader sees the old one or this one."""
        partial = self.path.with_name(f".{self.path.name}.part")
        with open(partial, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.names)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(partial, self.path)
