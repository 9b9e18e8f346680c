"""Compares two runs that should have the same bits: their metrics, policies and machines."""

from itertools import zip_longest
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Sequence

import torch
from torch import Tensor

from fastppo.reports.run_table import csv_rows
from fastppo.settings.file_names import METRICS_FILE
from fastppo.settings.metric_names import GLOBAL_STEP, SPEED

TIMED = "time/", SPEED, "faults/restarts"  # beginnings of metrics of the machine, not of the run
# Facts on a machine that no bit depends on.
UNIMPORTANT = {"machine.cores", "machine.quota", "machine.usable", "machine.memory",
               "machine.memory_limit", "machine.memory_free", "machine.open_files",
               "machine.dev_shm", "fastppo.folder", "fastppo.editable", "python.executable",
               "kernels.file", "torch.no_device", "torch.devices"}


class MetricsDifference(NamedTuple):
    """The rows of two tables in which a metric differs, and the first of them."""

    rows: int
    differing: int = 0
    step: str = ""
    names: tuple[str, ...] = ()  # of the metrics in the first row that differs
    values: tuple[str, str] = "", ""  # of the first of these metrics; "" where there is none


class ModelDifference(NamedTuple):
    """The numbers of two policies that have other bits."""

    numbers: int
    differing: int = 0
    largest: float = 0.0  # absolute difference; infinite where a part has another shape
    name: str = ""  # of the tensor that has it


def compare_metrics(first: Path, second: Path, last_step: int) -> MetricsDifference:
    """Compares the tables of two runs' folders, row by row up to a step, without times.

    Equal texts are equal bits, because the tables have all digits. Raises ConfigError if a table
    cannot be read.
    """
    pairs = [*zip_longest(*([*rows_until(folder / METRICS_FILE, last_step)]
                            for folder in (first, second)), fillvalue={})]
    found = [(one, two) for one, two in pairs if one != two]
    if not found:
        return MetricsDifference(len(pairs))
    one, two = found[0]
    names = [name for name in {**one, **two} if one.get(name) != two.get(name)]
    return MetricsDifference(len(pairs), len(found), (one or two)[GLOBAL_STEP], tuple(names),
                             (one.get(names[0], ""), two.get(names[0], "")))


def rows_until(file: Path, last_step: int) -> Iterator[dict[str, str]]:
    """The rows of a table up to a step: the texts of its metrics, without those of times."""
    names, *rows = csv_rows(file) or [[]]
    for row in rows:
        found = dict(zip(names, row))
        if len(row) == len(names) and found.get(GLOBAL_STEP, "").isdigit() \
                and int(found[GLOBAL_STEP]) <= last_step:
            yield {name: text for name, text in found.items()
                   if text and not name.startswith(TIMED)}


def compare_models(first: dict[str, Tensor], second: dict[str, Tensor]) -> ModelDifference:
    """Compares the tensors of two policies, bit by bit."""
    numbers = sum(part.numel() for part in first.values())
    found = [(name, *difference(first.get(name), second.get(name))) for name in {**first, **second}]
    differing = sum(count for _, count, _ in found)
    name, _, largest = max(found, key=lambda one: (one[2], one[1]), default=("", 0, 0.0))
    return ModelDifference(numbers, differing, largest, name if differing else "")


def difference(one: Tensor | None, two: Tensor | None) -> tuple[int, float]:
    """(numbers with other bits, largest absolute difference) of two tensors; None is no tensor."""
    if one is None or two is None or (one.dtype, one.shape) != (two.dtype, two.shape):
        return max(x.numel() for x in (one, two) if x is not None), torch.inf
    bits = [x.contiguous().reshape(-1, 1).view(torch.uint8) for x in (one, two)]
    other = (bits[0] != bits[1]).any(dim=1)
    if not other.any():
        return 0, 0.0
    apart = (one.double() - two.double()).flatten()[other].abs().nan_to_num(torch.inf)
    return int(other.sum()), float(apart.max())


def likely_causes(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """The facts in which two machines or installations differ, a text each: torch: 2.1 and 2.2.

    Only facts that both have are compared. One that several subjects repeat is named once.
    """
    one, two = dict(flat_facts(first)), dict(flat_facts(second))
    found = {}
    for name in one.keys() & two.keys() - UNIMPORTANT:
        if one[name] != two[name]:
            found.setdefault((str(one[name]), str(two[name])), []).append(name)
    return sorted(f"{min(names, key=len)}: {difference_text(*values)}"
                  for values, names in found.items())


def flat_facts(facts: dict[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested dicts with their names: machine.cpu."""
    for name, value in facts.items():
        if isinstance(value, dict):
            yield from flat_facts(value, f"{start}{name}.")
        else:
            yield start + name, value


def difference_text(one: str, two: str) -> str:
    """Two values; of two long lists of words, those that only one of them has."""
    words = one.split(), two.split()
    if max(map(len, words)) < 6:
        return f"{one} and {two}"
    return f"{only(words[0], words[1])} and {only(words[1], words[0])}"


def only(words: Sequence[str], others: Sequence[str]) -> str:
    """The words that are not among others, as a text."""
    return " ".join(word for word in words if word not in others) or "no other"
