"""The verb train: learn, save, evaluate, and print what happened."""

import importlib.util
import itertools
import json
import math
import os
import secrets
import sys
import time
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Iterator, Sequence

from fastppo import __version__
from fastppo.cli import arguments
from fastppo.cli.arguments import Request, folder_name
from fastppo.cli.interrupts import Interrupts, Stop
from fastppo.errors import ConfigError
from fastppo.settings.fixes import format_value
from fastppo.settings.spelling import MODELS

BEGAN = time.monotonic()
MODEL_FILE, SUMMARY_FILE = "model.safetensors", "summary.json"
NO_EXTENSION = ("kernels   numba: no compiled extension, so one process only and slower; to get it:"
                " install a C compiler and Python's headers, then pip install -e .")


def train_verb(argv: Sequence[str], interrupts: Interrupts) -> None:
    """Do the training that `argv` asks for."""
    run_training(arguments.read(argv), interrupts)


def run_training(request: Request, interrupts: Interrupts) -> None:
    """Train, save and evaluate what was asked for, in a folder of its own."""
    config = request.config
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # --env_name=my_module:MyEnv; last, so that it hides nothing
    if config.logger == "wandb":
        from fastppo.outputs.wandb_sink import check_wandb
        check_wandb()
    seed = secrets.randbits(31) if config.seed is None else config.seed
    progress = "lines" if config.progress == "auto" else config.progress
    with new_folder(config.run_dir, f"{folder_name(config.env_name)}__{seed}") as folder:
        from fastppo.outputs.evaluator import latest_evaluation
        from fastppo.ppo import PPO
        decided = {"env_name": config.env_name, "seed": seed, "run_dir": str(folder),
                   "progress": progress}
        with PPO(**{**request.asked, **decided}) as ppo:
            print_lines(*first_lines(request, seed, folder), *banner(ppo, request))
            sinks = list(ppo.sinks)
            summary = learn_and_save(ppo, folder, interrupts)
        if config.eval_episodes:
            final_evaluation(ppo, folder, summary, latest_evaluation(sinks, ppo.step))
    if any(getattr(sink, "hung", False) for sink in sinks):
        sys.stdout.flush()
        os._exit(0)  # a usual exit would wait for wandb once more


@contextmanager
def new_folder(run_dir: str | None, name: str) -> Iterator[Path]:
    """A folder that no other run has, by default runs/{name}__{now}; unused, it is gone again.

    Raises ConfigError where `run_dir` holds another run or cannot be made.
    """
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path(run_dir or f"runs/{name}__{stamp}")
    several = (folder.with_name(f"{folder.name}-{i}") for i in itertools.count(2))
    if run_dir and folder.is_dir() and any(folder.iterdir()):
        free = next(path for path in several if not path.exists())
        raise ConfigError(f"the folder {run_dir} is not empty: it may hold another run",
                          f"--run_dir={free}")
    try:
        while folder.exists() and not run_dir:
            folder = next(several)
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=bool(run_dir))
    except OSError as error:
        raise ConfigError(f"cannot make the folder {folder}: {error.strerror}",
                          "--run_dir=another/folder") from error
    try:
        yield folder
    finally:
        for path in made:
            if not path.is_dir() or any(path.iterdir()):
                break
            path.rmdir()


def first_lines(request: Request, seed: int, folder: Path) -> list[str]:
    """What is missing, what will run, and where to; said once the environments are there."""
    compiled = importlib.util.find_spec("fastppo._kernels") is not None
    over = f"preset {request.preset} ({len(request.changes)} settings)" if request.changes \
        else "no preset"
    line = f"fastppo {__version__}   {request.config.env_name}   {over}   seed {seed}   {folder}"
    return [line] if compiled else [NO_EXTENSION, line]


def banner(ppo, request: Request) -> list[str]:
    """What was chosen, a line each."""
    from fastppo.build.check_settings import torch_alone
    from fastppo.machine import kernels
    config, policy, only = ppo.config, ppo.policy, torch_alone(ppo.config)
    size = sum(param.numel() for param in policy.parameters())
    place = {"native": "one vector environment", "envpool": "EnvPool"}.get(config.vec) or (
        f"{config.num_workers} workers" if config.num_workers else "the main process")
    place += ", as measured" * (request.asked.get("num_workers") == "auto")
    plural = "s" if config.torch_threads > 1 else ""
    in_update = f", {config.update_threads} in the update" * (
        config.update_threads != config.torch_threads)
    changed = " ".join(f"{name}={format_value(value)}" for name, value in request.changes.items())
    return [
        f"env       observations {_space(policy.obs_space)}, actions {_space(policy.act_space)}",
        *([f"preset    {request.preset}: {changed}"] if changed else []),
        f"model     {_network(policy, config)}, {size:,} parameters"
        + ", observations normalised" * policy.observer.norm,
        f"acting    {config.acting}; {config.num_envs} environments x {config.num_steps} steps in"
        f" {place}",
        f"device    {config.device}, {config.torch_threads} torch thread{plural}{in_update}",
        f"kernels   {kernels.backend()}; learner {config.learner}" + f", for {only}" * bool(only),
    ]


def learn_and_save(ppo, folder: Path, interrupts: Interrupts) -> dict[str, Any]:
    """Learn, and save whatever the end of it is; returns the run's summary.

    A signal ends it after the iteration, or at once where that is still being collected, or
    followed by an evaluation.
    """
    from fastppo.outputs.metrics import EVALUATION
    started, ended = time.monotonic(), "error"
    interrupts.at_once = lambda: ppo.clock.part in ("collect", EVALUATION)
    try:
        ppo.learn(callbacks=[lambda *_: not interrupts.signum])
        ended = "done"
    except Stop:
        pass
    finally:
        seconds = time.monotonic() - started - ppo.clock.seconds.get(EVALUATION, 0.0)
        interrupts.at_once = lambda: False
        ended = "signal" if interrupts.signum else ended
        model = _saved(ppo, folder)
        summary = make_summary(ppo, ended, started - BEGAN, seconds, model)
        write_summary(folder, summary)
        ppo.close()  # its sinks have the last word on training
        print_lines(result_line(summary, model))
        interrupts.at_once = lambda: True
    if interrupts.signum:
        raise Stop
    return summary


def final_evaluation(ppo, folder: Path, summary: dict[str, Any], known) -> None:
    """Play the episodes of the evaluation, unless it is `known` already; say what came of it."""
    try:
        found = known or ppo.evaluate(ppo.config.eval_episodes)
    except Stop:
        print_lines(f"stopped   during the evaluation   {folder / MODEL_FILE}")
        raise
    held = {"mean": found.mean, "std": found.std, "ci95": found.ci95,
            "episodes": len(found.returns), "length": float(found.lengths.mean())}
    write_summary(folder, summary | {"evaluation": held})
    print_lines(f"evaluation return {found}")


def make_summary(ppo, ended: str, startup: float, seconds: float, model: Path | None
               ) -> dict[str, Any]:
    """What summary.json says of a run."""
    from fastppo.collect import WARMUP_STEPS
    from fastppo.machine import kernels
    from fastppo.outputs.evaluator import best_evaluation
    from fastppo.outputs.fingerprint import fingerprint
    config, recent = ppo.config, ppo.episodes.stats()
    rows = config.num_envs * min(config.num_steps, WARMUP_STEPS)
    return {"env_name": config.env_name, "seed": config.seed, "ended": ended, "steps": ppo.step,
            "iterations": ppo.learner.finished + 1, "episodes": ppo.episodes.count,
            "seconds": seconds, "startup_seconds": startup, "steps_per_second": ppo.step / seconds,
            "warmup_steps": rows * ppo.policy.observer.norm,
            "episodic_return": recent.get("charts/episodic_return"),
            "evaluation": None, "best": best_evaluation(ppo.sinks), "model": model and model.name,
            "kernels": kernels.backend(), "version": __version__,
            "fingerprint": fingerprint(config.torch_threads)}


def result_line(summary: dict[str, Any], model: Path | None) -> str:
    """The line on how training ended."""
    word = {"done": "trained", "signal": "stopped", "error": "failed"}[summary["ended"]]
    if model is None:
        return f"{word:9} before the first iteration was whole: there is no model"
    return (f"{word:9} {summary['steps']:,} steps in {summary['seconds']:.1f} s"
            f" after {summary['startup_seconds']:.1f} s of start-up,"
            f" {summary['steps_per_second']:,.0f} steps/s   {model}")


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Put the summary into a run's folder; what is not finite becomes null."""
    text = json.dumps(_finite(summary), indent=2, allow_nan=False)
    (folder / SUMMARY_FILE).write_text(text + "\n", encoding="utf-8")


def print_lines(*lines: str) -> None:
    """Print lines, at once."""
    print(*lines, sep="\n", flush=True)


def _saved(ppo, folder: Path) -> Path | None:
    """Where the policy of the last whole iteration was saved; None before the first one."""
    if ppo.learner.finished < 0:
        return None
    ppo.save(folder / MODEL_FILE)
    return folder / MODEL_FILE


def _network(policy, config) -> str:
    outputs = f"-{{{policy.head.size},1}}"
    if config.model not in MODELS:
        return f"{format_value(config.model)}{outputs}"
    hidden = next(part for part in policy.modules() if hasattr(part, "actor_body")
                  ).actor_body.widths
    memory = f"-{config.rnn}{config.rnn_size}" * (config.rnn != "none")
    beside = f" {config.activation}" * (len(hidden) > 1) + " with layer norm" * config.layer_norm
    seen = f", {config.frame_stack} observations stacked" * (config.frame_stack > 1)
    return f"{config.model} {'-'.join(map(str, hidden))}{memory}{outputs}{beside}{seen}"


def _space(space) -> str:
    name = type(space).__name__
    return f"{name}{space.shape} {space.dtype}" if name == "Box" else str(space)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(held) for name, held in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
