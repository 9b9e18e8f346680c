"""The verb: fastppo plot RUN [RUN ...] [--output=FILE] [--metric=NAME] [--kind=KIND]."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Sequence

from fastppo.cli.command_line import words_and_options
from fastppo.machine.file_access import check_output
from fastppo.machine.stderr import note
from fastppo.settings.known_names import MEAN_RETURN

PICTURE_FORMATS = ".png", ".svg", ".pdf"


@dataclass(frozen=True)
class Plot:
    """Draw the learning curves of runs, and print the path of the picture.

      {0} plot runs/latest
      {0} plot runs/small runs/large --labels=small,large

    RUN is the folder of a run, a folder with several runs in it, a pattern in
    quotes such as 'runs/Cart*', or a file metrics.csv. Runs with the same
    environment and settings are one line: the mean over them with its 95 %
    interval, and single runs if there are 5 or fewer. docs/reports.md has more.
    """

    OPERANDS = "RUN [RUN ...]"

    output: str = "plot.png"
    """File to write or replace; its ending is the format: .png, .svg or .pdf"""
    metric: str = MEAN_RETURN
    """Column of metrics.csv; docs/metrics.md describes them"""
    kind: Literal["curve", "seconds", "density"] = "curve"
    """Picture: curve, seconds (a curve by seconds of training), or density (how the returns of
    single episodes are distributed at each step; with --metric=charts/episodic_length their
    lengths)"""
    labels: tuple[str, ...] | None = None
    """A label for each RUN, whose runs are one line then; none: settings that differ, else the
    environment"""


def plot_verb(argv: Sequence[str], interrupts) -> None:
    """Draws the runs that `argv` names, and prints the path of the picture."""
    paths, options = words_and_options(argv, Plot)
    from fastppo.reports.run_table import group_runs, mean_ends_early, read_runs, with_values
    output = Path(options.output)
    check_output(output, PICTURE_FORMATS)
    tables = [read_runs(path) for path in paths]
    groups = with_values(group_runs(tables, options.labels), options.metric)
    for group in groups:
        group.curves(options.metric)  # for its errors, before matplotlib is imported
    from fastppo.reports.curves import save_curves
    from fastppo.reports.density import save_density
    path = save_density(groups, options.metric, output) if options.kind == "density" else \
        save_curves(groups, options.metric, output, options.kind == "seconds")
    print(f"picture   {path}")
    for group in groups:
        if options.kind == "curve" and (early := mean_ends_early(group, options.metric)):
            note(early)
