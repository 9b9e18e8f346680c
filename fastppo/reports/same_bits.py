"""Compares two runs that should have the same bits: their metrics, policies and versions."""

from itertools import zip_longest
from pathlib import Path
from typing import Any, Iterator

import torch
from torch import Tensor

from fastppo.reports.run_table import csv_rows
from fastppo.settings.known_names import GLOBAL_STEP, METRICS_FILE, SPEED

TIMED = "time/", SPEED, "faults/restarts"  # beginnings of metrics of the machine, not of the run


def metrics_text(first: Path, second: Path, last_step: int) -> tuple[str, bool]:
    """(the comparison of two runs' tables up to a step in words, True if they are equal).

    Equal texts are equal bits, because the tables have all digits. Raises ConfigError if a table
    cannot be read.
    """
    pairs = [*zip_longest(*(rows_until(folder / METRICS_FILE, last_step)
                            for folder in (first, second)), fillvalue={})]
    found = [(one, two) for one, two in pairs if one != two]
    if not found:
        return f"{len(pairs):,} rows", True
    one, two = found[0]
    name, *others = [name for name in {**one, **two} if one.get(name) != two.get(name)]
    return (f"{len(found):,} of {len(pairs):,} rows, from step {(one or two)[GLOBAL_STEP]} on;"
            f" there {name} was {one.get(name, 'absent')}, is {two.get(name, 'absent')}"
            + f", and {len(others)} more" * bool(others)), False


def rows_until(file: Path, last_step: int) -> Iterator[dict[str, str]]:
    """The rows of a table up to a step: the texts of its metrics, without those of times."""
    names, *rows = csv_rows(file) or [[]]
    for row in rows:
        found = dict(zip(names, row))
        if len(row) == len(names) and found.get(GLOBAL_STEP, "").isdigit() \
                and int(found[GLOBAL_STEP]) <= last_step:
            yield {name: text for name, text in found.items()
                   if text and not name.startswith(TIMED)}


def model_text(first: dict[str, Tensor], second: dict[str, Tensor]) -> tuple[str, bool]:
    """(the comparison of two policies' tensors, bit by bit, in words, True if they are equal)."""
    found = [name for name in {**first, **second}
             if not have_same_bits(first.get(name), second.get(name))]
    others = f" of {len(first)} tensors, such as {found[0]}" if found else " tensors, all bits"
    return f"{len(found or first)}{others}", not found


def have_same_bits(one: Tensor | None, two: Tensor | None) -> bool:
    """True for two tensors of one type and shape with the same bits; None is no tensor."""
    if one is None or two is None or (one.dtype, one.shape) != (two.dtype, two.shape):
        return False
    first, second = (x.contiguous().reshape(-1, 1).view(torch.uint8) for x in (one, two))
    return torch.equal(first, second)


def likely_causes(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """What the system.json of two runs have different of versions and CPU: torch: 2.1 and 2.2."""
    one, two = (versions_in(facts) for facts in (first, second))
    return [f"{name}: {one[name]} and {two[name]}" for name in sorted(one.keys() & two.keys())
            if one[name] != two[name]]


def versions_in(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a machine that bits may depend on, by name."""
    subjects = [*facts.get("extras", {}).values(), facts.get("packages", {}),
                facts.get("fingerprint", {})]
    return {name: value for found in subjects for name, value in found.items()}
