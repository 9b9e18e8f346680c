"""Schedules: a number, a text such as linear:0.2, or a function of the remaining progress."""

import math
from typing import Any, Callable

Schedule = Callable[[float], float]
Scheduled = float | str | Schedule

EXAMPLES = "a schedule: linear:START (to 0) or cosine:START:END"
# The weight of a schedule's first value, as a function of the remaining progress (1 to 0).
SHAPES: dict[str, Schedule] = {
    "constant": lambda remaining: 1.0,
    "linear": lambda remaining: remaining,
    "cosine": lambda remaining: 0.5 * (1.0 - math.cos(math.pi * remaining)),
}


def schedule_function(value: Scheduled) -> Schedule:
    """The schedule `value` as a function of the remaining progress; a number is constant.

    A text is name:first or name:first:last, where last is 0 if left out, or constant:first. Raises
    ValueError for any other text.
    """
    if callable(value):
        return value
    name, first, last = _parts(value) if isinstance(value, str) else ("constant", value, 0.0)
    shape = SHAPES[name]
    return lambda remaining: first * shape(remaining) + last * (1.0 - shape(remaining))


def is_schedule(value: Any, positive: bool = True) -> bool:
    """True if `value` is a schedule of finite numbers, 0 or more; if `positive`, from above 0.

    The numbers that a function returns are checked when it is called.
    """
    if callable(value):
        return True
    try:
        first, last = _parts(value)[1:] if isinstance(value, str) else (value, 0.0)
    except ValueError:
        return False
    return (is_finite_number(first) and is_finite_number(last) and last >= 0
            and (first > 0 if positive else first >= 0))


def parse_schedule(text: str) -> float | str:
    """The number that `text` stands for, or itself if it is a schedule; ValueError for others."""
    return text if is_schedule(text, positive=False) else float(text)


def _parts(text: str) -> tuple[str, float, float]:
    """(name, first, last) of a schedule's text; ValueError if it is not one."""
    name, *ends = text.split(":")
    if name not in SHAPES or not 1 <= len(ends) <= (1 if name == "constant" else 2):
        raise ValueError(text)
    first, last = map(float, [*ends, 0.0][:2])
    return name, first, last


def is_finite_number(value: Any) -> bool:
    """True if `value` is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
