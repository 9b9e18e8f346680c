"""Reads the folders of runs: metrics, settings and summaries; without torch.

Runs that share a label are a group, of which the mean of a metric is taken.
"""

import csv
import glob
import io
import math
import os
import re
from pathlib import Path
from typing import Any, NamedTuple, Sequence

import numpy as np

from fastppo.config import Config, having
from fastppo.errors import ConfigError, Set, format_value
from fastppo.machine.file_access import read_json, read_text
from fastppo.machine.stderr import note
from fastppo.settings.known_names import CONFIG_FILE, GLOBAL_STEP, METRICS_FILE, SUMMARY_FILE

LARGEST_TABLE = 1 << 30
RUN_EXAMPLE = "give the folder of a run, such as runs/latest, or a folder with several runs in it"
# In labels, where they differ: settings that change what is learnt.
LABELLED = [name for name in Config.__match_args__
            if name not in having("resumable") | having("not_learnt")]
Curve = tuple[np.ndarray, np.ndarray]  # (environment steps, values), f64 [points] each


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
    for file in files_named(text):
        files.setdefault(file.resolve(), file)
    tables = [read_table(file) for file in files.values()]
    empty = [table.file for table in tables if not len(table.columns[GLOBAL_STEP])]
    if len(empty) == len(tables):
        raise ConfigError(f"{empty[0]} has no complete row: its run has failed or been stopped in"
                          " the first iteration, or is still in it", RUN_EXAMPLE)
    for file in empty:
        note(f"{file} has no complete row and is left out")
    return [table for table in tables if table.file not in empty]


def files_named(text: str) -> list[Path]:
    """The tables of the runs that `text` names; ConfigError if a pattern or path in it has none."""
    is_path = os.path.exists(text)  # a long list is no name of a file
    found: list[Path] = []
    for part in [text] if is_path else filter(None, map(str.strip, text.split(","))):
        is_pattern = glob.has_magic(part) and not is_path
        paths = sorted(map(Path, glob.glob(part))) if is_pattern else [Path(part)]
        if not paths:
            raise ConfigError(f'nothing fits the pattern "{part}"', RUN_EXAMPLE)
        for path in paths:
            tables = [path] if path.suffix == ".csv" or path.is_file() and not is_pattern \
                else tables_under(path)
            if not tables and not is_pattern:
                raise ConfigError(f"neither {path} nor a folder in it has a file {METRICS_FILE}"
                                  if path.is_dir() else f"there is no folder {path}", RUN_EXAMPLE)
            if not tables and path.is_dir():
                note(f"{path} is no run and is left out")
            found += tables
    if not found:
        raise ConfigError(f'"{text}" names no run', RUN_EXAMPLE)
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


class RunGroup(NamedTuple):
    """Runs that are drawn as one line."""

    label: str
    tables: list[RunTable]

    def curves(self, metric: str) -> list[Curve]:
        """The curve of `metric` of each run; ConfigError if a run has none."""
        return [table.curve(metric) for table in self.tables]


class MeanCurve(NamedTuple):
    """The mean over runs, and the 95 % interval of it, within the runs; f64 [points] each."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def mean_curve(curves: Sequence[Curve]) -> MeanCurve:
    """The mean over runs at the steps at which any of them has a value.

    Each run is interpolated linearly between its own values. There is no extrapolation: the mean
    begins where the last of the runs begins and ends where the first one ends, and is empty if that
    leaves no step. The interval is mean -+ t * s / sqrt(n) with the 97.5 % quantile t of Student's
    t with n - 1 degrees of freedom and the standard deviation s over the n runs (ddof 1), cut at
    the lowest and the highest run; it is the mean itself for one run.
    """
    begin, end = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
    grid = np.unique(np.concatenate([steps for steps, _ in curves]))
    grid = grid[(begin <= grid) & (grid <= end)]
    values = np.stack([np.interp(grid, *curve) for curve in curves])
    mean, half = mean_and_half(values)
    return MeanCurve(grid, mean, np.maximum(mean - half, values.min(0)),
                     np.minimum(mean + half, values.max(0)))


def mean_and_half(values: Any) -> tuple[Any, Any]:
    """(mean of numbers [runs ...] over runs, half of the 95 % interval of it), see mean_curve."""
    mean, count = np.mean(values, axis=0), len(values)
    if count == 1:
        return mean, 0 * mean
    from scipy.special import stdtrit  # here, because reading runs is quick without it
    half = stdtrit(count - 1, 0.975) * np.std(values, axis=0, ddof=1) / math.sqrt(count)
    return mean, half


def group_runs(places: Sequence[list[RunTable]], labels: Sequence[str] | None) -> list[RunGroup]:
    """The runs of each path of a command line as groups, one for each label, in order.

    `labels` has one for each path. Without it runs of one environment are a group, and settings
    that change what is learnt split it, see run_labels. A run is in a group once. Raises
    ConfigError for a wrong number of labels.
    """
    if labels is not None and len(labels) != len(places):
        raise ConfigError(f"{len(labels)} labels were given for {len(places)}"
                          f" path{'s' * (len(places) > 1)}",
                          Set(labels=tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:len(places)])))
    tables = [table for place in places for table in place]
    texts = run_labels(tables) if labels is None else [
        label for label, place in zip(labels, places) for _ in place]
    groups: dict[str, dict[Any, RunTable]] = {}
    for label, table in zip(texts, tables):
        groups.setdefault(label, {}).setdefault(table.file.resolve(), table)
    return [RunGroup(label, [*runs.values()]) for label, runs in groups.items()]


def with_values(groups: list[RunGroup], metric: str) -> list[RunGroup]:
    """The groups without the runs that have no value of `metric`, which notes name.

    If no run has one, all stay.
    """
    kept = [RunGroup(label, [table for table in tables if table.has_value(metric)])
            for label, tables in groups]
    kept = [group for group in kept if group.tables]
    for table in (table for group in groups * bool(kept) for table in group.tables):
        if not table.has_value(metric):
            note(f"{table.file} has no value of {metric} and is left out")
    return kept or groups


def run_labels(tables: Sequence[RunTable]) -> list[str]:
    """A label for each run: its environment, if there are several, and settings that differ.

    The settings are those in which the runs of its environment differ: lr=0.001.
    """
    titles = dict.fromkeys(table.title for table in tables)
    texts = [{name: re.sub(r" at 0x\w+", "", format_value(table.settings[name]))  # Python's objects
              for name in LABELLED if name in table.settings} for table in tables]
    labels = []
    for table, own in zip(tables, texts):
        alike = [other for one, other in zip(tables, texts) if one.title == table.title]
        parts = [f"{name}={text}" for name, text in own.items()
                 if any(other.get(name, text) != text for other in alike)]
        labels.append(", ".join([table.title] * (len(titles) > 1 or not parts) + parts))
    return labels


def mean_ends_early(group: RunGroup, metric: str) -> str:
    """A sentence on the run at which a group's mean ends, if others are a tenth longer; else ""."""
    ends = [steps[-1] for steps, _ in group.curves(metric)]
    shortest = int(np.argmin(ends))
    if ends[shortest] >= 0.9 * max(ends):
        return ""
    return (f"the mean of {group.label} ends at {ends[shortest]:,.0f} of {max(ends):,.0f} steps,"
            f" where {group.tables[shortest].file} ends")
