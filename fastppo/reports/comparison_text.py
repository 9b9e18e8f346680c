"""A comparison of two groups of runs as a text for a terminal."""

import textwrap

from fastppo.reports.comparison import Comparison, Estimate
from fastppo.settings.values import digits_of

TEXT_WIDTH = 80
HEADINGS = "runs", "IQM", "95 % interval", "mean", "median"


def comparison_text(found: Comparison, names: tuple[str, str]) -> str:
    """The table of a comparison and its meaning, in lines of at most 80 letters.

    `names` are those of the groups; a long one is shortened at its beginning.
    """
    digits = 3 if len(found.environments) > 1 else \
        digits_of(max(map(abs, found.a.scores + found.b.scores)))
    rows = [HEADINGS, *([str(side.runs), f"{side.iqm.value:z,.{digits}f}",
                         interval_text(side.iqm, digits), f"{side.mean:z,.{digits}f}",
                         f"{side.median:z,.{digits}f}"] for side in (found.a, found.b))]
    widths = [max(map(len, column)) + 2 for column in zip(*rows)]
    numbers = ["".join(f"{cell:>{width}}" for cell, width in zip(row, widths)) for row in rows]
    room = max(12, TEXT_WIDTH - sum(widths) - 3)
    labels = [name if len(name) <= room else "..." + name[3 - room:] for name in names]
    wide = 3 + max(map(len, labels))
    lines = [f"score: {found.score}", environments_text(found.environments), "",
             " " * wide + numbers[0],
             *(f"{f'{letter}  {label}':<{wide}}{row}"
               for letter, label, row in zip("AB", labels, numbers[1:])), "",
             f"P(A > B) = {found.improvement.value:.2f},"
             f" 95 % interval {interval_text(found.improvement, 2)}", meaning(found)]
    return "\n".join(textwrap.fill(line, TEXT_WIDTH) if line[:1] not in " AB" else line
                     for line in lines)


def environments_text(names: list[str]) -> str:
    """The environments of the runs, and what the numbers of several are."""
    return f"environment: {names[0]}" if len(names) == 1 else (
        f"environments: {', '.join(names)}; scores are normalised in each, from 0, the lowest of"
        " all runs, to 1, and the numbers are means over environments")


def meaning(found: Comparison) -> str:
    """A sentence on what the runs show; with few runs the warning instead."""
    value, low, high = found.improvement
    if found.warnings:
        return f"warning: {'; '.join(found.warnings)}"
    if low <= 0.5 <= high:
        return "The interval contains 0.5: these runs do not show which of the two is higher."
    first, second = "AB" if value > 0.5 else "BA"
    return f"The interval does not contain 0.5: the scores of {first} are higher than {second}'s."


def interval_text(estimate: Estimate, digits: int) -> str:
    """The ends of a 95 % interval."""
    return f"{estimate.low:z,.{digits}f} to {estimate.high:z,.{digits}f}"
