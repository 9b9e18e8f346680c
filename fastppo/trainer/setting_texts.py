"""Config's fields as texts: flags, and files of settings in TOML or JSON.

    num_envs = 16
    lr = 1e-3
    hidden_sizes = [256, 256]

A run's config.json and the text of --show_config are such files. --help and docs/config.md are made
from the fields' types, defaults and meanings. Nothing here imports torch, gymnasium or numpy.
"""

import ast
import functools
import inspect
import json
import re
import tomllib
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    Callable,
    Iterator,
    Literal,
    Mapping,
    NamedTuple,
    Union,
    get_args,
    get_origin,
)

from fastppo.config import Config, default_of, having
from fastppo.errors import USAGE_ERRORS, ConfigError, Error, Omit, Set
from fastppo.machine.file_access import read_json, read_text
from fastppo.settings.known_names import CONFIG_FILE, unknown_names
from fastppo.settings.presets import PRESETS, is_preset_file, preset_name, preset_of
from fastppo.settings.values import (
    SWITCHES,
    Scheduled,
    parse_int,
    parse_schedule,
    parse_sizes,
    split_names,
)

SECTIONS = having("section")  # by the first setting of each
# Other names that settings may be given under, on a command line and in a file.
ALIASES = {alias: name for name, alias in having("alias").items()}

FORMS_OF_TEXT = having("form")  # of numbers for which a text may stand
BARE_VALUES = {"json": "-"}  # texts that a flag stands for if no value follows it
OF_A_RUN = having("of_run")  # which a run's config.json has, and a preset does not decide
RESOLVED = "resolved"  # the source of a setting that was none or auto


class Setting(NamedTuple):
    """One field of Config, or of the options of a verb."""

    name: str
    kind: Any  # its type without None
    optional: bool  # True if None is a value
    default: Any
    text: str  # its meaning, in one line
    source: str  # of the default; "" if it has none
    section: str

    @property
    def type(self) -> str:
        """The form of its values: INT, FLOAT|none, tanh|relu, ..."""
        plain = "|".join(self.choices) + ",..." * self.has_several if self.choices \
            else KINDS[self.kind][0]
        text = f"|{FORMS_OF_TEXT[self.name]}" if self.name in FORMS_OF_TEXT else ""
        return plain + text + "|none" * self.optional

    @property
    def has_several(self) -> bool:
        """True if its values are tuples."""
        return get_origin(self.kind) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that are its values, or parts of them; () if others may be."""
        kind = get_args(self.kind)[0] if self.has_several else self.kind
        return get_args(kind) if get_origin(kind) is Literal else ()

    @property
    def bare(self) -> str | None:
        """The text that its flag stands for if no value follows; None if a value must follow."""
        return "True" if self.kind is bool else BARE_VALUES.get(self.name)

    def read(self, text: str) -> Any:
        """The value that `text` stands for; raises ConfigError if there is none."""
        form, word = FORMS_OF_TEXT.get(self.name), text.lower()
        if word == "none" and self.optional or word == form == "auto":
            return None if word == "none" else "auto"
        _, wanted, reader = KINDS.get(self.kind) or (
            "", "one of " + ", ".join(self.choices), split_names if self.has_several else str)
        try:
            value = reader(text)
            words = value if self.has_several else (value,)
            if not self.choices or {*words} <= {*self.choices}:
                return value
        except (ValueError, LookupError, ArithmeticError):
            if form not in (None, "auto"):
                return text  # Config checks it
        # The text of an object may hold a key.
        shown = f'"{text}"' if self.kind != dict[str, Any] else "no JSON object"
        raise ConfigError(f"{self.name} is {shown}, but must be {wanted}")


@functools.cache
def settings(owner: type = Config) -> dict[str, Setting]:
    """Every field of a dataclass by name, with the text below it in the source as its meaning."""
    trees: list[Any] = [ast.parse(inspect.getsource(one)) for one in owner.__mro__[:-1]]
    texts = {ast.unparse(node.target): " ".join(below.value.value.split())
             for tree in trees for node, below in zip(tree.body[0].body, tree.body[0].body[1:])
             if isinstance(node, ast.AnnAssign)}
    found, section = {}, owner.__name__.lower()
    for field in fields(owner):
        text, source = re.findall(r"^(.*?)(?: \[([^]]*)\])?$", texts[field.name])[0]
        members = get_args(field.type) if get_origin(field.type) in (Union, UnionType) else ()
        optional = type(None) in members
        kind = Scheduled if {*get_args(Scheduled)} <= {*members} else (*members, field.type)[0]
        section = SECTIONS.get(field.name, section) if owner is Config else section
        found[field.name] = Setting(field.name, kind, optional, field.default, text, source,
                                    section)
    return found


def _parse_object(text: str) -> dict[str, Any]:
    if isinstance(value := json.loads(text), dict):
        return value
    raise ValueError(text)


# The form of a type's values, the values in words, and the function from a text to one of them.
KINDS: dict[Any, tuple[str, str, Callable[[str], Any]]] = {
    str: ("TEXT", "a text", str),
    Any: ("TEXT", "a text", str),
    int: ("INT", "a whole number, such as 16, 1e6, 10M or 500k", parse_int),
    float: ("FLOAT", "a number, such as 0.5 or 3e-4", float),
    Scheduled: ("FLOAT|SCHEDULE", "a number, such as 0.5 or 3e-4, or a schedule: linear:3e-4,"
                " cosine:3e-4, linear:3e-4:1e-5", parse_schedule),
    bool: ("BOOL", "True or False", lambda text: SWITCHES[text.lower()]),
    tuple[int, ...]: ("INT,...", "whole numbers, such as 64,64 or 1,2", parse_sizes),
    tuple[str, ...]: ("NAME,...", "names, such as camera,speed", split_names),
    dict[str, Any]: ("JSON", """a JSON object, such as '{"name": 1}'""", _parse_object),
}


def preset_settings(env_name: str, preset: str) -> dict[str, Any]:
    """The settings of a preset: one of ours, see preset_of, or those in a file.

    Raises ConfigError for an unknown name, and for a file that cannot be read or has unknown
    settings.
    """
    if not is_preset_file(preset):
        if preset not in ("auto", "none", *PRESETS):
            raise ConfigError(f"there is no preset {preset!r}, only files (.toml, .json), auto,"
                              f" none, {', '.join(PRESETS)}")
        return preset_of(env_name, preset)
    found = read_settings(Path(preset))
    if wrong := [name for name in found if name not in Config.__match_args__]:
        what, fix = unknown_names("there is no setting", wrong, Config.__match_args__, "")
        raise ConfigError(f"in {preset}: {what}", fix)
    for name in OF_A_RUN if Path(preset).name != CONFIG_FILE else ():
        if found.get(name) not in (None, default_of(name)):
            raise ConfigError(f"in {preset}: {name} is a setting of one run, not of a preset")
    return {name: value for name, value in found.items() if name not in OF_A_RUN}


@contextmanager
def naming_preset(env_name: str, given: Mapping[str, Any]) -> Iterator[None]:
    """Names the preset in an error of a setting that it decides, see name_preset."""
    try:
        yield
    except USAGE_ERRORS as error:
        name_preset(error, env_name, given)
        raise


def name_preset(error: Error, env_name: str, given: Mapping[str, Any]) -> None:
    """Names the preset in an error whose fix has a setting that the preset decides, not one given.

    What it decides cannot be left out.
    """
    preset = given.get("preset", "auto")
    ours = {*preset_settings(env_name, preset)} - {*given}
    parts = error.fix if isinstance(error.fix, tuple) else (error.fix,)
    if any(ours & {*getattr(part, "names", ())} for part in parts):
        name = preset_name(env_name) if preset == "auto" else preset
        error.what = f"with preset={name}: {error.what}"
        error.fix = tuple(part for part in parts if not (
            isinstance(part, Omit) and ours & {*part.names})) or Set(preset="none")


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
