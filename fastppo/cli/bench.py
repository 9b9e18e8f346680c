"""The verb: fastppo bench [settings of training] [options of its own]."""

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Sequence

from fastppo.benchmark.options import Bench
from fastppo.cli import command_line
from fastppo.cli.interrupts import Interrupts, Stop
from fastppo.errors import ConfigError
from fastppo.machine.stderr import status_while


def bench_verb(argv: Sequence[str], interrupts: Interrupts) -> None:
    """Measures training with the settings of `argv`, and prints or writes the report.

    After a signal it is of the rounds that are complete.
    """
    request = command_line.read(argv, Bench)
    options = request.options
    for path in filter(None, (options.json, options.profile)):
        check_writable(path)
    from fastppo.trainer.given_settings import checked_source
    checked_source(None, {"env_name": request.config.env_name} | request.given).close()
    from fastppo.benchmark import session, table
    with ProgressPrinter() as progress:
        report = table.session_report(session.run_session(request.given, options, progress))
    if options.json == "-":
        print(json.dumps(report, indent=1))
    else:
        print(table.text(report), flush=True)
    if options.json not in (None, "-"):
        write_json(options.json, report)
    if interrupts.signum:
        raise Stop
    if options.profile:
        write_json(options.profile, session.profile_trace(request.given, options))
        print(f"trace     {options.profile}   (open it in https://ui.perfetto.dev)",
              file=sys.stderr if options.json == "-" else sys.stdout)


class ProgressPrinter(ExitStack):
    """Shows on stderr what is measured, and for how long."""

    def __call__(self, line: str) -> None:
        """Shows `line` until the next one, or the end of the block."""
        self.close()
        self.enter_context(status_while(line))


def check_writable(path: str) -> None:
    """Raises ConfigError if a file at `path` cannot be written; measuring takes minutes."""
    place = Path(path).absolute()
    if path != "-" and (place.is_dir() or not os.access(
            place if place.exists() else place.parent, os.W_OK)):
        raise ConfigError(f"cannot write {path}{' (a folder)' * place.is_dir()}",
                          "give a file that can be written, in a folder that exists")


def write_json(path: str, report: dict[str, Any]) -> None:
    """Writes `report` to a file as JSON."""
    Path(path).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
