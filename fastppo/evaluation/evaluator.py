"""Evaluation while training: a sink that evaluates at an interval and keeps the best model.

It is the first of the sinks, so that the others receive its metrics. It does not change a bit of
training: it has its own environments, episodes and seeds, and only reads the policy.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

from fastppo.config import Config
from fastppo.envs.source import EnvSource
from fastppo.errors import CheckpointError, EnvError
from fastppo.evaluation.evaluate import Evaluation, evaluate, evaluation_factories
from fastppo.machine.stderr import episode_status, note
from fastppo.settings.known_names import BEST_FILE, EVAL_RETURN, EVALUATION


class Best(NamedTuple):
    """The best evaluation so far; the first of equal ones."""

    mean: float  # return
    step: int  # of training
    model: str | None  # file in the run's folder; None if there is no folder


class Evaluator:
    """Plays `eval_episodes` episodes every `eval_interval` steps of training.

    `best` is the best of these evaluations, `latest` the (step, Evaluation) of the last one. The
    best model is saved in the run's folder, if there is one. Raises ConfigError for an environment
    that the policy cannot play; if one fails later, a note says so, and training goes on.
    """

    def __init__(self, config: Config, source: EnvSource):
        self.config = config
        self.best: Best | None = None
        self.latest: tuple[int, Evaluation | None] = -1, None
        self.failed = 0  # evaluations
        evaluation_factories(source, config.eval_env, "eval_env")

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Evaluates, if it is due, and adds the results to `stats`."""
        if not is_due(self.config, ppo.progress.begin, ppo.step):
            return
        try:
            with ppo.clock(EVALUATION):
                found = ppo.evaluate(self.config.eval_episodes)
        except EnvError as error:
            self.failed += 1
            note(f"the evaluation at step {ppo.step:,} failed: {error.what}")
            stats["faults/evaluations"] = float(self.failed)
            return
        self.latest = ppo.step, found
        spread = {"eval/return_std": found.std} if len(found.returns) > 1 else {}
        stats |= {EVAL_RETURN: found.mean, **spread, "eval/length": float(found.lengths.mean()),
                  "eval/steps": float(found.lengths.sum())} | ppo.clock.stats(ppo.step)
        if self.best is not None and not found.mean > self.best.mean:
            return
        folder = self.config.run_dir
        try:
            if folder is not None:
                ppo.save(Path(folder) / BEST_FILE)
            self.best = Best(found.mean, ppo.step, None if folder is None else BEST_FILE)
        except CheckpointError as error:  # a full disk must not end the run
            note(f"{error.what}; {BEST_FILE} is not that of step {ppo.step:,}")

    @property
    def state(self) -> Best | None:
        """The best evaluation so far, for a checkpoint."""
        return self.best

    def restore(self, state: Sequence[Any] | None) -> None:
        """Continues with a `state`."""
        if state is not None:
            mean, step, model = state
            self.best = Best(float(mean), int(step), None if model is None else str(model))

    def close(self) -> None:
        """No environment is open between two evaluations."""

def is_due(config: Config, begin: int, step: int) -> bool:
    """True if the iteration from `begin` to `step` crossed a multiple of the interval, or the end.

    It depends on the steps alone, so that an interrupt does not change it.
    """
    interval, total = config.eval_interval, config.total_steps
    return interval is not None and (crosses(interval, begin, step) or begin < total <= step)


def crosses(interval: int, begin: int, step: int) -> bool:
    """True if a multiple of the interval is above `begin`, and not above `step`."""
    return begin // interval < step // interval


def evaluator_of(sinks: Sequence[Any]) -> Evaluator | None:
    """The evaluator among a trainer's sinks; None if there is none."""
    return next((sink for sink in sinks if isinstance(sink, Evaluator)), None)


def evaluate_trainer(ppo, episodes: int, deterministic: bool, env: Any,
                     report: Callable[[Any], None] | None) -> Evaluation:
    """See PPO.evaluate.

    The episodes are shown if that is asked for, but not while `learn` runs, which shows the part
    that it is in.
    """
    shows = ppo.config.progress in ("live", "lines") and not ppo.hooks.iteration
    with episode_status(episodes) if report is None and shows else nullcontext(
            report or (lambda returns: None)) as report:
        return evaluate(ppo.policy, evaluation_factories(ppo.source, env), ppo.config.seed,
                        episodes, deterministic, report)
