"""Values of settings in one form, and the names that a list of names may hold."""

import re
from typing import Any, get_args, get_origin

LOGGERS = "tensorboard", "trackio", "wandb"  # packages that metrics can be sent to


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


def split_names(text: str) -> tuple[str, ...]:
    """The names in a text, such as "a, b" or "(a, b)"."""
    words = (word.strip(" '\"") for word in text.strip("()[] ,").split(","))
    return tuple(filter(None, words))


def are_names(value: Any, known: tuple[str, ...] = ()) -> bool:
    """True for a tuple of texts, which are `known` if any names are."""
    return isinstance(value, tuple) and all(
        isinstance(name, str) and (not known or name in known) for name in value)
