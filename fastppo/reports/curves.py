"""Learning curves: of several runs or seeds on one picture, and the curve of one run."""

import math
from pathlib import Path
from typing import Any, Sequence

import numpy as np
from gymnasium.envs.registration import registry
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fastppo.reports import pictures
from fastppo.reports.run_groups import Curve, RunGroup, mean_curve
from fastppo.reports.run_table import RunTable, read_runs
from fastppo.settings.metric_names import EVAL_RETURN, EXPLAINED_VARIANCE, KL, MEAN_RETURN

CURVE_FILE = "curve.png"
MOST_SINGLE_RUNS = 5  # of a group that are drawn beside their mean
FEWEST_FOR_INTERVAL = 3  # of two runs it is 13 times as wide as they are apart
LONGEST_LABEL = 50  # letters; more do not fit above the curve of a run


def save_curve(folder: Path) -> Path:
    """Writes curve.png into the folder of a run, and returns its path.

    It shows the return over steps with the evaluations while training, and below it the KL
    divergence and the explained variance, one below -1 as -1; 1200 x 880 dots. Raises ConfigError
    if there is no table of metrics with a complete row, or if the file cannot be written.
    """
    table, = read_runs(str(folder))
    with pictures.house_style():
        if (path := folder / CURVE_FILE).is_symlink():
            path.unlink()  # what it names is no file of this run
        return pictures.save_figure(draw_run(table), path)


def save_curves(groups: Sequence[RunGroup], metric: str, path: Path) -> Path:
    """Writes the curves of a metric for groups of runs to a png, svg or pdf; returns its path.

    Each environment has a panel. Of each group it shows the mean over runs; from
    FEWEST_FOR_INTERVAL runs on the 95 % interval of that mean, see mean_curve; and single runs if
    there are at most MOST_SINGLE_RUNS. Raises ConfigError for a run without the metric, or if the
    file cannot be written.
    """
    with pictures.house_style():
        return pictures.save_figure(draw_groups(groups, metric), path)


def draw_groups(groups: Sequence[RunGroup], metric: str) -> Figure:
    """The figure of save_curves: a panel of 7 x 4 inches for each environment, two in a row."""
    titles = dict.fromkeys(table.title for group in groups for table in group.tables)
    columns = min(len(titles), 2)
    rows = math.ceil(len(titles) / columns)
    figure = pictures.empty_figure(7 * columns, 4 * rows)
    for place, title in enumerate(titles, 1):
        shown = [RunGroup(group.label.removeprefix(f"{title}, "),
                          [table for table in group.tables if table.title == title])
                 for group in groups]
        draw_panel(figure.add_subplot(rows, columns, place), title,
                   [group for group in shown if group.tables], metric)
    return figure


def draw_panel(axes: Axes, title: str, groups: Sequence[RunGroup], metric: str) -> None:
    """Draws the groups of runs of one environment, called `title`."""
    for number, group in enumerate(groups):
        draw_group(axes, group, metric, number)
    pictures.set_title(axes, short(title), groups_text(groups))
    pictures.step_axis(axes)
    pictures.metric_axis(axes, metric)
    mark_solved(axes, title, metric)
    if len(groups) > 1:
        axes.legend(loc="best")


def groups_text(groups: Sequence[RunGroup]) -> str:
    """The line below a title: the seed of a single run, or the meaning of the lines."""
    counts = [len(group.tables) for group in groups]
    if counts == [1]:
        return seed_text(groups[0].tables[0])
    if max(counts) == 1:
        return ""
    shade = "; shade: its 95 % interval, within the lowest and the highest run"
    return (f"mean over {counts[0]} runs" if len(counts) == 1 else "mean over runs") + shade * (
        max(counts) >= FEWEST_FOR_INTERVAL)


def seed_text(table: RunTable) -> str:
    """The seed of a run in words; "" if it is not known."""
    return "" if table.seed is None else f"seed {table.seed}"


def short(text: str) -> str:
    """`text` with at most LONGEST_LABEL letters."""
    return text if len(text) <= LONGEST_LABEL else f"{text[:LONGEST_LABEL - 3]}..."


def draw_group(axes: Axes, group: RunGroup, metric: str, number: int = 0) -> None:
    """Draws the mean of a group's runs, its interval and single runs; `number` sets the colour."""
    curves, colour = group.curves(metric), pictures.COLOURS[number % len(pictures.COLOURS)]
    style = pictures.LINES[number // len(pictures.COLOURS) % len(pictures.LINES)]
    if 1 < len(curves) <= MOST_SINGLE_RUNS:
        for curve in curves:
            draw_line(axes, curve, color=colour, linewidth=0.7, alpha=0.35)
    found = mean_curve(curves)
    if len(curves) >= FEWEST_FOR_INTERVAL:
        axes.fill_between(found.steps, found.low, found.high, color=colour, alpha=0.18, linewidth=0)
    draw_line(axes, (found.steps, found.mean), style, color=colour, linewidth=1.8,
              label=short(group.label) + f" ({len(curves)} runs)" * (len(curves) > 1))


def draw_line(axes: Axes, curve: Curve, look: str = "-", **style: Any) -> None:
    """Draws a curve; one of a single point as a dot, because a line would not be seen."""
    axes.plot(*curve, look if len(curve[0]) > 1 else "o", markersize=5, markeredgecolor="white",
              markeredgewidth=0.6, **style)


def mark_solved(axes: Axes, name: str, metric: str) -> None:
    """Draws the return at which Gymnasium calls the environment `name` solved, if it says so.

    Its words are right of the axes, where nothing is drawn. It is left out where it is so far from
    the curves that they would be small.
    """
    spec = registry.get(name)
    mark = spec and spec.reward_threshold
    low, high = axes.get_ylim()
    if mark is None or metric not in (MEAN_RETURN, EVAL_RETURN) or \
            abs(mark - (low + high) / 2) > 1.5 * (high - low):
        return
    room = 0.04 * (high - low)
    axes.set_ylim(min(low, mark - room), max(high, mark + room))
    axes.axhline(mark, color=pictures.GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.5)
    axes.annotate(f"solved\n{pictures.number_text(mark)}", (1, mark), (5, 0), color=pictures.GREY,
                  size=8, va="center", xycoords=("axes fraction", "data"),
                  textcoords="offset points")


def draw_run(table: RunTable) -> Figure:
    """The figure of save_curve, 6 x 4.4 inches."""
    figure = pictures.empty_figure(6, 4.4)
    panels = figure.subplot_mosaic([["return", "return"], ["kl", "variance"]],
                                   height_ratios=[2.4, 1])
    draw_return(panels["return"], table)
    draw_small(panels["kl"], table, KL)
    draw_small(panels["variance"], table, EXPLAINED_VARIANCE)
    panels["variance"].set_ylim(-1.05 if panels["variance"].get_ylim()[0] < -0.2 else -0.2, 1.05)
    return figure


def draw_return(axes: Axes, table: RunTable) -> None:
    """Draws the return of a run over steps, with points for its evaluations."""
    pictures.set_title(axes, short(table.title), seed_text(table))
    for metric, look, label in ((MEAN_RETURN, "-", "mean of the last 100 episodes"),
                                (EVAL_RETURN, "o", "evaluation")):
        if table.has_value(metric):
            draw_line(axes, table.curve(metric), look, color=pictures.COLOURS[look == "o"],
                      linewidth=1.8, label=label)
    pictures.step_axis(axes)
    axes.set_xlabel("")  # the panels below have it
    pictures.metric_axis(axes, MEAN_RETURN)
    if len(axes.lines) > 1:
        axes.set_ylabel("return")
        axes.legend(loc="best")
    if axes.lines:
        mark_solved(axes, table.title, MEAN_RETURN)
    else:
        axes.set(xticks=[], yticks=[])
        axes.annotate("no episode has ended", (0.5, 0.5), xycoords="axes fraction",
                      ha="center", color=pictures.GREY)


def draw_small(axes: Axes, table: RunTable, metric: str) -> None:
    """Draws a metric of a run in a small panel, with its name above."""
    if table.has_value(metric):
        steps, values = table.curve(metric)
        draw_line(axes, (steps, np.maximum(values, -1)), color=pictures.GREY, linewidth=1.1)
    pictures.step_axis(axes, 4)
    pictures.metric_axis(axes, metric, 3)
    axes.set_title(axes.get_ylabel(), loc="left", color=pictures.GREY, size=8.5)
    axes.set_ylabel("")
