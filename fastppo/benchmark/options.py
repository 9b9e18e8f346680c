"""What can be chosen about a measurement, beside the settings of what is measured."""

import difflib
from dataclasses import dataclass
from typing import Sequence

from fastppo.benchmark.peers import PEERS
from fastppo.errors import ConfigError


@dataclass(frozen=True)
class Bench:
    """Measure environment, acting, update and the whole loop on this machine, beside their limits.

    Takes every setting of training, too: they say what is measured.
    """

    rounds: int = 3
    """Times everything is measured, in turns; what is shown are medians, and the spread"""
    seconds: float = 1.0
    """Length of one measurement after its warm-up, s; at least one iteration"""
    iterations: int | None = None
    """Iterations of one measurement after its warm-up; none: as many as fill --seconds"""
    processes: tuple[int, ...] | None = None
    """Numbers of worker processes to measure, 0 being the main process alone, at most one an
    environment; none: 1, 2, 4, ..., usable cores"""
    against: str | None = None
    """Other systems to measure in turns with it, on the same environment and sizes:
    sb3,rl_games,sample_factory,envpool; one that cannot have them is said before anything is
    measured"""
    against_python: str | None = None
    """The Python of a system that has a virtual environment of its own:
    rl_games=path/to/bin/python,sample_factory=..."""
    json: str | None = None
    """File for all that was measured, as JSON; - prints that instead of the table"""
    profile: str | None = None
    """File for a trace of some iterations, one track a process, which ui.perfetto.dev opens"""

    def __post_init__(self):
        for name in ("rounds", "seconds", "iterations"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}, but must be above 0", f"leave --{name} out")
        if self.processes is not None and (not self.processes or min(self.processes) < 0):
            raise ConfigError("processes must be whole numbers, 0 or more", "--processes=1,2")
        self.peers  # noqa: B018  an unknown name is said before anything is measured

    @property
    def peers(self) -> dict[str, str | None]:
        """The Python of every system to measure against by its name; None: this one.

        Raises ConfigError for a system that is not known or not asked for.
        """
        asked = _words(self.against)
        pythons = dict(_pair(word) for word in _words(self.against_python))
        for name in asked:
            _check_system(name, PEERS, "against")
        for name in pythons:
            _check_system(name, asked, "against_python")
        return {name: pythons.get(name) for name in asked}


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _pair(word: str) -> tuple[str, str]:
    name, equals, python = word.partition("=")
    if not equals or not python:
        raise ConfigError(f'against_python has "{word}", which is no name=path/to/python',
                          f"--against_python={name}=venv/bin/python")
    return name, python


def _check_system(name: str, known: Sequence[str], flag: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, 1, 0.4)
        fix = f"--{flag}={near[0]}" if near else f"--against={name}" if name in PEERS else \
            f"--against={','.join(PEERS)}"
        raise ConfigError(f'{flag} names "{name}", but there {"is" if len(known) == 1 else "are"} '
                          f'{", ".join(known) or "none in --against"}', fix)
