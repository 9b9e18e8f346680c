"""The rules of the values of settings: of a type, and those that fields of Config name."""

import re
from dataclasses import Field
from typing import Any, Callable, Literal, NamedTuple, get_args, get_origin

from fastppo.settings.schedules import EXAMPLES, Scheduled, is_finite_number, is_schedule
from fastppo.settings.values import are_names, image_size, is_path


class Rule(NamedTuple):
    """The values that a setting may have."""

    is_valid: Callable[[Any], Any]  # true for them
    wanted: str  # they, in words


def whole(low: int, most: int | None = None) -> Rule:
    """Whole numbers from `low` on, up to `most`."""
    last = 2**63 - 1 if most is None else most
    words = f"from {low} to {most}" if most else "above 0" if low else ", 0 or more"
    return Rule(lambda x: isinstance(x, int) and not isinstance(x, bool) and low <= x <= last,
                f"a whole number {words}".replace(" ,", ","))


def between(low: float, high: float) -> Rule:
    """Numbers from `low` to `high`."""
    return Rule(lambda x: is_finite_number(x) and low <= x <= high,
                f"a number from {low:g} to {high:g}")


def one_of(choices: tuple) -> Rule:
    """Some values."""
    return Rule(choices.__contains__, "one of " + ", ".join(map(str, choices)))


def names(known: tuple[str, ...] = ()) -> Rule:
    """Tuples of names, which are `known` if any names are."""
    return Rule(lambda x: are_names(x, known), one_of(known)[1] if known else "names, such as A,B")


def code_or(known: tuple[str, ...]) -> Rule:
    """Callables, texts that name one as `module:Name`, and `known` names."""
    return Rule(lambda x: callable(x) or ":" in str(x) or x in known, one_of(known)[1])


def numbers_from(low: int) -> Rule:
    """Tuples of whole numbers."""
    each = whole(low).is_valid
    return Rule(lambda x: isinstance(x, tuple) and all(map(each, x)), "such as 64,64")


ANYTHING = Rule(lambda x: True, "anything")  # it is checked where it is used
FROM_0 = whole(0)
NUMBER = Rule(is_finite_number, "a finite number")
AT_LEAST_0 = Rule(lambda x: is_finite_number(x) and x >= 0, "a finite number, 0 or more")
ABOVE_0 = Rule(lambda x: is_finite_number(x) and 0 < x < 3e38,
               "a number above 0, finite in float32")
ABOVE_1 = Rule(lambda x: is_finite_number(x) and x > 1, "a finite number above 1, such as 3")
SCHEDULE = Rule(is_schedule, f"a number above 0, or {EXAMPLES}")
WEIGHT = Rule(lambda x: is_schedule(x, False), f"a number, 0 or more, or {EXAMPLES}")
WORKERS = Rule(lambda x: x == "auto" or FROM_0.is_valid(x), "a whole number, 0 or more, or auto")
PRINTABLE = Rule(lambda x: isinstance(x, str) and x.isprintable(), "a string that can be printed")
PATH = Rule(is_path, "the path of a folder")
OBJECT = Rule(lambda x: isinstance(x, dict) and {*map(type, x)} <= {str}, "a dict by name")
IMAGE_SIZE = Rule(image_size, "pixels of a side, from 1 to 9,999, or HEIGHTxWIDTH such as 64x96")
STD = Rule(lambda x: re.fullmatch(r"\d+(\.\d+)?%", str(x)) or between(1e-17, 1e17)[0](x),
           "a number from 1e-17 to 1e17, or a percentage such as 10%")
DEVICE = Rule(lambda x: isinstance(x, str) and re.fullmatch(r"auto|(cpu|cuda)(:\d+)?", x),
              "one of auto, cpu, cuda, cuda:1")
OPTIMIZER = Rule(lambda x: callable(x) or x == "adam", "adam, or in Python torch.optim.SGD")
LOSS = Rule(lambda x: callable(x) or x == "ppo", "ppo, or in Python a function")
BY_TYPE = {int: whole(1), float: AT_LEAST_0, Scheduled: SCHEDULE, str: PRINTABLE,
           bool: one_of((True, False))}


def rule_of(one: Field) -> Rule:
    """The rule of a field: its own, else that of its type."""
    own = one_of(get_args(one.type)) if get_origin(one.type) is Literal else ANYTHING
    by_type = (rule for kind, rule in BY_TYPE.items() if one.type in (kind, kind | None))
    return one.metadata.get("rule") or next(by_type, own)
