"""Texts near a mistyped one."""

import difflib
from typing import Iterable


def closest(text: str, choices: Iterable[str], least: float = 0.6) -> str | None:
    """The one of `choices` that `text` resembles most, in either case; None if none does.

    `least`: how similar it must be. Of a|b, the form in --help, it is the first.
    """
    first = text.lower().partition("|")[0]
    return next(iter(difflib.get_close_matches(first, choices, 1, least)), None)


