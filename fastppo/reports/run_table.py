"""Reads the folders of runs: their metrics, settings and summaries; without torch."""

import csv
import glob
import io
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastppo.display.notes import note
from fastppo.errors import ConfigError
from fastppo.machine.file_access import check_output, open_regular, read_json, read_text
from fastppo.settings.file_names import CONFIG_FILE, METRICS_FILE, SUMMARY_FILE
from fastppo.settings.fixes import Set
from fastppo.settings.metric_names import GLOBAL_STEP

LONGEST_ROW = 65_536  # bytes
LARGEST_TABLE = 1 << 30
RUN_EXAMPLE = "give the folder of a run, such as runs/latest, or a folder with several runs in it"
ENDINGS = ".png", ".svg", ".pdf"  # of pictures


class RunTable(NamedTuple):
    """The metrics of one run, and what its folder says about it."""

    file: Path  # the table
    env_name: str  # "" if it is not known
    seed: int | None  # None if it is not known
    columns: dict[str, np.ndarray]  # f64 [rows] by metric; NaN where it has no value
    settings: dict[str, Any]  # of config.json; {} if there is none
    summary: dict[str, Any]  # of summary.json; {} if there is none

    @property
    def title(self) -> str:
        """The environment, else the name of the folder, or of a file with another name."""
        file = self.file.resolve()
        return self.env_name or (file.parent.name if file.name == METRICS_FILE else file.stem)

    def has_value(self, metric: str) -> bool:
        """True if any row has a finite value of `metric`."""
        return bool(np.isfinite(self.columns.get(metric, np.nan)).any())

    def curve(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """(environment steps, values) f64 [points] of the rows in which `metric` is finite.

        Raises ConfigError for an unknown metric, and for one without a finite value.
        """
        if metric not in self.columns:
            raise ConfigError(f'{self.file} has no metric "{metric}"',
                              f"choose one of {', '.join(self.columns)}")
        steps, values = self.columns[GLOBAL_STEP], self.columns[metric]
        known = np.isfinite(values)
        if not known.any():
            raise ConfigError(f"{metric} has no finite value in any row of {self.file}",
                              "train for longer, or leave that run out")
        return steps[known], values[known]


def read_runs(text: str) -> list[RunTable]:
    """The runs that `text` names: a folder, a CSV file, a pattern, or several with commas between.

    A folder is that of a run, or holds the folders of runs. A run that is named twice, such as by
    runs/latest, is read once. Of several, those without a row are left out, with a note. Raises
    ConfigError if a file cannot be read, or if no run is left.
    """
    files: dict[Path, Path] = {}
    for path in expand(text):
        for file in tables_in(path):
            files.setdefault(file.resolve(), file)
    tables = [read_table(file) for file in files.values()]
    empty = [table.file for table in tables if not len(table.columns[GLOBAL_STEP])]
    if len(empty) == len(tables):
        raise ConfigError(f"{empty[0]} has no complete row: its run has failed or been stopped in"
                          " the first iteration, or is still in it", RUN_EXAMPLE)
    for file in empty:
        note(f"{file} has no complete row and is left out")
    return [table for table in tables if table.file not in empty]


def check_picture_path(path: Path) -> None:
    """Raises ConfigError unless a picture can be written to `path`, by its ending and folder."""
    check_output(path, ENDINGS)
    if not path.parent.is_dir():
        raise ConfigError(f"there is no folder {path.parent}", Set(output=path.name))


def expand(text: str) -> list[Path]:
    """The paths that `text` stands for; ConfigError if a pattern in it fits nothing."""
    if os.path.exists(text):  # a long list is no name of a file
        return [Path(text)]
    paths = []
    for part in filter(None, map(str.strip, text.split(","))):
        if not glob.has_magic(part):
            paths.append(Path(part))
            continue
        found = sorted(map(Path, glob.glob(part)))
        if not found:
            raise ConfigError(f'nothing fits the pattern "{part}"', RUN_EXAMPLE)
        paths += [path for path in found if path.suffix == ".csv" or tables_under(path)]
        for folder in (path for path in found if path.is_dir() and path not in paths):
            note(f"{folder} is no run and is left out")
    if not paths:
        raise ConfigError(f'"{text}" names no run', RUN_EXAMPLE)
    return paths


def tables_in(path: Path) -> list[Path]:
    """The tables of the run, or of the runs, at `path`; ConfigError if there are none."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ConfigError(f"there is no folder {path}", RUN_EXAMPLE)
    found = tables_under(path)
    if not found:
        raise ConfigError(f"neither {path} nor a folder in it has a file {METRICS_FILE}",
                          RUN_EXAMPLE)
    return found


def tables_under(folder: Path) -> list[Path]:
    """The table of the run in a folder, or else those of the runs in its folders."""
    own = folder / METRICS_FILE
    return [own] if own.exists() else sorted(
        folder.glob(f"*/{METRICS_FILE}"), key=lambda file: (file.parent.is_symlink(), file))


def read_table(file: Path) -> RunTable:
    """The table in `file`, with the settings and the summary beside it if it is metrics.csv.

    Rows that are not complete are left out, such as the last one of a run that was killed: a row
    ends with a line break, and has a field for each column and a whole number of steps. Raises
    ConfigError for a file that cannot be read, or is not the table of one run.
    """
    names, *rows = csv_rows(file) or [[]]
    if GLOBAL_STEP not in names:
        raise ConfigError(f"{file} is no table of metrics: it has no column {GLOBAL_STEP}",
                          RUN_EXAMPLE)
    place = names.index(GLOBAL_STEP)
    rows = [row for row in rows if len(row) == len(names) and number_in(row[place]) >= 0]
    columns = {name: np.array([number_in(row[i]) for row in rows]) for i, name in enumerate(names)}
    if (np.diff(columns[GLOBAL_STEP]) < 0).any():
        raise ConfigError(f"{GLOBAL_STEP} falls within {file}: it has the rows of several runs",
                          "write a file for each run")
    beside = file.name == METRICS_FILE
    settings = read_object(file.with_name(CONFIG_FILE)) if beside else {}
    summary = read_object(file.with_name(SUMMARY_FILE)) if beside else {}
    known = settings | summary
    seed = known.get("seed")
    return RunTable(file, str(known.get("env_name") or ""), seed if isinstance(seed, int) else None,
                    columns, settings, summary)


def last_row(file: Path) -> dict[str, float]:
    """The numbers in the last complete row of a table; {} if there is none, or no such file."""
    try:
        with open(file, "rb", opener=open_regular) as source:
            head, begin = source.readline(LONGEST_ROW), source.tell()
            source.seek(max(begin, source.seek(0, io.SEEK_END) - LONGEST_ROW))
            ends = source.read().split(b"\n")[-2:-1]
    except OSError:
        return {}
    names, *rows = csv.reader(line.decode(errors="replace") for line in (head, *ends))
    return {name: number for row in rows if len(row) == len(names)
            for name, number in zip(names, map(number_in, row)) if np.isfinite(number)}


def csv_rows(file: Path) -> list[list[str]]:
    """The fields of each line of `file` up to its last line break; ConfigError if that fails."""
    try:
        text = read_text(file, LARGEST_TABLE)
        return list(csv.reader(io.StringIO(text[:text.rfind("\n") + 1], newline="")))
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}", RUN_EXAMPLE) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{file} is no table of metrics, but another kind of file",
                          RUN_EXAMPLE) from error


def number_in(text: str) -> float:
    """The number that `text` is; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return np.nan


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in `file`, {} if there is no such file; ConfigError if it holds no object."""
    try:
        if isinstance(value := read_json(file), dict):
            return value
        raise ValueError("it holds no JSON object")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {error}", "delete it, or leave its run out"
                          ) from error
