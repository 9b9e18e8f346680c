"""A density chart: how the returns of single episodes are distributed over the steps of runs."""

from pathlib import Path
from typing import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, PowerNorm
from matplotlib.figure import Figure

from fastppo.errors import ConfigError, Set
from fastppo.reports import curves
from fastppo.reports.run_table import Curve, RunGroup, read_table
from fastppo.settings.known_names import EPISODES_FILE, GLOBAL_STEP, METRICS_FILE, SINGLE

COLUMNS, ROWS = 240, 120  # of the picture: steps and values
SPREAD = 0.015  # standard deviation of the Gaussian of an episode, as a share of the axis
MOST_DOTS = 3_000
SHADES = "#ffffff", "#d8e9f5", "#a3cce7", "#5ba3d0", "#2f86bf"  # dots can be seen on all
DOTS = "#04365a"


def save_density(groups: Sequence[RunGroup], metric: str, path: Path) -> Path:
    """Writes the density chart of one group of runs to a png, svg or pdf; returns its path.

    It shows the episodes of all runs of the group together. Raises ConfigError for several groups,
    for a metric that single episodes do not have, for a run without the table of its episodes, and
    if the file cannot be written.
    """
    if len(groups) > 1:
        raise ConfigError("a density chart shows one group of runs, and there are"
                          f" {len(groups)}: {'; '.join(group.label for group in groups)}",
                          "give the paths of one group")
    if metric not in SINGLE:
        raise ConfigError(f"a density chart shows single episodes, which have no {metric}",
                          tuple(Set(metric=name) for name in SINGLE))
    return curves.save_figure(path, draw_density, groups[0], metric)


def draw_density(group: RunGroup, metric: str) -> Figure:
    """The figure of save_density, 7 x 4 inches."""
    figure = curves.empty_figure(7, 4)
    axes = figure.subplots()
    steps, values = episodes(group, SINGLE[metric])
    low, high = np.percentile(values, [0.5, 99.5])  # outliers must not make the rest small
    room = 0.06 * (high - low) or 1.0
    axes.set_ylim(low - room, high + room)
    around = draw_shade(axes, steps, values)
    count, runs = len(steps), len(group.tables)
    if count <= MOST_DOTS:  # above the line, which hides them where all values are the same
        axes.plot(steps, values, "o", ms=np.clip(25 / count ** 0.5, 1.2, 3), color=DOTS,
                  markeredgewidth=0, alpha=0.6)
    names = ", ".join(dict.fromkeys(table.title for table in group.tables))
    text = f"{count:,} episode{'s' * (count > 1)}{f' of {runs} runs' * (runs > 1)}"
    curves.set_title(axes, curves.short(names), f"{text}{' (dots)' * (count <= MOST_DOTS)};"
              f" shade: density of the {around} around a step; line: their median")
    curves.step_axis(axes)
    curves.metric_axis(axes, metric)
    end = max(steps[-1], *(table.columns[GLOBAL_STEP][-1] for table in group.tables))
    axes.set(ylabel=f"{SINGLE[metric]} of an episode", xlim=(0, 1.02 * end))
    axes.grid(False)
    curves.mark_solved(axes, names, metric)
    return figure


def draw_shade(axes: Axes, steps: np.ndarray, values: np.ndarray) -> int:
    """Draws density and median of episodes; returns of how many around each step.

    The shade is around the values that the axis shows, between the first and the last step.
    """
    low, high = axes.get_ylim()
    spread = SPREAD * (high - low)
    edges = np.linspace(steps[0], steps[-1], COLUMNS + 1)
    ends = max(low, values.min() - 4 * spread), min(high, values.max() + 4 * spread)
    levels = np.linspace(*ends, ROWS + 1)
    around = window(steps, values, middles(edges))
    shade = density(around, middles(levels), spread)
    axes.pcolormesh(edges, levels, shade.T, rasterized=True,
                    norm=PowerNorm(0.5, 0, np.quantile(shade.max(axis=1), 0.7)),
                    cmap=LinearSegmentedColormap.from_list("density", SHADES))
    for colour, wide in (("white", 3.6), (curves.COLOURS[1], 2.2)):
        axes.plot(middles(edges), np.median(around, axis=1), color=colour, linewidth=wide)
    return around.shape[1]


def episodes(group: RunGroup, name: str) -> Curve:
    """(steps at which they ended, `name` of them) f64 [n] of all finite episodes, by step.

    Raises ConfigError for a run without the table of its episodes, or without an episode.
    """
    found = []
    for table in group.tables:
        file = table.file.with_name(EPISODES_FILE)
        if table.file.name != METRICS_FILE or not file.exists():
            raise ConfigError(f"a density chart needs {EPISODES_FILE}, the single episodes, and"
                              f" there is none beside {table.file}",
                              "train it again, or leave --kind out: a curve needs no episodes")
        found.append(read_table(file).curve(name))
    steps, values = map(np.concatenate, zip(*found))
    order = np.argsort(steps, kind="stable")
    return steps[order], values[order]


def window(steps: np.ndarray, values: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The values of the episodes around each step of `at` [columns n]: a twentieth, 10 to 100.

    Half of them ended before it, half after it, where there are as many.
    """
    count = min(len(steps), int(np.clip(len(steps) / 20, 10, 100)))
    first = np.clip(np.searchsorted(steps, at) - count // 2, 0, len(steps) - count)
    return values[first[:, None] + np.arange(count)]


def density(values: np.ndarray, at: np.ndarray, width: float) -> np.ndarray:
    """The mean over values [columns n] of a Gaussian around each, 1 at its top: [columns rows]."""
    return np.stack([np.exp(-0.5 * ((at[:, None] - column) / width) ** 2).mean(axis=1)
                     for column in values])


def middles(edges: np.ndarray) -> np.ndarray:
    """The middle between each two neighbours of `edges`."""
    return (edges[1:] + edges[:-1]) / 2
