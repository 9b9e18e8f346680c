"""Folders of runs for tests of what reads them, written as the command writes them."""

import json
import types
from pathlib import Path

from fastppo.loggers.csv_files import CsvSink

RETURN, KL, VARIANCE = "charts/episodic_return", "losses/approx_kl", "losses/explained_variance"


def write_run(folder: Path, returns, steps=None, env_name="CartPole-v1", seed=1, evaluation=None,
              settings=None, episodes=None, **metrics) -> Path:
    """A run's folder with a row for each of `returns`; None is a metric without a value.

    `evaluation` is the mean in summary.json; `metrics` are lists for further columns; `episodes`
    are rows (step, return, length) of episodes.csv, without which there is no such file.
    """
    folder.mkdir(parents=True)
    sink = CsvSink(folder / "metrics.csv")
    sink.on_start(None)
    for i, value in enumerate(returns):
        row = {RETURN: value, KL: 0.01, VARIANCE: 0.5} | {
            name: values[i] for name, values in metrics.items()}
        sink(types.SimpleNamespace(step=steps[i] if steps else 100 * (i + 1)),
             {name: one for name, one in row.items() if one is not None})
    sink.close()
    if episodes:
        (folder / "episodes.csv").write_text("global_step,return,length\n" + "".join(
            f"{step},{total},{length}\n" for step, total, length in episodes))
    config = {"env_name": env_name, "seed": seed, "lr": 3e-4, "run_dir": str(folder)}
    (folder / "config.json").write_text(json.dumps(config | (settings or {})))
    summary = {"env_name": env_name, "seed": seed,
               "evaluation": evaluation and {"mean": evaluation, "episodes": 10}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_runs(folder: Path, scores, **others) -> Path:
    """A folder with a run for each of `scores`, which are the means of their evaluations."""
    for seed, score in enumerate(scores):
        write_run(folder / f"seed{seed}", [1.0, score], seed=seed, evaluation=score, **others)
    return folder
