"""The sinks of a run, which receive its metrics."""

import sys
from pathlib import Path
from typing import Any, Callable, Protocol, Sequence

from fastppo.config import Config
from fastppo.display.progress_lines import ProgressLines
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError
from fastppo.files.run_folder import make_run_folder
from fastppo.machine import limits
from fastppo.machine.installation import check_loggers
from fastppo.outputs.background_sink import BackgroundSink
from fastppo.outputs.checkpointer import Checkpointer
from fastppo.outputs.csv_sink import CsvSink, EpisodeSink
from fastppo.outputs.evaluator import Evaluator
from fastppo.outputs.tensorboard_sink import TensorBoardSink
from fastppo.outputs.trackio_sink import TrackioSink
from fastppo.outputs.video_recorder import VideoRecorder
from fastppo.outputs.wandb_sink import WandbSink
from fastppo.settings.file_names import EPISODES_FILE, METRICS_FILE
from fastppo.settings.fixes import Set

# The sink of each logger, from (Config, the run's folder, the step of a run that is resumed).
LOGGER_SINKS: dict[str, Callable[[Config, Path, int | None], Any]] = {
    "tensorboard": TensorBoardSink,
    "trackio": lambda config, folder, step: TrackioSink(config, folder),
    "wandb": lambda config, folder, step: WandbSink(config, folder),
}

STOP_SECONDS = 2.0  # after a signal, which promises an end within five


class Sink(Protocol):
    """A callback that belongs to a run: it gets the metrics of every iteration, and is closed."""

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Receives the metrics of one iteration."""

    def close(self) -> None:
        """Writes what is left; no more metrics follow."""


def progress_sinks(progress: str) -> list[Sink]:
    """The sink that shows progress: none, lines, or the live view in a terminal with Unicode."""
    if progress == "live" and limits.is_terminal(sys.stdout) and \
            str(sys.stdout.encoding).lower().startswith("utf"):
        from fastppo.display.live_view import LiveView
        return [LiveView()]
    return [ProgressLines()] if progress in ("lines", "live") else []


def shorten_waits(sinks: Sequence[Sink]) -> None:
    """Makes sinks that wait for others when they are closed wait for STOP_SECONDS in all."""
    waiting = [sink for sink in sinks if isinstance(sink, BackgroundSink)]
    for sink in waiting:
        sink.patience = STOP_SECONDS / len(waiting)


def make_sinks(config: Config, source: EnvSource, step: int | None = None) -> list[Sink]:
    """The sinks of a Config; those that play are first, because the others receive what they add.

    The checkpoints are last: what the others write for an iteration is written before. `step` is
    that of the checkpoint of a run that is resumed.
    """
    check_loggers(config.logger or ())
    if "tensorboard" in (config.logger or ()) and config.run_dir is None:
        raise ConfigError('logger="tensorboard" writes into the folder of the run, and run_dir is'
                          " None", Set(run_dir="runs/my_run"))
    evaluates = config.eval_interval is not None or config.eval_env is not None
    sinks: list[Sink] = [Evaluator(config, source)] if evaluates else []
    sinks += [VideoRecorder(config, source)] if config.video_interval else []
    folder, lock = make_run_folder(config)
    if folder:
        sinks += [CsvSink(folder / METRICS_FILE, step, lock.hold),
                  EpisodeSink(folder / EPISODES_FILE, step, lock.hold)]
    sinks += [LOGGER_SINKS[name](config, folder or Path(), step) for name in config.logger or ()]
    sinks += progress_sinks(config.progress)
    if folder:
        sinks.append(Checkpointer(folder, config.checkpoint_interval, lock, step))
    return sinks

