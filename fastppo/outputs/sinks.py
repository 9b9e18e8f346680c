"""The sinks of a run, which receive its metrics."""

import os
import sys
from pathlib import Path
from typing import Protocol, Sequence

from fastppo.config import Config
from fastppo.display.progress_lines import ProgressLines
from fastppo.envs.source import EnvSource
from fastppo.files.run_folder import make_run_folder, public_config
from fastppo.outputs.checkpointer import Checkpointer
from fastppo.outputs.csv_sink import CsvSink
from fastppo.outputs.evaluator import Evaluator
from fastppo.outputs.wandb_sink import WandbSink, check_wandb

STOP_SECONDS = 2.0  # after a signal, which promises an end within five


class Sink(Protocol):
    """A callback that belongs to a run: it gets the metrics of every iteration, and is closed."""

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Receives the metrics of one iteration."""

    def close(self) -> None:
        """Writes what is left; no more metrics follow."""


def progress_sinks(progress: str) -> list[Sink]:
    """The sink that shows progress: none, lines, or the live view where there is a terminal."""
    if progress == "live" and can_show_live():
        from fastppo.display.live_view import LiveView
        return [LiveView()]
    return [ProgressLines()] if progress in ("lines", "live") else []


def can_show_live() -> bool:
    """True if the output is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def shorten_waits(sinks: Sequence[Sink]) -> None:
    """Makes sinks that wait for others when they are closed wait for STOP_SECONDS at most."""
    for sink in sinks:
        if hasattr(sink, "patience"):
            sink.patience = STOP_SECONDS


def make_sinks(config: Config, source: EnvSource, step: int | None = None) -> list[Sink]:
    """The sinks of a Config; the evaluator is first, because the others receive its metrics.

    The checkpoints are last: what the others write for an iteration is written before. `step` is
    that of the checkpoint of a run that is resumed.
    """
    if config.logger == "wandb":
        check_wandb()
    evaluates = config.eval_interval is not None or config.eval_env is not None
    sinks: list[Sink] = [Evaluator(config, source)] if evaluates else []
    folder, lock = make_run_folder(config)
    sinks += [CsvSink(folder / "metrics.csv", step)] if folder else []
    if config.logger == "wandb":
        sinks.append(WandbSink(config.wandb_project, folder or Path("."), public_config(config)))
    sinks += progress_sinks(config.progress)
    if folder:
        sinks.append(Checkpointer(folder, config.checkpoint_interval, lock, step))
    return sinks
