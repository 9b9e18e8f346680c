"""Values of settings in one form, the names that a list of names may hold, digits of returns."""

import math
import re
from decimal import Decimal
from typing import Any, Literal, get_args, get_origin

Logger = Literal["tensorboard", "trackio", "wandb"]  # packages that metrics can be sent to
POWERS = {"k": 3, "m": 6, "g": 9}
SWITCHES = {"true": True, "yes": True, "on": True, "1": True,
            "false": False, "no": False, "off": False, "0": False}


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
