"""Finds the value that a mistyped text is probably meant to be."""

import difflib
from typing import Any, Iterable

MODELS = "auto", "mlp", "cnn", "impala", "impoola"  # networks that a setting can name


def closest(text: str, choices: Iterable[str]) -> str | None:
    """The one of `choices` that `text` resembles most, in either case; None if none does."""
    return next(iter(difflib.get_close_matches(text.lower(), choices, 1)), None)


def nearest_choice(value: Any, choices: str, default: Any) -> Any:
    """The one of some comma-separated `choices` nearest to a mistyped text, else `default`."""
    text = value if isinstance(value, str) and isinstance(default, str) else ""
    return closest(text, choices.removeprefix("one of ").split(", ")) or default
