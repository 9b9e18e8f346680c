"""Finds the value that a mistyped text is probably meant to be."""

import difflib
import json
import re
from contextlib import suppress
from typing import Any, Callable, Iterable

from fastppo.settings.aliases import OTHER_SETTINGS, VALUE_ALIASES
from fastppo.settings.fixes import Set
from fastppo.settings.schedules import SHAPES, parse_schedule
from fastppo.settings.values import SWITCHES, parse_int, parse_sizes

IMAGE_MODELS = {"cnn": 36, "impala": 8, "impoola": 8}  # the smallest side of an image for each
MODELS = "auto", "mlp", *IMAGE_MODELS  # networks that a setting can name
# The command's readings of a text, in the order in which a wrong value in Python is read.
READINGS = (lambda text: SWITCHES[text.lower()], parse_int, parse_schedule, parse_sizes, json.loads)


def closest(text: str, choices: Iterable[str], least: float = 0.6) -> str | None:
    """The one of `choices` that `text` resembles most, in either case; None if none does.

    `least`: how similar it must be. Of a|b, the form in --help, it is the first.
    """
    first = text.lower().partition("|")[0]
    return next(iter(difflib.get_close_matches(first, choices, 1, least)), None)


def spellings(text: str) -> tuple[str, ...]:
    """`text`, then what it may be meant to be: 1_000 for 1,000, 0.1 for 0,1, cosine:1 for cos:1."""
    thousands = re.fullmatch(r"[1-9]\d{0,2}(,\d{3})+", text)
    plain = text.replace(",", "_" if thousands else ".")
    shape, _, numbers = plain.partition(":")
    return text, plain, f"{closest(shape, SHAPES)}:{numbers}"


def fix_of_value(name: str, value: Any, is_valid: Callable[[Any], Any], choices: str,
                 default: Any) -> Set:
    """The setting that a wrong `value` of the setting `name` is probably meant to be.

    What the command would read in its text, one of the `choices` near it, or else the `default`.
    """
    if isinstance(value, str) and (meant := OTHER_SETTINGS.get((name, value))):
        return meant
    for text in spellings(str(value)):
        for reading in READINGS:
            with suppress(ValueError, LookupError, ArithmeticError):
                if is_valid(found := reading(text)):
                    return Set(**{name: found})
    return Set(**{name: _nearest_choice(getattr(value, "__name__", value), choices, default)})


def _nearest_choice(value: Any, choices: str, default: Any) -> Any:
    """The one of some comma-separated `choices` nearest to a mistyped text, else `default`.

    Of a tuple the nearest to each text in it.
    """
    known = choices.removeprefix("one of ").split(", ")
    if isinstance(value, tuple):
        return closest_of_each(value, known) or default
    text = value if isinstance(value, str) and isinstance(default, str) else ""
    return closest(VALUE_ALIASES.get(text, text), known) or default


def closest_of_each(texts: Iterable[Any], choices: Iterable[str]) -> tuple[str, ...]:
    """The one of `choices` nearest to each text, where there is one; each once."""
    known = [*choices]
    near = (closest(VALUE_ALIASES.get(text, text), known) for text in texts
            if isinstance(text, str))
    return tuple(dict.fromkeys(filter(None, near)))
