"""A density chart: the share of a group's runs in each cell of steps and values."""

from pathlib import Path
from typing import Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from fastppo.errors import ConfigError
from fastppo.reports.curves import mark_solved, short
from fastppo.reports.pictures import (
    empty_figure,
    house_style,
    metric_axis,
    save_figure,
    set_title,
    step_axis,
)
from fastppo.reports.run_groups import Curve, RunGroup
from fastppo.settings.metric_names import MEAN_RETURN

COLUMNS, ROWS = 60, 30  # of the histogram: steps and values
POINTS = 8  # of each curve in a column
SHADES = "#d4e6f2", "#0072b2", "#06263b"
FEWEST_IN_DENSITY = 3


def save_density(groups: Sequence[RunGroup], metric: str, path: Path) -> Path:
    """Writes the density chart of one group of runs to a png, svg or pdf; returns its path.

    The table of a run has no single episodes, so this is the density of the runs' curves, each a
    mean over the last episodes. Raises ConfigError for several groups, for fewer than
    FEWEST_IN_DENSITY runs, and if the file cannot be written.
    """
    if len(groups) > 1:
        raise ConfigError("a density chart shows one group of runs, and there are"
                          f" {len(groups)}: {'; '.join(group.label for group in groups)}",
                          "give the paths of one group")
    runs = len(groups[0].tables)
    if runs < FEWEST_IN_DENSITY:
        raise ConfigError(f"a density chart needs {FEWEST_IN_DENSITY} runs or more, not {runs}",
                          "give more seeds, or leave --kind out")
    with house_style():
        return save_figure(draw_density(groups[0], metric), path)


def draw_density(group: RunGroup, metric: str) -> Figure:
    """The figure of save_density, 7 x 4 inches."""
    figure = empty_figure(7, 4)
    axes = figure.subplots()
    shares, steps, values = density(group.curves(metric))
    mesh = axes.pcolormesh(steps, values, np.where(shares > 0, shares, np.nan).T, vmin=0,
                           cmap=LinearSegmentedColormap.from_list("shares", SHADES))
    bar = figure.colorbar(mesh, ax=axes, aspect=30, pad=0.01, format=PercentFormatter(1))
    bar.outline.set_visible(False)
    bar.set_label("share of the runs")
    names = dict.fromkeys(table.title for table in group.tables)
    what = ", each the mean of its last 100 episodes" * (metric == MEAN_RETURN)
    set_title(axes, short(", ".join(names)),
              f"density of the curves of {len(group.tables)} runs{what}")
    step_axis(axes)
    metric_axis(axes, metric)
    mark_solved(axes, [*names], metric)
    return figure


def density(curves: Sequence[Curve]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(shares of runs [columns rows], edges of steps [columns + 1], of values [rows + 1]).

    In each column of steps a curve has POINTS interpolated points, and none before its first or
    after its last value. A share is that of the column's points in a cell of values; the shares of
    a column add up to 1, or to 0 if no curve reaches it.
    """
    begin, end = min(steps[0] for steps, _ in curves), max(steps[-1] for steps, _ in curves)
    edges = np.linspace(begin, max(end, begin + 1), COLUMNS + 1)
    points = np.linspace(begin, edges[-1], COLUMNS * POINTS)
    values = np.stack([np.interp(points, *curve, left=np.nan, right=np.nan) for curve in curves])
    known = ~np.isnan(values)
    at = np.broadcast_to(points, values.shape)[known]
    counts, _, levels = np.histogram2d(at, values[known], [edges, ROWS])
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1), edges, levels
