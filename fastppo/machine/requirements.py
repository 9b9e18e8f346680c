"""The packages that fastppo and its extras need, and the versions that are installed."""

import re
from importlib import metadata
from typing import Any, Callable, NamedTuple

from packaging.requirements import Requirement


class Package(NamedTuple):
    """A package that is needed."""

    name: str
    wanted: str  # its versions, such as >=2.6; "" if any will do
    version: str | None  # that is installed

    @property
    def fits(self) -> bool:
        """True if it is installed in a version that is wanted."""
        wanted = Requirement(self.name + self.wanted).specifier
        return self.version is not None and wanted.contains(self.version, prereleases=True)


def needed_packages() -> dict[str, list[Package]]:
    """The packages by extra, "" for those that fastppo itself needs, on this platform.

    They are those of the installed distribution; empty without one.
    """
    found: dict[str, list[Package]] = {}
    for text in _metadata_of("fastppo", metadata.requires) or []:
        wanted = Requirement(text)
        extra = "".join(re.findall(r"extra == .([\w-]+)", str(wanted.marker)))
        if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
            found.setdefault(extra, []).append(Package(
                wanted.name, str(wanted.specifier), _metadata_of(wanted.name, metadata.version)))
    return found


def _metadata_of(name: str, question: Callable[[str], Any]) -> Any:
    """What importlib.metadata answers for a distribution; None if it is not installed."""
    try:
        return question(name)
    except metadata.PackageNotFoundError:
        return None
