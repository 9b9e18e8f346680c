"""The verb: fastppo compare A B [--metric=NAME] [--json]."""

import json
from dataclasses import dataclass
from typing import Sequence

from fastppo.cli.command_line import words_and_options


@dataclass(frozen=True)
class Compare:
    """Compare two groups of runs over their seeds: means and P(A > B).

      {0} compare runs/small runs/large
      {0} compare 'runs/CartPole-v1__*' other/a,other/b --json

    A and B are each a folder with several runs in it, folders of runs with
    commas between them, or a pattern in quotes. The score of a run is the mean
    of its evaluation after training; if no run has one, the mean of the last
    tenth of charts/episodic_return. docs/reports.md explains the numbers.
    """

    OPERANDS = "A B"

    metric: str | None = None
    """Column of metrics.csv whose last tenth is the score; none: the evaluation, see above"""
    json: bool = False
    """Print everything as JSON, with the score of each run"""


def compare_verb(argv: Sequence[str], interrupts) -> None:
    """Compares the two groups of runs that `argv` names, and prints the table."""
    (a, b), options = words_and_options(argv, Compare)
    from fastppo.reports.comparison import compare_runs, comparison_text
    from fastppo.reports.run_table import read_runs
    found = compare_runs(read_runs(a), read_runs(b), options.metric)
    print(json.dumps({"names": [a, b]} | found.as_dict(), indent=1) if options.json
          else comparison_text(found, (a, b)))
