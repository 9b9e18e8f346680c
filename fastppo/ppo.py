"""PPO: collect, update, report, until the steps are done. Start reading here.

    while step < total:
        rollout = collect()        T steps of E environments, advantages and returns
        stats = update(rollout)    epochs of clipped minibatch steps
"""

import os
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from fastppo.build.arena_layout import check_rollout, make_arena
from fastppo.build.model import build_policy
from fastppo.build.resolve import (
    Callbacks,
    as_callbacks,
    check_total_steps,
    config_for,
    make_source,
    resolve,
)
from fastppo.build.run import make_collector, make_flat_parameters, make_learner
from fastppo.collect import Rollout
from fastppo.errors import ClosedError
from fastppo.networks.torch_state import torch_threads
from fastppo.outputs.evaluate import Evaluation, evaluate
from fastppo.outputs.evaluator import evaluation_factories
from fastppo.outputs.metrics import EpisodeMetrics, PartTimer, describe, explained_variance, log
from fastppo.outputs.policy_file import save_policy
from fastppo.outputs.sinks import asks_to_stop, make_sinks
from fastppo.stepping.infos import read_infos
from fastppo.update.coefficients import Coefficients, coefficients_at


class Progress(NamedTuple):
    """How far a run is; replaced whole, so that an interrupt never sees half of it."""

    iteration: int = 0  # rollouts collected
    step: int = 0  # valid rows in them
    begin: int = 0  # step at which the last one began


class PPO(AbstractContextManager):
    """Proximal policy optimisation [Schulman 2017, arXiv:1707.06347] on an environment.

    `env`: a Gymnasium id, class, callable, list of callables, or a gymnasium VectorEnv; `settings`:
    fields of Config by name. Nothing is printed or written unless `run_dir`, `logger` or `progress`
    is given. Raises subclasses of fastppo.Error for what cannot be; close() it, or use `with`.
    """

    def __init__(self, env: Any = None, **settings):
        self.collector, self.sinks = None, []
        self.source = source = make_source(env, config_for(env, settings))
        try:
            self.config = config = resolve(source)
            self.policy = build_policy(source.obs_space, source.act_space, config).to(config.device)
            self.arena = make_arena(config, self.policy, source)
            self.learner = make_learner(self.policy, config, make_flat_parameters(self.policy, self.arena))
            self.progress, self.total, self.rollout = Progress(), config.total_steps, None
            self.clock, self.episodes, self.sinks = PartTimer(), EpisodeMetrics(), make_sinks(config, source)
            self.collector = make_collector(self.arena, source, self.policy, self.learner, config)
        except BaseException:
            self.close()
            raise

    @property
    def step(self) -> int:
        """Environment steps collected so far."""
        return self.progress.step

    def learn(self, total_steps: int | None = None, callbacks: Callbacks = ()) -> "PPO":
        """Train until `step` reaches `total_steps` (default: the Config's), in whole iterations.

        After each, `callbacks`, one or several, get (ppo, stats); False ends training. Interrupted,
        the next call goes on with the same rollout.
        """
        sinks = *self.sinks, *as_callbacks(callbacks)
        self.total = self.config.total_steps if total_steps is None else check_total_steps(total_steps)
        if self.step >= self.total and not self._pending:
            log.warning("%d steps are done already, of %d asked for: nothing to do\n"
                        "  fix: ppo.learn(ppo.step + %d)", self.step, self.total, self.total or 1)
        try:
            while self.step < self.total or self._pending:
                stats = self._iterate()
                if any([asks_to_stop(sink(self, stats)) for sink in sinks]):
                    break
        finally:
            self.total = self.config.total_steps
        return self

    def collect(self) -> Rollout:
        """Take num_steps steps in every environment; its tensors are good until the next call."""
        self._open()
        iteration, step, _ = self.progress
        with self.clock("collect"), torch_threads(self.config.torch_threads):
            self.rollout = self.collector.collect(iteration)
        self.progress = Progress(iteration + 1, step + int(self.rollout.valid.sum()), step)
        return self.rollout

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Train on a rollout; returns the losses as floats, means over minibatches."""
        self._open()
        check_rollout(rollout, self.policy, self.progress.iteration)
        with self.clock("update"), torch_threads(self.config.update_threads):
            stats = self.learner.update(rollout, self.coefficients, self.progress.iteration - 1)
        return stats | {"losses/explained_variance": explained_variance(rollout)}

    @property
    def coefficients(self) -> Coefficients:
        """Learning rates, clip ranges and weights of the loss, of the iteration begun last."""
        return coefficients_at(self.config, 1.0 - min(self.progress.begin / (self.total or 1), 1.0))

    @property
    def lr(self) -> float:
        """The learning rate of the iteration that began last, as the KL has changed it since."""
        return self.learner.pace.rates(self.coefficients)[0]

    def evaluate(self, episodes: int = 100, deterministic: bool = True, env=None) -> Evaluation:
        """Play episodes in environments of their own; always the same ones, training is untouched.

        `env`: an id or callable to play in, such as where a VectorEnv was trained on; ConfigError
        where it has other spaces or masks.
        """
        with torch_threads(self.config.torch_threads):
            return evaluate(self.policy, evaluation_factories(self.source, env), self.config.seed, episodes,
                            deterministic)

    def save(self, path: str | os.PathLike) -> None:
        """Write the policy, with everything `fastppo.load` needs, to a safetensors file.

        A missing folder is made, and that is said. Raises CheckpointError where it cannot be.
        """
        save_policy(self.policy, self.config, path)

    def close(self) -> None:
        """Stop the workers and close the sinks; twice is fine."""
        if self.collector is not None:
            self.collector.vec.close()
            self.arena.close()
        self.source.close()
        while self.sinks:
            self.sinks.pop().close()
        self.collector = None

    def __exit__(self, *_) -> None:
        self.close()

    __repr__ = describe

    def _iterate(self) -> dict[str, float]:
        """One iteration and its metrics; a rollout an interrupt left without update goes first."""
        self._open()
        rollout = self.rollout if self._pending else self.collect()
        self.episodes.take(self.arena["total"], self.arena["length"], read_infos(self.arena),
                           self.progress.iteration)
        stats = self.update(rollout) | {"charts/learning_rate": self.lr}
        return stats | self.episodes.stats() | self.clock.stats(self.step)

    @property
    def _pending(self) -> bool:
        return self.learner.finished < self.progress.iteration - 1

    def _open(self) -> None:
        if self.collector is None:
            raise ClosedError("this PPO has been closed", "make a new one, or load what you saved")
