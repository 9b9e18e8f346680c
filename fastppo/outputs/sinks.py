"""The sinks of a run: what takes its metrics."""

from pathlib import Path
from typing import Protocol

import numpy as np

from fastppo.config import Config
from fastppo.envs.source import Source
from fastppo.outputs.console import Lines
from fastppo.outputs.csv_sink import Csv
from fastppo.outputs.evaluator import Evaluator, wanted
from fastppo.outputs.run_folder import folder_of, public
from fastppo.outputs.wandb_sink import Wandb, check_wandb


def stops(answer) -> bool:
    """Whether a callback's answer asks to end training: False, also as numpy compares."""
    return isinstance(answer, (bool, np.bool_)) and not answer


class Sink(Protocol):
    """Takes the metrics of every iteration."""

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """One iteration's metrics."""

    def close(self) -> None:
        """No more will come."""


def sinks_of(config: Config, source: Source) -> list[Sink]:
    """The sinks a Config asks for; an evaluator first, so that the others get its metrics."""
    if config.logger == "wandb":
        check_wandb()
    sinks: list[Sink] = [Evaluator(config, source)] if wanted(config) else []
    folder = folder_of(config)
    sinks += [Csv(folder / "metrics.csv")] if folder else []
    if config.logger == "wandb":
        sinks.append(Wandb(config.wandb_project, folder or Path("."), public(config)))
    return sinks + ([Lines()] if config.progress == "lines" else [])
