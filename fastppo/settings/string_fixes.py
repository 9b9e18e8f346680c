"""TO BE REMOVED with the last fix that is a string with --flags in it: their form for Python."""

import re
import shlex

from fastppo.settings.spelling import parse_loose_json

FLAG = re.compile(
    r"(?<![\w-])--(?!help\b|no-)(\w+)(?:=('(?:[^']|'\"'\"')*'|[^\s;)'\"]*[^\s;),.:'\"]))?")
FLAGS = re.compile(f"{FLAG.pattern}(?: {FLAG.pattern})*")
# Settings that have the word "none" as a value in Python too.
NONE = {"preset", "preprocessing", "rnn", "norm_advantages", "logger", "progress"}
WORDS, SIZES = {"actor_keys", "critic_keys"}, {"hidden_sizes"}  # settings that are tuples


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
    texts = [f"{name}={_python_literal(value, name)}" if value else name for name, value in found]
    name, value = found[0]
    if not (env and name == "env_name" and value):
        return ", ".join(texts)
    return env.format(", ".join([_python_literal(value), *texts[1:]]))


def _python_literal(value: str, name: str = "") -> str:
    plain = "".join(shlex.split(value))
    if plain != "none" and name in WORDS | SIZES:
        found = [word if name in SIZES else f'"{word}"' for word in plain.split(",")]
        return f"({', '.join(found)}{',' * (len(found) == 1)})"
    if plain.startswith("{") and (found := parse_loose_json(plain)) is not None:
        return repr(found)
    if plain == "none" and name not in NONE:
        return "None"
    return plain if re.fullmatch(r"-?[\d_.]+(e-?\d+)?|True|False|\.\.\.", plain) else f'"{plain}"'
