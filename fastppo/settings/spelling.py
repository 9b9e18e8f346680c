"""Finds the value that a mistyped text is probably meant to be."""

import ast
import difflib
import json
import re
from typing import Any, Iterable

MODELS = "auto", "mlp", "cnn", "impala", "impoola"  # networks that a setting can name


def closest(text: str, choices: Iterable[str]) -> str | None:
    """The one of `choices` that `text` resembles most, in either case; None if none does."""
    return next(iter(difflib.get_close_matches(text.lower(), choices, 1)), None)


def nearest_choice(value: Any, choices: str, default: Any) -> Any:
    """The one of some comma-separated `choices` nearest to a mistyped text, else `default`."""
    text = value if isinstance(value, str) and isinstance(default, str) else ""
    return closest(text, choices.removeprefix("one of ").split(", ")) or default


def parse_loose_json(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` was probably meant to be; None if there is none.

    Also read are Python's spelling, and JSON without the quotes that a shell has taken.
    """
    bare = r"""(?<![\w"'.+-])(?!true\b|false\b|null\b|True\b|False\b|None\b)[A-Za-z_][\w./-]*"""
    for candidate in (text, re.sub(bare, r'"\g<0>"', text)):
        for parse in (json.loads, ast.literal_eval):
            try:
                value = parse(candidate)
                json.dumps(value, allow_nan=False)
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
            if isinstance(value, dict) and all(isinstance(name, str) for name in value):
                return value
    return None
