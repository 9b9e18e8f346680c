"""The command: chooses the verb and turns errors into exit codes."""

import importlib
import io
import os
import sys
from typing import Callable, Sequence

from fastppo.cli.interrupts import Interrupts, Stop
from fastppo.cli.stdout_guard import guarded_stdout
from fastppo.errors import ConfigError, Error, ModelError, SpaceError
from fastppo.settings.fixes import program
from fastppo.settings.spelling import closest

VERBS = "train", "bench", "export", "replay"  # each a module with a function such as train_verb
USAGE_ERRORS = (ConfigError, ModelError, SpaceError)
NEEDED_PACKAGES = "numpy", "torch", "gymnasium", "safetensors", "cloudpickle"
Verb = Callable[[Sequence[str], Interrupts], None]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command `argv` (default: of the process); SystemExit unless all went well."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± must not end a run
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # --env_name=my_module:MyEnv; last, so that it hides nothing
    with Interrupts() as interrupts, guarded_stdout():
        try:
            verb, rest = choose_verb(sys.argv[1:] if argv is None else argv)
            verb(rest, interrupts)
        except Stop:
            raise SystemExit(128 + interrupts.signum) from None
        except Error as error:
            print(f"error: {error.shell}", file=sys.stderr, flush=True)
            code = 2 if isinstance(error, USAGE_ERRORS) else 1
            raise SystemExit(128 + interrupts.signum if interrupts.signum else code) from None
        except ModuleNotFoundError as error:
            if error.name not in NEEDED_PACKAGES:
                raise
            print(f"error: {error.name} is not installed for {sys.executable}\n"
                  "  fix: make train, or pip install -e .", file=sys.stderr, flush=True)
            raise SystemExit(2) from None
        except BrokenPipeError:  # fastppo --help | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise SystemExit(141) from None


def choose_verb(argv: Sequence[str]) -> tuple[Verb, list[str]]:
    """(function of the verb that `argv` begins with, the words after it); without a verb: train.

    Raises ConfigError for a word that is nearly a verb, or looks like one.
    """
    first, rest = (argv[0], list(argv[1:])) if argv else ("", [])
    if first not in VERBS:
        near = closest(first, VERBS)
        if near or first.isalpha() and first.islower():
            raise ConfigError(f'there is no command "{first}", only {", ".join(VERBS)}; and'
                              " settings begin with --", f"{program()} {near or '--help'}")
        first, rest = "train", list(argv)
    return getattr(importlib.import_module(f"fastppo.cli.{first}"), f"{first}_verb"), rest
