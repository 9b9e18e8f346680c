"""The command `fastppo`, or `python main.py`: finds the verb, runs it, and reports its errors."""

import faulthandler
import importlib
import io
import os
import sys
import time
import traceback
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

from fastppo import __version__
from fastppo.cli.command_line import VERBS
from fastppo.cli.interrupts import Interrupts, Stop
from fastppo.errors import USAGE_ERRORS, ConfigError, Error, RankError, path_errors, program
from fastppo.machine import child_process, limits
from fastppo.machine.stderr import note, printed_warnings, show_status

NEEDED_PACKAGES = ("numpy", "torch", "gymnasium", "safetensors", "cloudpickle", "packaging",
                   "matplotlib", "scipy", "PIL")
DEBUG = "--debug"
OTHERS_SECONDS = 3.0


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command `argv` (default: of the process); SystemExit unless all went well."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± must not end a run
    # Before torch is imported: its threads must not spin where other programs need the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    child_process.FOLDERS[:] = [os.getcwd()]
    child_process.leave_folder(os.getcwd(), str(Path(__file__).parents[2]), sys.path)
    words = sys.argv[1:] if argv is None else argv
    debug = DEBUG in words  # an error is then printed with its traceback
    if sys.stderr is not None and not faulthandler.is_enabled():
        faulthandler.enable(2)  # stderr: a crash of an environment in this process shows its stack
    with Interrupts(ends_process=argv is None) as interrupts, guarded_stdout(), \
            printed_warnings(not limits.rank_of_process()):
        try:
            verb, rest = choose_verb([word for word in words if word != DEBUG])
            with path_errors():
                verb(rest, interrupts)
        except Stop:
            raise SystemExit(128 + interrupts.signum) from None
        except Error as error:
            if debug:
                show_status("")
                traceback.print_exc()
            code = 2 if isinstance(error, USAGE_ERRORS) else 1
            several = limits.rank_count() > 1
            if not (several and reported_elsewhere(error, interrupts)):
                place = f"rank {limits.rank_of_process()}: " * (several and code == 1)
                note(f"{place}{error.shell}", "error")
            raise SystemExit(128 + interrupts.signum if interrupts.signum else code) from None
        except ModuleNotFoundError as error:
            if error.name not in NEEDED_PACKAGES:
                raise
            print(f"error: {error.name} is not installed for {sys.executable}\n  fix: make train,"
                  " then source .venv/bin/activate", file=sys.stderr, flush=True)
            raise SystemExit(2) from None
        except BrokenPipeError:  # fastppo --help | head
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise SystemExit(141) from None


class GuardedOutput:
    """A text stream that reports once, on stderr, that writing fails, and drops what follows.

    A pipe without a reader is still a BrokenPipeError.
    """

    def __init__(self, stream: Any):
        self.stream, self.failed = stream, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """As the stream's own; returns the length of `text` even if it is lost."""
        self._attempt(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        """As the stream's own."""
        self._attempt(self.stream.flush)

    def _attempt(self, call: Callable, *args: str) -> None:
        try:
            call(*args)
        except BrokenPipeError:
            raise
        except OSError as error:
            self.failed = True
            # Python flushes the rest of the buffer once more when it exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())
            with suppress(OSError):
                print(f"error: the output cannot be written: {error.strerror}; the rest of it is"
                      " lost, nothing else", file=sys.stderr, flush=True)


@contextmanager
def guarded_stdout() -> Iterator[None]:
    """Prints inside go through a GuardedOutput; raises SystemExit(1) at the end if one failed."""
    if sys.stdout is None:  # closed before the command started
        yield
        return
    output = GuardedOutput(sys.stdout)
    try:
        with redirect_stdout(output):
            yield
    except SystemExit as end:  # of --help
        raise SystemExit(end.code or int(output.failed)) from None
    if output.failed:
        raise SystemExit(1)


def reported_elsewhere(error: Error, interrupts: Interrupts) -> bool:
    """True if another process of torchrun's says why the run has failed.

    The end of another one is reported some seconds later than its own error. What was typed
    is the same for all: a further process waits as long for torchrun, which ends it when rank 0
    has failed.
    """
    interrupts.stop_now = interrupts.stop_late = lambda: False
    interrupts.say = lambda text: None
    typed = isinstance(error, USAGE_ERRORS) and limits.rank_of_process() > 0
    end = time.monotonic() + OTHERS_SECONDS * (typed or isinstance(error, RankError))
    while time.monotonic() < end and not (typed and interrupts.signum):
        time.sleep(0.05)
    ranks = sys.modules.get("fastppo.ranks.processes")  # None: it has met no other process
    return bool(typed and interrupts.signum) or ranks is not None and not ranks.first_to_report()


def choose_verb(argv: Sequence[str]) -> tuple[Callable, list[str]]:
    """(function of the verb that `argv` begins with, the words after it); without a verb: train.

    The function of a verb is that of its module, such as fastppo.cli.train.train_verb.
    Raises ConfigError for a first word that is neither a verb nor a flag.
    """
    first, rest = (argv[0], list(argv[1:])) if argv else ("", [])
    if first in ("--version", "version"):
        return lambda *_: print(f"fastppo {__version__}"), []
    if first in ("help", "--help"):  # of a verb, or of a section or a setting
        first, rest = (rest[0], ["--help"]) if {*rest[:1]} & {*VERBS} else ("--help", rest)
    if first and not first.startswith("-") and first not in VERBS:
        raise ConfigError(f'there is no command "{first}", only {", ".join(VERBS)}; and settings'
                          " begin with --, such as --env_name=CartPole-v1", f"{program()} --help")
    if first not in VERBS:
        first, rest = "train", [first, *rest] if first else []
    return getattr(importlib.import_module(f"fastppo.cli.{first}"), f"{first}_verb"), rest
