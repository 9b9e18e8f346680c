"""The packages that fastppo and its extras need, and the versions that are installed."""

import re
import tomllib
from importlib import metadata
from typing import NamedTuple

from packaging.requirements import Requirement

from fastppo.machine.installation import source_folder


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

    Of a clone they are those of its pyproject.toml, else those of the installed distribution; empty
    without both.
    """
    return {extra: [package for text in texts for package in packages_of(Requirement(text))]
            for extra, texts in requirement_texts().items()}


def requirement_texts() -> dict[str, list[str]]:
    """The requirements by extra, "" for those of fastppo itself, as they are written."""
    source = source_folder()
    if source:
        project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        return {"": project["dependencies"], **project["optional-dependencies"]}
    try:
        names = metadata.metadata("fastppo").get_all("Provides-Extra") or []
    except metadata.PackageNotFoundError:
        return {}
    own = texts_of("fastppo", "")
    return {"": own, **{name: [text for text in texts_of("fastppo", name) if text not in own]
                           for name in names}}


def texts_of(name: str, extra: str) -> list[str]:
    """The requirements of an installed package with one of its extras, on this platform."""
    texts = metadata.requires(name) or []
    return [text for text in texts if _applies(Requirement(text), extra)]


def packages_of(wanted: Requirement) -> list[Package]:
    """The package of a requirement, and those of its extras; none if it is for other platforms."""
    if wanted.marker and "extra" not in str(wanted.marker) and not _applies(wanted):
        return []
    version = installed_version(wanted.name)
    own = {*texts_of(wanted.name, "")} if wanted.extras and version else set()
    further = [package for extra in sorted(wanted.extras) if version
               for text in texts_of(wanted.name, extra) if text not in own
               for package in packages_of(Requirement(text))]
    return [Package(wanted.name, str(wanted.specifier), version), *further]


def installed_version(name: str) -> str | None:
    """The version of a distribution; None if it is not installed.

    metadata.version would parse the whole description, which takes some milliseconds.
    """
    try:
        text = metadata.distribution(name).read_text("METADATA") or ""
    except metadata.PackageNotFoundError:
        return None
    found = re.search(r"(?m)^Version: *(\S+)", text)
    return found[1] if found else metadata.version(name)


def _applies(wanted: Requirement, extra: str = "") -> bool:
    return wanted.marker is None or wanted.marker.evaluate({"extra": extra})
