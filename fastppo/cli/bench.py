"""The verb: python main.py bench [settings of training] [options of its own]."""

import json
import os
import sys
from pathlib import Path
from typing import Any, Sequence

from fastppo.benchmark.options import Bench
from fastppo.cli import arguments
from fastppo.cli.interrupts import Interrupts
from fastppo.errors import ConfigError


def bench_verb(argv: Sequence[str], interrupts: Interrupts) -> None:
    """Measure what `argv` asks for, and say what came of it."""
    request = arguments.read(argv, Bench)
    options = Bench(**request.own)
    for path in filter(None, (options.json, options.profile)):
        check_writable(path)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # --env_name=my_module:MyEnv
    interrupts.at_once = lambda: True
    from fastppo.benchmark import figures, session, table
    found = figures.session_report(session.run_session(request.asked, options, show_progress))
    show_progress("")
    if options.json == "-":
        print(json.dumps(found, indent=1))
    else:
        print(table.text(found), flush=True)
    if options.json not in (None, "-"):
        write_json(options.json, found)
    if options.profile:
        write_json(options.profile, session.profile_trace(request.asked, options))
        print(f"trace     {options.profile}   (open it in https://ui.perfetto.dev)",
              file=sys.stderr if options.json == "-" else sys.stdout)


def show_progress(line: str) -> None:
    """Say what is under way; on a terminal the next line replaces it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)


def check_writable(path: str) -> None:
    """Raise ConfigError where a file at `path` cannot be written, before minutes are spent."""
    place = Path(path).absolute()
    if path != "-" and (place.is_dir() or not os.access(
            place if place.exists() else place.parent, os.W_OK)):
        raise ConfigError(f"cannot write {path}{' (a folder)' * place.is_dir()}",
                          "give a file that can be written, in a folder that exists")


def write_json(path: str, found: dict[str, Any]) -> None:
    """Put `found` into a file, as JSON."""
    try:
        Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}",
                          "give a file that can be written") from error
