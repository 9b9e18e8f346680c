"""A sink that sends metrics to another program from a thread, and never stops or delays a run."""

import queue
import secrets
import threading
from pathlib import Path
from typing import Any

from fastppo.collect import Rollout
from fastppo.config import Config
from fastppo.errors import Install, fix_text
from fastppo.machine.stderr import error_line, note
from fastppo.settings.known_names import EVAL_VIDEO, GLOBAL_STEP
from fastppo.trainer.metrics import Histogram, action_histograms

QUEUE_LIMIT = 10_000  # rows that may wait to be logged
FINISH_SECONDS = 10.0  # for the last rows when the run has ended


class BackgroundSink:
    """Logs every iteration to the tracker that `start` makes; both run in a thread.

    A tracker is a run as the other program has it: `log(row, step)` gets what belongs to the
    iteration that ended at an environment step, by name (numbers are metrics; there may be a
    Histogram, or the Path of a video), and `finish()` writes what is left. Both may raise or block.
    Videos of a format that is not among its `videos` are left out, with a note. If the tracker
    fails, a note is printed and the run goes on without it. `hung` is True after close() if it did
    not finish; its thread ends with the process.
    """

    name = ""  # of the package, in notes
    videos: tuple[str, ...] = (".mp4",)

    def __init__(self):
        self.hung, self.full, self.refused, self.patience = False, False, False, FINISH_SECONDS
        self.histograms: dict[str, Histogram] = {}
        self.rows: queue.SimpleQueue = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._log_rows, name=self.name, daemon=True)

    def start(self) -> Any:
        """A new tracker, made in the thread before the first row."""
        raise NotImplementedError

    def on_collect(self, ppo, rollout: Rollout) -> None:
        """Counts the actions of a rollout, whose memory the next one will have."""
        self.histograms = action_histograms(ppo.policy.act_space, ppo.whole)

    def on_video(self, ppo, path: Path) -> None:
        """Logs a video."""
        if path.suffix in self.videos:
            self._put(ppo.step, {EVAL_VIDEO: path})
        elif not self.refused:
            self.refused = True
            note(f"{self.name} cannot show {path.suffix} videos; for mp4:"
                 f" {fix_text(Install('video'), shell=True)}")

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Logs one iteration."""
        self._put(ppo.step, {GLOBAL_STEP: ppo.step, **stats, **self.histograms})

    def _put(self, step: int, row: dict[str, Any]) -> None:
        """Puts a row into the queue of the thread; drops it if QUEUE_LIMIT rows wait."""
        if self.thread.ident is None:
            self.thread.start()
        if self.rows.qsize() < QUEUE_LIMIT:
            self.rows.put((step, row))
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
            while (item := self.rows.get()) is not None:
                self._log_row(tracker, *item)
            tracker.finish()
        except BaseException as error:  # also SystemExit: a run never fails because of a logger
            note(f"{self.name}: {error_line(error)}; going on without it")

    def _log_row(self, tracker: Any, step: int, row: dict[str, Any]) -> None:
        """Logs a row; a video that cannot be logged costs no metrics."""
        try:
            tracker.log(row, step=step)
        except Exception as error:
            if EVAL_VIDEO not in row:
                raise
            note(f"{self.name}: {error_line(error)}; going on without the video of step {step:,}")


class NamedRunSink(BackgroundSink):
    """A sink for a package that has runs by name, with which a resumed run goes on.

    The `state`, which a checkpoint holds, names it.
    """

    def __init__(self, config: Config, folder: Path, step: int | None = None):
        super().__init__()
        self.config, self.folder, self.state = config, folder, secrets.token_hex(4)

    def restore(self, state: str) -> None:
        """Goes on with the run that has this name, before the first row."""
        self.state = str(state)


class MediaTracker:
    """A run of a package such as wandb, with histograms and videos as the package's own.

    Rows up to the step `last` are left out: the run has them.
    """

    def __init__(self, package: Any, run: Any, last: int | None = None):
        self.package, self.run, self.last = package, run, last

    def log(self, row: dict[str, Any], step: int) -> None:
        """Logs what belongs to a step that is new."""
        if self.last is None or step > self.last:
            self.run.log({name: self.package.Histogram(np_histogram=value)
                          if isinstance(value, Histogram) else self.package.Video(str(value))
                          if isinstance(value, Path) else value
                          for name, value in row.items()}, step=step)

    def finish(self) -> None:
        """Waits until everything is sent, or written."""
        self.run.finish()
