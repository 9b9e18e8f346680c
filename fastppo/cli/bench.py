"""The verb: fastppo bench [settings of training] [options of its own]."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Sequence

from fastppo.cli import command_line
from fastppo.cli.interrupts import Interrupts, Stop
from fastppo.errors import ConfigError, Omit, Set
from fastppo.machine.file_access import check_output


@dataclass(frozen=True)
class Bench:
    """Measure environment, acting, update and the whole loop on this machine, and their limits.

      {0} bench --env_name=my_module:MyEnv --num_envs=16

    Takes every setting of training, too: the trainer with these settings is measured.
    """

    rounds: int | None = None
    """Times everything is measured, in turns; shown are medians and the spread; none: 3, or fewer
    where these take more than two minutes"""
    seconds: float = 1.0
    """Length of one measurement after its warm-up, s; at least one iteration"""
    iterations: int | None = None
    """Iterations of one measurement after its warm-up; none: as many as fit into --seconds"""
    processes: tuple[int, ...] | None = None
    """Numbers of worker processes to measure; 0: the main process alone. At most one per
    environment; none: 1, 2, 4, ..., usable cores"""
    against: tuple[Literal["sb3", "rl_games", "sample_factory", "rltools"], ...] | None = None
    """Other systems to measure in turns with fastppo, on the same environment and sizes; settings
    that a system lacks are an error before anything is measured"""
    against_python: tuple[str, ...] | None = None
    """The Python of a system in a virtual environment of its own:
    rl_games=path/to/bin/python,sample_factory=..."""
    json: str | None = None
    """File for all measurements, as JSON; - prints JSON instead of the table"""
    profile: str | None = None
    """File for a trace of some iterations, one track per process, for ui.perfetto.dev"""

    def __post_init__(self):
        for name in ("rounds", "seconds", "iterations"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}, but must be above 0", Omit(name))
        if self.processes is not None and (not self.processes or min(self.processes) < 0):
            raise ConfigError("processes must be whole numbers, 0 or more", Set(processes=(1, 2)))
        for text in self.against_python or ():
            if text.partition("=")[0] not in (self.against or ()) or "=" not in text:
                raise ConfigError(f'against_python has "{text}", but must be NAME=PYTHON, with the'
                                  " name of a system in against")

    @property
    def peers(self) -> dict[str, str | None]:
        """The Python of every system to measure against, by its name; None: this one."""
        pythons = dict(text.split("=", 1) for text in self.against_python or ())
        return {name: pythons.get(name) for name in self.against or ()}


def bench_verb(argv: Sequence[str], interrupts: Interrupts) -> None:
    """Measures training with the settings of `argv`, and prints or writes the report.

    After a signal it is of the rounds that are complete.
    """
    request = command_line.read(argv, Bench)
    options = request.options
    for path in {options.json, options.profile} - {None, "-"}:
        check_output(Path(path))  # measuring takes minutes
    from fastppo.trainer.given_settings import checked_source
    checked_source(None, request.in_a_folder).close()
    from fastppo.benchmark import session, table
    report = table.session_report(session.run_session(request.given, options))
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


def write_json(path: str, report: dict[str, Any]) -> None:
    """Writes `report` to a file as JSON."""
    Path(path).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
