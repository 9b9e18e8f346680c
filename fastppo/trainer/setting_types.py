"""Config's fields as data: type, default, meaning, and how a text becomes a value.

--help and docs/config.md are made from this. Nothing here imports torch, gymnasium or numpy.
"""

import ast
import functools
import inspect
import json
import re
from dataclasses import fields
from types import UnionType
from typing import Any, Callable, Literal, NamedTuple, Union, get_args, get_origin

from fastppo.config import Config, having
from fastppo.errors import ConfigError
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
        optional = bool(members) and field.type != Scheduled
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
