"""Learning curves: of several runs or seeds on one picture, and the curve of one run."""

import math
from pathlib import Path
from typing import Any, Callable, Sequence

from gymnasium.envs.registration import registry
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from fastppo.errors import ConfigError, Set
from fastppo.machine.file_access import replaced
from fastppo.reports.run_table import Curve, RunGroup, RunTable, group_runs, mean_curve, read_runs
from fastppo.settings.known_names import (
    CURVE_FILE,
    EVAL_RETURN,
    EXPLAINED_VARIANCE,
    GLOBAL_STEP,
    KL,
    MEAN_RETURN,
    SPEED,
)

DOTS_PER_INCH = 200  # twice those of a usual screen
TICK_STEPS = [1, 2, 5, 10]  # between ticks, times a power of ten
INK, GREY, PALE = "#1f2937", "#5b6472", "#e5e7eb"
# Okabe and Ito, without yellow and black: most people who are colour-blind can tell them apart.
COLOURS = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
LINES = "-", "--", ":"  # the next of them for each round of the colours
STYLE = {
    "figure.facecolor": "white", "axes.facecolor": "white", "savefig.facecolor": "white",
    "font.family": "sans-serif", "font.size": 9, "text.color": INK,
    "axes.edgecolor": "#9ca3af", "axes.labelcolor": GREY, "axes.linewidth": 0.8,
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": PALE, "grid.linewidth": 0.6,
    "axes.xmargin": 0.02, "text.parse_math": False,
    "xtick.color": "#9ca3af", "ytick.color": "#9ca3af",
    "xtick.labelcolor": GREY, "ytick.labelcolor": GREY, "legend.frameon": False,
}
AXIS_NAMES = {MEAN_RETURN: "return, mean of the last 100 episodes",
              EVAL_RETURN: "return, mean of an evaluation",
              KL: "KL divergence of an update", EXPLAINED_VARIANCE: "explained variance"}
MOST_SINGLE_RUNS = 5  # of a group that are drawn beside their mean
FEWEST_FOR_INTERVAL = 3  # of two runs it is 13 times as wide as they are apart
LONGEST_LABEL = 50  # letters; more do not fit above the curve of a run


def empty_figure(width: float, height: float) -> Figure:
    """A figure without axes, of a size in inches; it is no part of pyplot's state."""
    return Figure((width, height), dpi=DOTS_PER_INCH,
                  layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))


def save_figure(path: Path, draw: Callable[..., Figure], *drawn: Any) -> Path:
    """Writes the figure of draw(*drawn) as its ending says, png, svg or pdf, whole or not at all.

    It is drawn and saved with settings of matplotlib that are then as before. Raises ConfigError if
    the file cannot be written.
    """
    try:
        with rc_context(STYLE), replaced(path) as part:
            draw(*drawn).savefig(part)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}",
                          Set(output=f"another/folder/{path.name}")) from error
    return path


def set_title(axes: Axes, text: str, below: str) -> None:
    """Puts a title above the axes, and below it a line in grey."""
    axes.set_title(text, loc="left", weight="bold", size=10.5, pad=18 if below else 6)
    line = axes.annotate(below, (0, 1), (0, 6), xycoords="axes fraction", color=GREY, size=8.5,
                         textcoords="offset points")
    line.set_in_layout(False)  # a long one must not make the axes narrow


def step_axis(axes: Axes, name: str = "environment steps") -> None:
    """Makes the x axis of what is drawn one of steps, or seconds, from 0 on: 0, 400k, 1.2M.

    It has ticks at round whole numbers, at most ten.
    """
    axes.set_xlabel(name)
    axes.xaxis.set_major_locator(MaxNLocator(9, steps=TICK_STEPS, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)


def metric_axis(axes: Axes, metric: str) -> None:
    """Makes the y axis one of a metric, with at most seven ticks at round numbers."""
    axes.set_ylabel(AXIS_NAMES.get(metric, metric))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=TICK_STEPS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))


def number_text(value: float) -> str:
    """A number as the pictures write it, with commas: −1,200."""
    return f"{value:,.10g}".replace("-", "\N{MINUS SIGN}")


def save_curve(folder: Path) -> Path:
    """Writes curve.png into the folder of a run, and returns its path.

    Raises ConfigError if there is no table of metrics with a complete row, if no episode has ended,
    or if the file cannot be written.
    """
    runs = group_runs([read_runs(str(folder))], None)
    return save_curves(runs, MEAN_RETURN, folder / CURVE_FILE)


def save_curves(groups: Sequence[RunGroup], metric: str, path: Path, by_seconds: bool = False
                ) -> Path:
    """Writes the curves of a metric for groups of runs to a png, svg or pdf; returns its path.

    Each environment has a panel, with steps or seconds of training below. Of each group it shows
    the mean over runs; from FEWEST_FOR_INTERVAL runs on the 95 % interval of that mean, see
    mean_curve; and single runs if there are at most MOST_SINGLE_RUNS. Raises ConfigError for a run
    without the metric or a speed, or if the file cannot be written.
    """
    return save_figure(path, draw_groups, groups, metric, by_seconds)


def draw_groups(groups: Sequence[RunGroup], metric: str, by_seconds: bool = False) -> Figure:
    """The figure of save_curves: two panels of 7 x 4 inches in a row, of many environments four."""
    titles = dict.fromkeys(table.title for group in groups for table in group.tables)
    columns, width, height = (min(len(titles), 2), 7, 4) if len(titles) < 5 else (4, 4.5, 3)
    rows = math.ceil(len(titles) / columns)
    figure = empty_figure(width * columns, height * rows)
    for place, title in enumerate(titles, 1):
        shown = [RunGroup(group.label.removeprefix(f"{title}, "),
                          [in_seconds(table) if by_seconds else table
                           for table in group.tables if table.title == title])
                 for group in groups]
        shown = [group for group in shown if group.tables]
        axes = figure.add_subplot(rows, columns, place)
        for number, group in enumerate(shown):
            draw_group(axes, group, metric, number)
        set_title(axes, short(title), groups_text(shown))
        step_axis(axes, "seconds of training" if by_seconds else "environment steps")
        metric_axis(axes, metric)
        mark_solved(axes, title, metric)
        if len(shown) > 1:
            axes.legend(loc="best")
    return figure


def in_seconds(table: RunTable) -> RunTable:
    """The table with seconds of training, steps / speed, for its steps; ConfigError without it."""
    table.curve(SPEED)  # for its errors
    steps = table.columns[GLOBAL_STEP] / table.columns[SPEED]
    return table._replace(columns=table.columns | {GLOBAL_STEP: steps})


def groups_text(groups: Sequence[RunGroup]) -> str:
    """The line below a title: the seed of a single run, or the meaning of the lines."""
    counts = [len(group.tables) for group in groups]
    if counts == [1]:
        seed = groups[0].tables[0].seed
        return "" if seed is None else f"seed {seed}"
    if max(counts) == 1:
        return ""
    shade = "; shade: its 95 % interval" * (max(counts) >= FEWEST_FOR_INTERVAL)
    return (f"mean over {counts[0]} runs" if len(counts) == 1 else "mean over runs") + shade


def short(text: str) -> str:
    """`text` with at most LONGEST_LABEL letters."""
    return text if len(text) <= LONGEST_LABEL else f"{text[:LONGEST_LABEL - 3]}..."


def draw_group(axes: Axes, group: RunGroup, metric: str, number: int = 0) -> None:
    """Draws the mean of a group's runs, its interval and single runs; `number` sets the colour."""
    curves, colour = group.curves(metric), COLOURS[number % len(COLOURS)]
    style = LINES[number // len(COLOURS) % len(LINES)]
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
    mark = getattr(registry.get(name), "reward_threshold", None)
    low, high = axes.get_ylim()
    if mark is None or metric not in (MEAN_RETURN, EVAL_RETURN) or \
            abs(mark - (low + high) / 2) > 1.5 * (high - low):
        return
    room = 0.04 * (high - low)
    axes.set_ylim(min(low, mark - room), max(high, mark + room))
    axes.axhline(mark, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.5)
    axes.annotate(f"solved\n{number_text(mark)}", (1, mark), (5, 0), color=GREY,
                  size=8, va="center", xycoords=("axes fraction", "data"),
                  textcoords="offset points")
