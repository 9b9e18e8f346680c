"""The sinks of a run: callbacks that receive its metrics, and that it closes.

Each is imported only if a setting asks for it.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Sequence

from fastppo.config import Config
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError
from fastppo.machine import limits
from fastppo.settings.file_names import EPISODES_FILE, METRICS_FILE
from fastppo.settings.fixes import Set
from fastppo.settings.values import LOGGERS

STOP_SECONDS = 2.0  # after a signal, which promises an end within five


def make_sinks(config: Config, source: EnvSource, step: int | None = None) -> list[Any]:
    """The sinks of a Config; those that play are first, because the others receive what they add.

    The checkpoints are last: what the others write for an iteration is written before. `step` is
    that of the checkpoint of a run that is resumed.
    """
    if config.logger:
        from fastppo.machine.installation import check_loggers
        check_loggers(config.logger)
        if "tensorboard" in config.logger and config.run_dir is None:
            raise ConfigError('logger="tensorboard" writes into the folder of the run, and run_dir'
                              " is None", Set(run_dir="runs/my_run"))
    sinks: list[Any] = []
    folder, last = Path(), []
    if config.eval_interval is not None or config.eval_env is not None:
        from fastppo.outputs.evaluator import Evaluator
        sinks.append(Evaluator(config, source))
    if config.video_interval:
        from fastppo.outputs.video_recorder import VideoRecorder
        sinks.append(VideoRecorder(config, source))
    if config.run_dir is not None:
        from fastppo.files.run_folder import make_run_folder
        from fastppo.outputs.checkpointer import Checkpointer
        from fastppo.outputs.csv_sink import CsvSink, EpisodeSink
        folder, lock = make_run_folder(config)
        sinks += [CsvSink(folder / METRICS_FILE, step, lock.hold),
                  EpisodeSink(folder / EPISODES_FILE, step, lock.hold)]
        last = [Checkpointer(folder, config.checkpoint_interval, lock, step)]
    for name in config.logger or ():
        module, kind = LOGGERS[name].split(".")
        sinks.append(getattr(import_module(f"fastppo.outputs.{module}"), kind)(
            config, folder, step))
    return [*sinks, *progress_sinks(config.progress), *last]


def progress_sinks(progress: str) -> list[Any]:
    """The sink that shows progress: none, lines, or the live view in a terminal with Unicode."""
    if progress == "live" and limits.is_terminal(sys.stdout) and \
            str(sys.stdout.encoding).lower().startswith("utf"):
        from fastppo.display.live_view import LiveView
        return [LiveView()]
    if progress in ("lines", "live"):
        from fastppo.display.progress_lines import ProgressLines
        return [ProgressLines()]
    return []


def shorten_waits(sinks: Sequence[Any]) -> None:
    """Makes sinks that wait for others when they are closed wait for STOP_SECONDS in all."""
    waiting = [sink for sink in sinks if hasattr(sink, "patience")]
    for sink in waiting:
        sink.patience = STOP_SECONDS / len(waiting)
