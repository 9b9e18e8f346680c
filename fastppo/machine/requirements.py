"""The packages that fastppo and its extras need, and the versions that are installed."""

import re
from importlib import metadata
from typing import Any, Callable

from packaging.requirements import Requirement


def needed_packages() -> dict[str, list[tuple[Requirement, str | None]]]:
    """(package, its installed version) by extra; "" has those that fastppo itself needs.

    They are those of the installed distribution, for this platform; empty without one.
    """
    found: dict[str, list[tuple[Requirement, str | None]]] = {}
    for text in _metadata_of("fastppo", metadata.requires) or []:
        wanted = Requirement(text)
        extra = "".join(re.findall(r"extra == .([\w-]+)", str(wanted.marker)))
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            found.setdefault(extra, []).append(
                (wanted, _metadata_of(wanted.name, metadata.version)))
    return found


def _metadata_of(name: str, question: Callable[[str], Any]) -> Any:
    """What importlib.metadata answers for a distribution; None if it is not installed."""
    try:
        return question(name)
    except metadata.PackageNotFoundError:
        return None
