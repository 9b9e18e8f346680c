"""Presets of the user's own: files of settings, in TOML or JSON.

    num_envs = 16
    lr = 1e-3
    hidden_sizes = [256, 256]

A run's config.json and the text of --show_config are such files.
"""

import json
import re
import tomllib
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Mapping

from fastppo.config import Config, default_of, having
from fastppo.errors import USAGE_ERRORS, ConfigError, Omit, Set, fix_text
from fastppo.machine.file_access import read_json, read_text
from fastppo.settings.known_names import CONFIG_FILE, unknown_names
from fastppo.settings.presets import PRESETS, is_preset_file, preset_of
from fastppo.settings.values import closest
from fastppo.trainer.setting_types import ALIASES

OF_A_RUN = having("of_run")  # which a run's config.json has, and a preset does not decide
RESOLVED = "resolved"  # the source of a setting that was none or auto


def preset_settings(env_name: str, preset: str) -> dict[str, Any]:
    """The settings of a preset: one of ours, see preset_of, or those in a file.

    Raises ConfigError for an unknown name, and for a file that cannot be read or has unknown
    settings.
    """
    if not is_preset_file(preset):
        if preset not in ("auto", "none", *PRESETS):
            near = closest(str(preset), PRESETS)
            raise ConfigError(f"there is no preset {preset!r}, only files (.toml, .json), auto,"
                              f" none, {', '.join(PRESETS)}", Set(preset=near) if near else "")
        return preset_of(env_name, preset)
    found = read_settings(Path(preset))
    if wrong := [name for name in found if name not in Config.__match_args__]:
        what, fix = unknown_names("there is no setting", wrong, Config.__match_args__, "")
        raise ConfigError(f"in {preset}: {what}", fix_text(fix, shell=False))
    for name in OF_A_RUN if Path(preset).name != CONFIG_FILE else ():
        if found.get(name) not in (None, default_of(name)):
            raise ConfigError(f"in {preset}: {name} is a setting of one run, not of a preset")
    return {name: value for name, value in found.items() if name not in OF_A_RUN}


@contextmanager
def naming_preset(env_name: str, given: Mapping[str, Any]) -> Iterator[None]:
    """Names the preset that was chosen in an error of a setting that it decides, not one `given`.

    What it decides cannot be left out.
    """
    preset = given.get("preset", "auto")
    ours = set() if preset == "auto" else {*preset_settings(env_name, preset)} - {*given}
    try:
        yield
    except USAGE_ERRORS as error:
        if ours & {*re.findall(r"--(\w+)", fix_text(error.fix, shell=True))}:
            error.what = f"with preset={preset}: {error.what}"
            parts = error.fix if isinstance(error.fix, tuple) else (error.fix,)
            error.fix = tuple(part for part in parts if not (
                isinstance(part, Omit) and ours & {*part.names})) or "give another preset"
        raise


def config_over_preset(changes: Mapping[str, Any], given: Mapping[str, Any]) -> Config:
    """The Config of the settings `given`, then the `changes` of their preset, then the defaults.

    A ConfigError names the preset if it is a file, unless the settings given are wrong alone.
    """
    try:
        return Config(**{**changes, **given})
    except ConfigError as error:
        if is_preset_file(given.get("preset")):
            Config(**given)
            raise ConfigError(f"in {given['preset']}: {error.what}", error.fix) from error
        raise


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a file, by our names, lists as tuples; ConfigError if it cannot be read."""
    try:
        found = read_json(path) if path.suffix == ".json" else tomllib.loads(read_text(path))
    except OSError as error:
        raise ConfigError(f"the preset {path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of bytes that are no UTF-8
        raise ConfigError(f"the preset {path} is no {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"the preset {path} is no object of settings")
    return {ALIASES.get(name, name): tuple(value) if isinstance(value, list) else value
            for name, value in found.items()}


def settings_text(config: Config, sources: Mapping[str, str]) -> str:
    """All settings of a Config as TOML, with the source of those that are no defaults.

    What TOML has no value for is a comment: none, and Python's objects; so are settings of one run.
    A value that was chosen for this machine is one, too, so that another machine chooses its own.
    """
    return "\n".join(
        setting_line(name, default_of(name), f"{value} on this machine")
        if name in having("of_machine") and sources.get(name) == RESOLVED else
        setting_line(name, value, sources.get(name, "")) for name, value in vars(config).items())


def setting_line(name: str, value: Any, source: str) -> str:
    """One setting as a line of TOML, which is JSON but for the = of an object."""
    about = f"  # {source}" if source else ""
    if value is None:
        return f"# {name} = none{about}"
    try:
        text = json.dumps(value, separators=(", ", " = "))
    except TypeError:
        return f"# {name} = {value!r}"
    return f"{'# ' * (name in OF_A_RUN)}{name} = {text}{about}"


def sources_of(given: Mapping[str, Any], changes: Mapping[str, Any], preset: str,
               resolved: Config) -> dict[str, str]:
    """Where the settings come from that are no defaults: given, a preset, or resolved from auto."""
    found = {name: "given" for name in given} | dict.fromkeys(changes, f"preset {preset}")
    return {name: RESOLVED for name, value in vars(resolved).items()
            if name not in found and value != default_of(name)} | found
