"""The verb: fastppo compare A B [--metric=NAME] [--json]."""

from dataclasses import dataclass
from typing import Sequence

from fastppo.arguments.command_line import words_and_options
from fastppo.cli.interrupts import Interrupts
from fastppo.errors import ConfigError
from fastppo.settings.fixes import program


@dataclass(frozen=True)
class Compare:
    """Compare two groups of runs over their seeds: means and P(A > B).

      {0} compare runs/small runs/large
      {0} compare 'runs/CartPole-v1__*' other/a,other/b --json

    A and B are each a folder with several runs in it, folders of runs with
    commas between them, or a pattern in quotes. The score of a run is the mean
    of its evaluation after training; if no run has one, the mean of the last
    tenth of charts/episodic_return. docs/reports.md explains the numbers. They
    need an extra: pip install "fastppo[compare]"
    """

    metric: str | None = None
    """Column of metrics.csv whose last tenth is the score; none: the evaluation, see above"""
    json: bool = False
    """Print everything as JSON, with the score of each run"""


def compare_verb(argv: Sequence[str], interrupts: Interrupts) -> None:
    """Compares the two groups of runs that `argv` names, and prints the table."""
    names, options = parse_compare(argv)
    from fastppo.reports.comparison import compare_runs
    from fastppo.reports.run_table import read_runs
    found = compare_runs(read_runs(names[0]), read_runs(names[1]), options.metric)
    if options.json:
        import json
        print(json.dumps({"names": names} | found.as_dict(), indent=1))
    else:
        from fastppo.reports.comparison_text import comparison_text
        print(comparison_text(found, names))


def parse_compare(argv: Sequence[str]) -> tuple[tuple[str, str], Compare]:
    """((A, B), options) of a command line; ConfigError for a wrong word."""
    paths, options = words_and_options(argv, Compare, "A B")
    if len(paths) != 2:
        raise ConfigError(f"compare needs two groups of runs, not {len(paths)}",
                          f"{program()} compare runs/a runs/b, or patterns in quotes: 'runs/a*'")
    return (paths[0], paths[1]), options
