"""The command: chooses the verb and turns errors into exit codes."""

import difflib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Callable, Sequence

from fastppo.cli.interrupts import Interrupts, Stop
from fastppo.cli.stdout_guard import output_kept
from fastppo.errors import ConfigError, Error, ModelError, SpaceError

# What the first word of a command line may be: where the function stands that does it.
VERBS = {"train": (".train", "train_verb"), "bench": (".bench", "bench_verb"),
         "export": (".export", "export_verb")}
USAGE_ERRORS = (ConfigError, ModelError, SpaceError)
NEEDED_PACKAGES = "tyro", "numpy", "torch", "gymnasium", "safetensors", "cloudpickle"


def main(argv: Sequence[str] | None = None) -> None:
    """Do what `argv` (default: the process's) asks for; SystemExit unless all went well."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that has no ± must not cost a run
    with Interrupts() as interrupts, output_kept():
        try:
            verb, rest = choose_verb(sys.argv[1:] if argv is None else argv)
            verb(rest, interrupts)
        except Stop:
            raise SystemExit(interrupts.code) from None
        except Error as error:
            print(f"error: {error.shell}", file=sys.stderr, flush=True)
            code = 2 if isinstance(error, USAGE_ERRORS) else 1
            raise SystemExit(interrupts.code if interrupts.signum else code) from None
        except ModuleNotFoundError as error:
            if error.name not in NEEDED_PACKAGES:
                raise
            print(f"error: {error.name} is not installed for {sys.executable}\n  fix: {_python()}",
                  file=sys.stderr, flush=True)
            raise SystemExit(2) from None
        except BrokenPipeError:  # python main.py | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise SystemExit(141) from None


def choose_verb(argv: Sequence[str]) -> tuple[Callable[[Sequence[str], Interrupts], None], list[str]]:
    """What the first word of `argv` asks for, and the words after it; without a verb: training.

    Raises ConfigError for a word that is nearly a verb, or not even an environment.
    """
    first, rest = (argv[0], list(argv[1:])) if argv else ("", [])
    if first not in VERBS:
        near = difflib.get_close_matches(first, VERBS, 1, 0.6)
        if near:
            raise ConfigError(f'there is no command "{first}"', f"python main.py {near[0]}")
        if first.isalpha() and first.islower():
            raise ConfigError(f'there is no command "{first}", only {", ".join(VERBS)}; and'
                              " settings begin with --", "python main.py --help")
        first, rest = "train", list(argv)
    module, name = VERBS[first]
    return getattr(importlib.import_module(module, __package__), name), rest


def _python() -> str:
    """How to run the command with a Python that has what it needs."""
    made = Path(__file__).parents[2] / ".venv/bin/python"
    return f"{made} main.py ..." if made.exists() else "make train, or pip install -e ."
