"""Values of settings: their forms, schedules and rules, and the names that settings may hold."""

import math
import re
from dataclasses import Field
from decimal import Decimal
from numbers import Integral
from typing import Any, Callable, Literal, NamedTuple, get_args, get_origin

from fastppo.errors import ConfigError, Set

# The sink of each logger in loggers/, by the package that metrics are sent to; it is made from
# (Config, the run's folder, the step of a resumed run).
LOGGERS = {"tensorboard": "TensorBoardSink", "trackio": "TrackioSink", "wandb": "WandbSink"}
POWERS = {"k": 3, "m": 6, "g": 9}
SWITCHES = {"true": True, "yes": True, "on": True, "1": True,
            "false": False, "no": False, "off": False, "0": False}
Schedule = Callable[[float], float]
Scheduled = float | str | Schedule
EXAMPLES = "a schedule: linear:START (to 0) or cosine:START:END"


def plain_value(value: Any, kind: Any = None) -> Any:
    """`value` with numbers of numpy as Python's own, and a list as a tuple.

    For a `kind` of setting that is a tuple of names or a text, a text becomes the tuple, each name
    is there once, and no names are None.
    """
    if str in get_args(kind) and tuple in map(get_origin, get_args(kind)):
        names = split_names(value) if isinstance(value, str) else plain_value(value)
        names = tuple(dict.fromkeys(names)) if are_names(names) else names
        return None if names in ((), ("none",)) else names
    if isinstance(value, (list, tuple)):
        return tuple(map(plain_value, value))
    return value.item() if hasattr(value, "item") and getattr(value, "shape", 0) == () else value


def image_size(value: Any) -> tuple[int, int] | None:
    """(height, width) that 84 or "64x96" stands for, each from 1 to 9,999; None for others."""
    text = f"{value}x{value}" if type(value) is int else str(value)
    sides = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", text)
    return (int(sides[1]), int(sides[2])) if sides else None


def parse_int(text: str) -> int:
    """A whole number: 16, 1_000, 1e6, 10M or 500k; ValueError or ArithmeticError for others."""
    text = text.strip().lower()
    power = POWERS.get(text[-1:], 0)
    value = Decimal(text[:-1] if power else text).scaleb(power)
    if not value.is_finite() or value.adjusted() >= 30 or value != int(value):
        raise ValueError(text)
    return int(value)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Whole numbers: 64,64 or (64, 64); ValueError or ArithmeticError for others."""
    return tuple(parse_int(part) for part in re.split(r"[,\s]+", text.strip("()[] ,")) if part)


def split_names(text: str) -> tuple[str, ...]:
    """The names in a text, such as "a, b" or "(a, b)"."""
    words = (word.strip(" '\"") for word in text.strip("()[] ,").split(","))
    return tuple(filter(None, words))


def are_names(value: Any, known: tuple[str, ...] = ()) -> bool:
    """True for a tuple of texts, which are `known` if any names are."""
    return isinstance(value, tuple) and all(
        isinstance(name, str) and (not known or name in known) for name in value)


def is_path(value: Any) -> bool:
    """True for a text or path that can be that of a folder."""
    return (isinstance(value, str) or hasattr(value, "__fspath__")) and "\0" not in str(value)


def digits_of(scale: float) -> int:
    """Digits after the point that give numbers of this size four in all, between 0 and 6."""
    return min(6, max(0, 3 - math.floor(math.log10(scale)))) if 0 < scale < math.inf else 0


def return_text(value: float, scale: float | None = None) -> str:
    """A return with three digits in all and one after the point, or more: 148.3, 9.50, 0.950.

    `scale`: a number beside it, as many of whose digits are shown.
    """
    return f"{value:z.{max(1, digits_of(abs(value if scale is None else scale)) - 1)}f}"


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
    """Tuples of fewer than a thousand whole numbers."""
    each = whole(low).is_valid
    return Rule(lambda x: isinstance(x, tuple) and len(x) < 1_000 and all(map(each, x)),
                "such as 64,64")


def or_auto(rule: Rule) -> Rule:
    """The values of a rule, and the word auto."""
    return Rule(lambda x: x == "auto" or rule.is_valid(x), f"{rule.wanted}, or auto")


ANYTHING = Rule(lambda x: True, "anything")  # it is checked where it is used
FROM_0 = whole(0)
NUMBER = Rule(is_finite_number, "a finite number")
AT_LEAST_0 = Rule(lambda x: is_finite_number(x) and x >= 0, "a finite number, 0 or more")
ABOVE_0 = Rule(lambda x: is_finite_number(x) and 0 < x < 3e38,
               "a number above 0, finite in float32")
ABOVE_1 = Rule(lambda x: is_finite_number(x) and x > 1, "a finite number above 1, such as 3")
SCHEDULE = Rule(is_schedule, f"a number above 0, or {EXAMPLES}")
WEIGHT = Rule(lambda x: is_schedule(x, False), f"a number, 0 or more, or {EXAMPLES}")
PRINTABLE = Rule(lambda x: isinstance(x, str) and x.isprintable(), "a string that can be printed")
PATH = Rule(is_path, "the path of a folder")
OBJECT = Rule(lambda x: isinstance(x, dict) and {*map(type, x)} <= {str}, "a dict by name")
OPTIONS = Rule(lambda x: callable(x) or all(map(OBJECT[0], x if isinstance(x, tuple) else (x,))),
               "a dict by name, a list of one for each environment, or in Python a function")
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


def check_episodes(episodes: Any, name: str = "episodes") -> None:
    """Raises ConfigError unless `episodes`, an option of this `name`, is a whole number above 0."""
    if not isinstance(episodes, Integral) or isinstance(episodes, bool) or episodes < 1:
        raise ConfigError(f"{name} is {episodes!r}, but must be a whole number, 1 or more",
                          Set(**{name: 100}))
