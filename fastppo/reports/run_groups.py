"""Groups of runs that share a label, and the mean of a metric over the runs of a group."""

import math
import re
from typing import Any, NamedTuple, Sequence

import numpy as np

from fastppo.config import Config, having
from fastppo.display.notes import note
from fastppo.errors import ConfigError
from fastppo.reports.run_table import RunTable
from fastppo.settings.fixes import Set, format_value

# In labels, where they differ: settings that change what is learnt.
LABELLED = [name for name in Config.__match_args__
            if name not in having("resumable") | having("not_learnt")]

# 97.5 % quantiles of Student's t with 1, 2, ..., 6 degrees of freedom.
T_QUANTILES = 12.706, 4.303, 3.182, 2.776, 2.571, 2.447

Curve = tuple[np.ndarray, np.ndarray]  # (environment steps, values), f64 [points] each


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
    half = 0 * mean if count == 1 else \
        t_quantile(count - 1) * np.std(values, axis=0, ddof=1) / math.sqrt(count)
    return mean, half


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with `freedom` degrees, within 0.001."""
    if freedom <= len(T_QUANTILES):
        return T_QUANTILES[freedom - 1]
    n = freedom  # the expansion about the normal quantile [Abramowitz 1964, 26.7.5]
    return 1.95996 + 2.37227 / n + 2.8225 / n ** 2 + 2.5558 / n ** 3


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
    differing = {title: differing_settings([table for table in tables if table.title == title])
                 for title in titles}
    labels = []
    for table in tables:
        parts = [f"{name}={setting_text(table, name)}" for name in differing[table.title]
                 if name in table.settings]
        shown = [table.title] * (len(titles) > 1 or not parts) + parts
        labels.append(", ".join(shown))
    return labels


def differing_settings(tables: Sequence[RunTable]) -> list[str]:
    """Names of the settings that change what is learnt and have several values in `tables`."""
    return [name for name in LABELLED if len({setting_text(table, name) for table in tables
                                              if name in table.settings}) > 1]


def setting_text(table: RunTable, name: str) -> str:
    """The value of a run's setting as a text, without the addresses of Python's objects."""
    return re.sub(r" at 0x\w+", "", format_value(table.settings[name]))


def mean_ends_early(group: RunGroup, metric: str) -> str:
    """A sentence on the run at which a group's mean ends, if others are a tenth longer; else ""."""
    ends = [steps[-1] for steps, _ in group.curves(metric)]
    shortest = int(np.argmin(ends))
    if ends[shortest] >= 0.9 * max(ends):
        return ""
    return (f"the mean of {group.label} ends at {ends[shortest]:,.0f} of {max(ends):,.0f} steps,"
            f" where {group.tables[shortest].file} ends")
