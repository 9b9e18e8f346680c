"""Evaluation while training: a sink that plays every so many steps, and keeps the best model.

It stands before the other sinks, which get its metrics. Training is the same with and without it,
bit for bit: its environments, episodes and seeds are its own, and the policy is only read.
"""

from pathlib import Path
from typing import Any, NamedTuple, Sequence

from gymnasium.spaces import Box, Space

from fastppo.config import Config
from fastppo.envs import faults, masks
from fastppo.envs.make import Factory, make_envs, spaces_of
from fastppo.envs.source import EnvSource
from fastppo.envs.spaces import CHOICES, mask_leaf, observation_storage
from fastppo.errors import CheckpointError, ConfigError, Error
from fastppo.outputs.console import note
from fastppo.outputs.evaluate import Evaluation
from fastppo.outputs.metrics import EVAL_RETURN, EVALUATION

BEST = "best.safetensors"


class Best(NamedTuple):
    """The best evaluation so far; of equal ones the first."""

    mean: float  # return
    step: int  # of training
    model: str | None  # file in the run's folder; None where there is none


class Evaluator:
    """Plays `eval_episodes` whenever training has gone another `eval_interval` steps.

    `best` is the best of these evaluations, `latest` the (step, Evaluation) of the last one. With a
    run's folder the best model is in it. Raises ConfigError for a place where the policy cannot
    play; a fault of the environment's later on is an EnvError, and ends training.
    """

    def __init__(self, config: Config, source: EnvSource):
        self.config, self.best, self.latest = config, None, (-1, None)
        if config.eval_interval and not config.eval_episodes:
            raise ConfigError("eval_interval asks for evaluations, but eval_episodes is 0",
                              "--eval_episodes=10")
        check_eval_env(config, source)

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Play, if it is time, and add what came of it to `stats`."""
        if not is_due(self.config, ppo.progress.begin, ppo.step):
            return
        with ppo.clock(EVALUATION):
            found = ppo.evaluate(self.config.eval_episodes)
        self.latest = ppo.step, found
        stats |= evaluation_metrics(found) | ppo.clock.stats(ppo.step)
        if self.best is None or found.mean > self.best.mean:
            self._keep(ppo, found)

    def close(self) -> None:
        """Nothing is open between two evaluations."""

    def _keep(self, ppo, found: Evaluation) -> None:
        folder = self.config.run_dir
        try:
            if folder is not None:
                ppo.save(Path(folder) / BEST)
            self.best = Best(found.mean, ppo.step, None if folder is None else BEST)
        except CheckpointError as error:  # a full disk costs this file, not the run
            note(f"{error.what}; {BEST} is not that of step {ppo.step:,}")


def wants_evaluator(config: Config) -> bool:
    """Whether a Config has something to evaluate, or to check, while training."""
    return config.eval_interval is not None or config.eval_env is not None


def is_due(config: Config, begin: int, step: int) -> bool:
    """Whether the iteration from `begin` to `step` crossed a multiple of the interval, or the end.

    A function of the steps alone, so that it is the same after an interrupt or a resume.
    """
    interval, total = config.eval_interval, config.total_steps
    return interval is not None and (begin // interval < step // interval or begin < total <= step)


def evaluation_metrics(found: Evaluation) -> dict[str, float]:
    """What an evaluation adds to an iteration's metrics; no std of one episode."""
    spread = {"eval/return_std": found.std} if len(found.returns) > 1 else {}
    return {EVAL_RETURN: found.mean, **spread, "eval/length": float(found.lengths.mean()),
            "eval/steps": float(found.lengths.sum())}


def check_eval_env(config: Config, source: EnvSource) -> None:
    """Raise ConfigError where evaluations cannot be played in what `eval_env` says.

    There is none, it cannot be made, or it has other spaces than those that are trained on, or an
    action mask where they have none, or none where they have one.
    """
    if config.eval_env is None and not source.factories:
        raise ConfigError(f"eval_interval is {config.eval_interval}, but what is trained on cannot"
                          " be made a second time", "name an environment to evaluate in:"
                          " --eval_env=...")
    if config.eval_env is None:
        return
    if not isinstance(config.eval_env, str) and not callable(config.eval_env):
        raise ConfigError(f"eval_env is {config.eval_env!r}, but must be an id, module:callable or"
                          " a callable", "--eval_env=CartPole-v1")
    factories_of(source, "eval_env", config.eval_env)


def evaluation_factories(source: EnvSource, env: Any = None) -> list[Factory]:
    """The factories of environments for one evaluation: of `env`, or the run's own.

    Raises ConfigError as check_place does.
    """
    return source.evaluation_factories() if env is None else factories_of(source, "env", env)


def factories_of(source: EnvSource, name: str, env: Any) -> list[Factory]:
    """The factories of `env`, given as `name`; ConfigError where the policy is for another."""
    try:
        factories = source.evaluation_factories(env, name)
        envs = make_envs(factories[:1])
    except Error as error:
        if name == "env" or error.what.startswith(name):
            raise
        raise ConfigError(f"{name} is {env!r}: {error.what}", error.fix) from error
    try:
        found, where = spaces_of(envs[0]), masks.mask_source(envs)
    finally:
        faults.close_all(envs)
    for what, ours, theirs in zip(("observations", "actions"),
                                  (source.obs_space, source.act_space), found):
        if not spaces_match(ours, theirs, what == "observations"):
            raise ConfigError(f"{name} is {env!r}, whose {what} are of the space {theirs}, but the"
                              f" policy is trained for {ours}",
                              f"give one of the same spaces, or leave {name} out")
    trained = mask_leaf(source.obs_space, source.act_space) is not None
    if isinstance(source.act_space, CHOICES) and bool(where) != trained:
        raise _otherwise_masked(f"{name} is {env!r}", where, name)
    return factories


def _otherwise_masked(given: str, where: str, name: str) -> ConfigError:
    what = f"has an action mask, {where}, but the policy is trained without" if where else \
        "has no action mask in its first info and no action_masks(), but the policy is trained" \
        " with masks"
    return ConfigError(f"{given}, which {what}",
                       f"give one {'without' if where else 'with'} masks, as what is trained on,"
                       f" or leave {name} out")


def spaces_match(ours: Space, theirs: Space, bounds_free: bool) -> bool:
    """Whether two spaces are the same; `bounds_free`: Boxes, where they are kept alike."""
    if bounds_free and isinstance(ours, Box) and isinstance(theirs, Box):
        return observation_storage(ours) == observation_storage(theirs)
    return ours == theirs


def evaluators(sinks: Sequence[Any]) -> list[Evaluator]:
    """The evaluator among a trainer's sinks: one or none."""
    return [sink for sink in sinks if isinstance(sink, Evaluator)]


def best_evaluation(sinks: Sequence[Any]) -> dict[str, Any] | None:
    """The best evaluation while training as summary.json has it; None where there was none."""
    return next((one.best._asdict() for one in evaluators(sinks) if one.best), None)


def latest_evaluation(sinks: Sequence[Any], step: int) -> Evaluation | None:
    """What was played with the weights after `step` steps; None where nothing was."""
    return next((one.latest[1] for one in evaluators(sinks) if one.latest[0] == step), None)
