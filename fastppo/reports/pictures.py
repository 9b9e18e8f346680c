"""The look of a picture, and its file: fonts, colours, axes."""

from contextlib import AbstractContextManager
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from fastppo.errors import ConfigError
from fastppo.machine.file_access import replaced
from fastppo.settings.fixes import Set
from fastppo.settings.metric_names import EVAL_RETURN, EXPLAINED_VARIANCE, KL, MEAN_RETURN

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


def house_style() -> AbstractContextManager:
    """The settings of matplotlib in which pictures are drawn and saved; then they are as before."""
    return rc_context(STYLE)


def empty_figure(width: float, height: float) -> Figure:
    """A figure without axes, of a size in inches; it is no part of pyplot's state."""
    return Figure((width, height), dpi=DOTS_PER_INCH,
                  layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))


def save_figure(figure: Figure, path: Path) -> Path:
    """Writes a figure as its ending says, png, svg or pdf, whole or not at all.

    Raises ConfigError if that fails.
    """
    try:
        with replaced(path) as part:
            figure.savefig(part)
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


def step_axis(axes: Axes, most: int = 9) -> None:
    """Makes the x axis of what is drawn one of environment steps, from 0 on: 0, 400k, 1.2M.

    It has ticks at round numbers of whole steps, at most `most` + 1.
    """
    axes.set_xlabel("environment steps")
    axes.xaxis.set_major_locator(MaxNLocator(most, steps=TICK_STEPS, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)


def metric_axis(axes: Axes, metric: str, most: int = 6) -> None:
    """Makes the y axis one of a metric, with at most `most` + 1 ticks at round numbers."""
    axes.set_ylabel(AXIS_NAMES.get(metric, metric))
    axes.yaxis.set_major_locator(MaxNLocator(most, steps=TICK_STEPS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_text(value)))


def number_text(value: float) -> str:
    """A number as the pictures write it, with commas: −1,200."""
    return f"{value:,.10g}".replace("-", "\N{MINUS SIGN}")
