"""A sink that sends metrics to another program from a thread, and never stops or delays a run."""

import importlib.util
import queue
import sys
import threading
from typing import Any, Protocol

from fastppo.display.notes import note
from fastppo.errors import ConfigError
from fastppo.settings.fixes import Install
from fastppo.settings.metric_names import GLOBAL_STEP

QUEUE_LIMIT = 10_000  # iterations that may wait to be logged
FINISH_SECONDS = 10.0  # for the last rows when the run has ended


class Tracker(Protocol):
    """What a sink logs to: a run as the other program has it. Its methods may raise or block."""

    def log(self, row: dict[str, Any], step: int) -> None:
        """Receives the metrics of one iteration, which ended at an environment step."""

    def finish(self) -> None:
        """Writes what is left."""


class BackgroundSink:
    """Logs every iteration to the Tracker that `start` makes; both run in a thread.

    If one of them fails, a note is printed and the run goes on without it. `hung` is True after
    close() if it did not finish; its thread ends with the process.
    """

    name = ""  # of the package, in notes

    def __init__(self):
        self.hung, self.full, self.patience = False, False, FINISH_SECONDS
        self.rows: queue.SimpleQueue = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._log_rows, name=self.name, daemon=True)

    def start(self) -> Tracker:
        """A new Tracker, made in the thread before the first row."""
        raise NotImplementedError

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Puts one iteration into the queue of the thread; drops it if QUEUE_LIMIT rows wait."""
        if self.thread.ident is None:
            self.thread.start()
        if self.rows.qsize() < QUEUE_LIMIT:
            self.rows.put((ppo.step, {GLOBAL_STEP: ppo.step, **stats}))
        elif not self.full and self.thread.is_alive():
            self.full = True
            note(f"{self.name} does not keep up and misses some iterations; metrics.csv has them"
                 " all")

    def close(self) -> None:
        """Waits up to `patience` seconds for the last rows."""
        if self.thread.ident is None:
            return
        self.rows.put(None)
        self.thread.join(self.patience)
        if self.thread.is_alive():
            self.hung = True
            note(f"{self.name} did not finish within {self.patience:g} s; the run ends without it")

    def _log_rows(self) -> None:
        try:
            tracker = self.start()
            while (row := self.rows.get()) is not None:
                tracker.log(row[1], step=row[0])
            tracker.finish()
        except BaseException as error:  # also SystemExit: a run never fails because of a logger
            note(f"{self.name}: {error_line(error)}; going on without it")


def check_logger_package(name: str) -> None:
    """Raises ConfigError if the package of a logger is not installed.

    A folder that its runs leave, such as wandb/, is no package.
    """
    if sys.modules.get(name) is not None:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ConfigError(f'logger="{name}" needs the package {name}, which is not installed',
                          Install(name))


def error_line(error: BaseException) -> str:
    """The type of an exception, and the first line of its text."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
