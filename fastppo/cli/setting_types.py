"""Config's fields as people read and type them: type, default, unit, meaning, and text -> value.

--help and docs/config.md are made from this. Nothing here imports torch, gymnasium or numpy.
"""

import ast
import functools
import inspect
import json
import re
from dataclasses import fields
from decimal import Decimal
from types import UnionType
from typing import Any, Callable, Literal, NamedTuple, Sequence, Union, get_args, get_origin

from fastppo.config import Config
from fastppo.errors import ConfigError
from fastppo.settings.fixes import flag
from fastppo.settings.presets import BY_PRESET
from fastppo.settings.schedules import Scheduled, is_schedule
from fastppo.settings.spelling import closest, json_flag, parse_loose_json

# The first field of each group.
SECTIONS = {"env_name": "environment", "model": "network", "num_envs": "rollout",
            "gamma": "returns", "epochs": "update", "device": "machine", "eval_episodes": "output"}

UNITS = {"max_episode_steps": "steps", "total_steps": "steps", "hidden_sizes": "units",
         "frame_stack": "observations", "log_std_init": "nats", "num_envs": "environments",
         "num_steps": "steps",
         "num_workers": "processes", "sde_sample_freq": "steps",
         "rnn_size": "units", "step_timeout": "s",
         "reset_timeout": "s", "reward_limit": "standard deviations",
         "obs_limit": "standard deviations", "num_microbatches": "parts", "target_kl": "nats",
         "adaptive_kl": "nats", "epochs": "passes", "num_minibatches": "minibatches",
         "torch_threads": "threads", "eval_episodes": "episodes", "eval_interval": "steps",
         "rounds": "rounds",
         "seconds": "s", "iterations": "iterations", "processes": "processes"}

NAMES = {int: "INT", float: "FLOAT", Scheduled: "FLOAT|SCHEDULE", bool: "BOOL", str: "TEXT",
         Any: "TEXT", tuple[int, ...]: "INT,...", tuple[str, ...]: "NAME,...",
         dict[str, Any]: "JSON"}
AUTO = *BY_PRESET, "num_workers"  # numbers that can be left to a rule or to measurement
SHARES = "std",  # numbers that can be given as a percentage
BARE_VALUES = {"json": "-"}
POWERS = {"": 0, "k": 3, "m": 6, "g": 9}
SWITCHES = {"true": True, "yes": True, "on": True, "1": True,
            "false": False, "no": False, "off": False, "0": False}


class Setting(NamedTuple):
    """One field of Config."""

    name: str
    kind: Any  # its type without None
    optional: bool  # whether None is a value
    default: Any
    text: str  # its meaning, in one line
    source: str  # of the default; "" where it has none
    section: str

    @property
    def unit(self) -> str:
        """The unit of its values; "" where they have none."""
        return UNITS.get(self.name, "")

    @property
    def type(self) -> str:
        """What its values look like: INT, FLOAT|none, tanh|relu, ..."""
        choices = get_origin(self.kind) is Literal
        plain = "|".join(get_args(self.kind)) if choices else NAMES[self.kind]
        shared = "|FLOAT%" * (self.name in SHARES)
        return plain + shared + "|auto" * (self.name in AUTO) + "|none" * self.optional

    @property
    def bare(self) -> str | None:
        """The text that its flag alone stands for; None where a value has to follow."""
        return "True" if self.kind is bool else BARE_VALUES.get(self.name)

    @property
    def fix(self) -> str:
        """What always works."""
        left = self.default is None
        return f"leave --{self.name} out" if left else flag(self.name, self.default)

    def remedy(self, text: str) -> str:
        """What to write instead of `text`, which cannot be read."""
        if get_origin(self.kind) is Literal:
            near = closest(text, get_args(self.kind))
            return flag(self.name, near) if near else self.fix
        meant = parse_loose_json(text) if self.kind == dict[str, Any] else None
        return json_flag(self.name, meant) if meant else self.fix

    def read(self, text: str) -> Any:
        """The value that `text` stands for; raises ConfigError where it stands for none."""
        if self.optional and text.lower() == "none":
            return None
        if self.name in AUTO and text.lower() == "auto":
            return "auto"
        if self.name in SHARES and text.endswith("%"):
            return text
        try:
            return reader_of(self.kind)(text)
        except ValueError as error:
            raise ConfigError(f'{self.name} is "{text}", but must be {error}',
                              self.remedy(text)) from None


@functools.cache
def settings(owner: type = Config) -> dict[str, Setting]:
    """Every field of a dataclass by name, with the text that stands below it in the source."""
    body = ast.parse(inspect.getsource(owner)).body[0].body
    texts = {one.target.id: " ".join(below.value.value.split())
             for one, below in zip(body, body[1:]) if isinstance(one, ast.AnnAssign)}
    found, section = {}, owner.__name__.lower()
    for one in fields(owner):
        text, source = re.fullmatch(r"(.*?)(?: \[([^]]*)\])?", texts[one.name]).groups("")
        several = get_args(one.type) if get_origin(one.type) in (Union, UnionType) else ()
        optional = bool(several) and one.type != Scheduled
        kind = Scheduled if {*get_args(Scheduled)} <= {*several} else (*several, one.type)[0]
        section = SECTIONS.get(one.name, section)
        found[one.name] = Setting(one.name, kind, optional, one.default, text, source, section)
    return found


def reader_of(kind: Any) -> Callable[[str], Any]:
    """The function from a text to a value of `kind`; its ValueErrors say what must be there."""
    if get_origin(kind) is Literal:
        return functools.partial(_choice, choices=get_args(kind))
    return {int: parse_int, float: _number, Scheduled: _scheduled, bool: parse_bool,
            tuple[int, ...]: _sizes, tuple[str, ...]: _words, dict[str, Any]: _object
            }.get(kind, str)


def parse_int(text: str) -> int:
    """A whole number: 16, 1_000, 1e6, 10M or 500k; raises ValueError for 1.5."""
    match = re.fullmatch(r"(.*?)([kmg]?)", text.strip().lower(), re.DOTALL)
    try:
        value = Decimal(match[1]).scaleb(POWERS[match[2]])
        if value.is_finite() and value.adjusted() < 30 and value == int(value):
            return int(value)
    except ArithmeticError:  # no number, or none that a machine could hold
        pass
    raise ValueError("a whole number, such as 16, 1e6, 10M or 500k")


def parse_bool(text: str) -> bool:
    """True or False, also as yes/no, on/off, 1/0; raises ValueError for anything else."""
    if text.lower() not in SWITCHES:
        raise ValueError("True or False")
    return SWITCHES[text.lower()]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number, such as 0.5 or 3e-4") from None


def _scheduled(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        if is_schedule(text, positive=False):
            return text
        raise ValueError("a number, such as 0.5 or 3e-4, or a schedule: linear:3e-4, cosine:3e-4,"
                         " linear:3e-4:1e-5") from None


def _choice(text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise ValueError("one of " + ", ".join(choices))
    return text


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(parse_int(part) for part in re.split(r"[,\s]+", text.strip("()[] ,")) if part)
    except ValueError:
        raise ValueError("whole numbers, such as 64,64") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip(" '\"") for word in text.strip("()[] ,").split(","))


def _object(text: str) -> dict[str, Any]:
    wanted = """a JSON object, such as '{"name": 1}'"""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{wanted} ({error})") from None
    if not isinstance(value, dict):
        raise ValueError(wanted)
    return value
