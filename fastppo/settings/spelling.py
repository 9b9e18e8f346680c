"""Finds the value that a mistyped text is probably meant to be."""

import difflib
from typing import Any, Iterable

from fastppo.settings.aliases import OTHER_SETTINGS, VALUE_ALIASES
from fastppo.settings.fixes import Set

IMAGE_MODELS = {"cnn": 36, "impala": 8, "impoola": 8}  # the smallest side of an image for each
MODELS = "auto", "mlp", *IMAGE_MODELS  # networks that a setting can name


def closest(text: str, choices: Iterable[str]) -> str | None:
    """The one of `choices` that `text` resembles most, in either case; None if none does."""
    return next(iter(difflib.get_close_matches(text.lower(), choices, 1)), None)


def closest_few(text: str, choices: Iterable[str], count: int = 3) -> list[str]:
    """Up to `count` of `choices` that `text` resembles most, in either case of both."""
    known = {choice.lower(): choice for choice in choices}
    return [known[near] for near in difflib.get_close_matches(text.lower(), known, count, 0.5)]


def fix_of_value(name: str, value: Any, choices: str, default: Any) -> Set:
    """The setting that a wrong `value` of the setting `name` is probably meant to be."""
    meant = OTHER_SETTINGS.get((name, value)) if isinstance(value, str) else None
    return meant or Set(**{name: _nearest_choice(value, choices, default)})


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
