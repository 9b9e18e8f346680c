"""How settings are written on a command line and in Python."""

import ast
import difflib
import json
import re
import shlex
from typing import Any, Iterable

from fastppo.settings.fixes import flag

MODELS = "auto", "mlp", "cnn", "impala", "impoola"  # networks that a setting can name
FLAG = re.compile(
    r"(?<![\w-])--(?!help\b|no-)(\w+)(?:=('(?:[^']|'\"'\"')*'|[^\s;)'\"]*[^\s;),.:'\"]))?")
FLAGS = re.compile(f"{FLAG.pattern}(?: {FLAG.pattern})*")
# Settings of which none is a word, in Python, too.
NONE = {"preset", "preprocessing", "rnn", "norm_advantages", "logger", "progress"}
WORDS, SIZES = {"actor_keys", "critic_keys"}, {"hidden_sizes"}  # settings that are tuples


def flag_meant(name: str, value: Any, wanted: str, default: Any) -> str:
    """The flag for a setting that is none of those `wanted` lists: the nearest, or the default."""
    among = wanted.removeprefix("one of ").split(", ") if isinstance(value, str) else []
    meant = closest(value, among) if len(among) > 1 else None
    return flag(name, meant or default)


def closest(text: str, choices: Iterable[str]) -> str | None:
    """The one of `choices` that a mistyped `text` is near, in either case; None if none is."""
    return next(iter(difflib.get_close_matches(text.lower(), choices, 1)), None)


def nearest_choice(value: Any, choices: str, default: Any) -> Any:
    """The one of some comma-separated `choices` nearest to a mistyped text, else `default`."""
    text = value if isinstance(value, str) and isinstance(default, str) else ""
    return closest(text, choices.removeprefix("one of ").split(", ")) or default


def parse_loose_json(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` was probably meant to be; None if nobody can tell.

    Understood are Python's spelling, and what a shell makes of JSON without its quotes.
    """
    bare = r"""(?<![\w"'.+-])(?!true\b|false\b|null\b|True\b|False\b|None\b)[A-Za-z_][\w./-]*"""
    for tried in (text, re.sub(bare, r'"\g<0>"', text)):
        for read in (json.loads, ast.literal_eval):
            try:
                value = read(tried)
                json.dumps(value, allow_nan=False)
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                continue
            if isinstance(value, dict) and all(isinstance(name, str) for name in value):
                return value
    return None


def json_flag(name: str, value: dict[str, Any]) -> str:
    """The flag that gives setting `name` a JSON object; an empty one is better left out.

    Values that JSON does not know are shown as Python does.
    """
    text = shlex.quote(json.dumps(value, default=repr))
    return f"--{name}={text}" if value else f"leave --{name} out"


def keywords(text: str, env: str = "", bare: bool = True) -> str:
    """`text` with its flags as keyword arguments: --target_kl=none is target_kl=None.

    `env`, such as PPO({}), is the call in which the environment stands first, without its name.
    Flags that have no value are changed only if `bare`.
    """
    return FLAGS.sub(lambda found: _arguments(found[0], env, bare), text)


def _arguments(flags: str, env: str, bare: bool) -> str:
    found = [(name, value) for name, value in FLAG.findall(flags)]
    if not bare and any(not value for _, value in found):
        return flags
    said = [f"{name}={_literal(value, name)}" if value else name for name, value in found]
    name, value = found[0]
    if not (env and name == "env_name" and value):
        return ", ".join(said)
    return env.format(", ".join([_literal(value), *said[1:]]))


def _literal(value: str, name: str = "") -> str:
    """What follows the equals sign of the flag of setting `name`, as it is written in Python."""
    plain = "".join(shlex.split(value))
    if plain != "none" and name in WORDS | SIZES:
        found = [word if name in SIZES else f'"{word}"' for word in plain.split(",")]
        return f"({', '.join(found)}{',' * (len(found) == 1)})"
    if plain.startswith("{") and (held := parse_loose_json(plain)) is not None:
        return repr(held)
    if plain == "none" and name not in NONE:
        return "None"
    return plain if re.fullmatch(r"-?[\d_.]+(e-?\d+)?|True|False|\.\.\.", plain) else f'"{plain}"'
