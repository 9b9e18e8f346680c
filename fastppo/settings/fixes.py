"""The fix of an error as data, rendered once for a shell and once for Python.

    Set(target_kl=None)     --target_kl=none                   target_kl=None
    Omit("lr", "gamma")     leave --lr and --gamma out         leave lr and gamma out
    Install("atari")        pip install "fastppo[atari]"       the same
    DidYouMean("lr")        did you mean --lr?                 did you mean lr?
    Each((what, fix), ...)  what: fix, a line for each         the same
    "a sentence"            the sentence                       the same
    (fix, fix)              alternatives, joined by "; or "
"""

import json
import os
import shlex
import sys
from typing import Any

PYTHON_NAMES = {"env_name": "env"}  # parameters of PPO, make_vec and evaluate


class Set:
    """Settings to give, by name, with the values that mend the error."""

    def __init__(self, **settings: Any):
        self.settings = settings

    def text(self, shell: bool) -> str:
        """--lr=0.001 --hidden_sizes=64,64, or lr=0.001, hidden_sizes=(64, 64)."""
        if shell:
            return " ".join(flag(name, value) for name, value in self.settings.items())
        return ", ".join(f"{PYTHON_NAMES.get(name, name)}={_python_value(value)}"
                         for name, value in self.settings.items())


class Omit:
    """Settings to leave out, by name."""

    def __init__(self, *names: str):
        self.names = names

    def text(self, shell: bool) -> str:
        """leave --lr and --gamma out."""
        return f"leave {' and '.join('--' * shell + name for name in self.names)} out"


class Install:
    """An optional dependency to install, by the name of its extra."""

    def __init__(self, extra: str):
        self.extra = extra

    def text(self, shell: bool) -> str:
        """The command for pip."""
        return f'pip install "fastppo[{self.extra}]"'


class DidYouMean:
    """The names of the settings that an unknown name may be meant to be; none: where they are.

    `verb`: they are the options of a verb.
    """

    def __init__(self, *names: str, verb: str = ""):
        self.names, self.page = names, f"{verb} --help" if verb else "--help-all"

    def text(self, shell: bool) -> str:
        """did you mean --lr or --critic_lr?"""
        if not self.names:
            return f"{f'{program()} {self.page}' if shell else 'help(fastppo.PPO)'} lists them"
        return f"did you mean {' or '.join('--' * shell + name for name in self.names)}?"


class Each:
    """The fixes of several errors, each after what happened, on a line of its own."""

    def __init__(self, *errors: "tuple[str, Fix]"):
        self.errors = errors

    def text(self, shell: bool) -> str:
        """there is no setting "num_env": did you mean --num_envs?"""
        return "\n       ".join(f"{what}: {fix_text(fix, shell)}" for what, fix in self.errors)


SingleFix = str | Set | Omit | Install | DidYouMean | Each
Fix = SingleFix | tuple[SingleFix, ...]


def fix_text(fix: Fix, shell: bool) -> str:
    """`fix` as it is typed in a shell, or written in Python."""
    if isinstance(fix, tuple):
        return "; or ".join(fix_text(one, shell) for one in fix)
    return fix if isinstance(fix, str) else fix.text(shell)


def program() -> str:
    """The command as the user started it: python main.py, python -m fastppo or fastppo."""
    commands = {"main.py": "python main.py", "__main__.py": "python -m fastppo"}
    return commands.get(os.path.basename(sys.argv[0]), "fastppo")


def flag(name: str, value: Any) -> str:
    """The flag that gives setting `name` a value."""
    return f"--{name}={shlex.quote(format_value(value))}"


def format_value(value: Any) -> str:
    """A value as it is typed, before a shell's quotes: 1_000_000, 64,64, none, {"level": 1}."""
    if value is None or isinstance(value, (bool, str)):
        return "none" if value is None else str(value)
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if isinstance(value, int):
        return f"{value:_}"
    return f"{value:g}" if isinstance(value, float) else json.dumps(value, default=repr)


def _python_value(value: Any) -> str:
    if type(value) is int:
        return f"{value:_}"
    return f'"{value}"' if isinstance(value, str) else getattr(value, "__qualname__", repr(value))
