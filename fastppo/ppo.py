"""PPO: collect, update, report, until the steps are done. Start reading here.

    while step < total:
        rollout = collect()        T steps of E environments, advantages and returns
        stats = update(rollout)    epochs of clipped minibatch steps
"""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fastppo.collect import Collector, Progress, Rollout
from fastppo.config import Config
from fastppo.errors import ClosedError
from fastppo.learner import Learner
from fastppo.networks.torch_state import torch_threads
from fastppo.policy import Policy
from fastppo.trainer.callbacks import Callbacks, Hooks, learning, learns_already, rollout_collected
from fastppo.trainer.metrics import EpisodeMetrics, PartTimer, explained_variance
from fastppo.trainer.rollout_arrays import check_rollout
from fastppo.trainer.run import Run, restarted_on_fault
from fastppo.update.schedules import Coefficients, coefficients_at

if TYPE_CHECKING:
    from fastppo.evaluation.evaluate import Evaluation


class PPO(Run):
    """Proximal policy optimisation [Schulman 2017, arXiv:1707.06347] on an environment.

    `env`: a Gymnasium id, class, callable, list of callables, or a gymnasium VectorEnv; `settings`:
    fields of Config by name. `init_from`: the file of a policy to start with; `checkpoint`: see
    `resume`. Nothing is printed or written unless `run_dir`, `logger` or `progress` is given.
    Raises subclasses of fastppo.Error; close() it, or use `with`.
    """

    config: Config  # every None and "auto" resolved
    policy: Policy
    rollout: Rollout  # of the last collect
    collector: Collector  # environments, and the rollout that they fill
    learner: Learner
    episodes: EpisodeMetrics  # the last finished ones
    clock: PartTimer  # seconds of each part of training
    hooks: Hooks  # the callbacks of the running `learn`
    total: int  # the step at which `learn` ends
    reset_options: Any  # of the episodes that begin in the next iterations; see Config
    ranks: Any  # limits.OneProcess, or ranks.processes.Ranks under torchrun
    made: ExitStack  # closes all of them, the last first
    tf32: bool | None  # products of a GPU; None on the CPU

    def learn(self, total_steps: int | None = None, callbacks: Callbacks = ()) -> Self:
        """Trains until `step` reaches `total_steps` (default: the Config's), in whole iterations.

        After each iteration `callbacks`, one or several, are called with (ppo, stats); False ends
        training. They may also be objects, see trainer/callbacks.py. After an interrupt the next
        call continues with the same rollout.
        """
        with learning(self, total_steps, callbacks) as ended_by:
            while self.step < self.total or self.pending:
                rollout = self.rollout if self.pending else self.collect()
                rollout_collected(self, rollout)
                stats = self.update(rollout) | {"charts/learning_rate": self.lr}
                stats |= self.episodes.stats() | self.clock.stats(self.step)
                if ended_by(stats):
                    break
        return self

    def collect(self) -> Rollout:
        """Takes num_steps steps in every environment; its tensors are good until the next call."""
        self.check_open()
        with self.clock("collect"), torch_threads(self.config.torch_threads, self.tf32):
            while True:
                with restarted_on_fault(self):
                    return self.collector.collect(self.reset_options, self.total)

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Trains on a rollout; returns the losses as floats, means over minibatches."""
        self.check_open()
        if rollout is not self.rollout or self.progress.iteration < 2:
            check_rollout(self, rollout)
        stats = None
        while stats is None:
            with self.clock("update"), restarted_on_fault(self), torch_threads(
                    self.config.update_threads, self.tf32):
                stats = self.learner.update(rollout, self.coefficients, self.progress.iteration - 1)
                stats["losses/explained_variance"] = explained_variance(rollout, self.ranks)
        return stats

    def evaluate(self, episodes: int = 100, deterministic: bool = True, env=None, report=None
                 ) -> "Evaluation":
        """Plays episodes in environments of their own; always the same ones, training is untouched.

        `env`: an id or callable to play in, needed if a VectorEnv was trained on; ConfigError if it
        has other spaces or masks. `report` is called with the returns of those that have ended;
        None: where progress is shown, a line says every ten seconds how many these are.
        """
        from fastppo.evaluation.evaluator import evaluate_trainer
        with torch_threads(self.config.torch_threads, self.tf32):
            return evaluate_trainer(self, episodes, deterministic, env, report)

    def predict(self, obs: Any = None, *options: Any, **others: Any) -> Any:
        """The action of the policy as it is for one observation or a batch; see Policy.predict."""
        return self.policy.predict(obs, *options, **others)

    def value(self, obs: Any) -> Any:
        """The value of one raw observation or of each of a batch; see Policy.value."""
        return self.policy.value(obs)

    def save(self, path: str | os.PathLike = "") -> Path:
        """Writes the policy, with all that `fastppo.load` needs, to a safetensors file; its path.

        A missing folder is made, with a warning. Raises CheckpointError if it cannot be written.
        """
        from fastppo.runs.policy_file import save_policy
        return save_policy(self.policy, self.config, path)

    def checkpoint(self, path: str | os.PathLike) -> None:
        """Writes the state after the last complete iteration to a file, for `resume`.

        A missing folder is made, with a warning. Raises CheckpointError if it cannot be written; an
        older file is then as it was.
        """
        from fastppo.runs.checkpoint import write_checkpoint
        write_checkpoint(self, Path(path))

    @classmethod
    def resume(cls, path: str | os.PathLike, env: Any = None, **changes: Any) -> Self:
        """The run that wrote a checkpoint: a file, or the newest valid one in a run's folder.

        Of a folder, it goes on writing there.

        It continues bit for bit on the same machine; the running episodes are replayed. `env` is
        needed if it was not an id, and every setting that was code, such as model=MyNet. `changes`
        are settings such as total_steps or num_workers. Raises CheckpointError for a damaged file,
        ConfigError for settings that would make it another run.
        """
        return cls(env, checkpoint=path or "", **changes)

    def close(self) -> None:
        """Stops the workers and closes the sinks; a second call does nothing."""
        self.closed = True
        self.made.close()

    def check_open(self) -> None:
        """Raises ClosedError after close(), and Error for a callback: `learn` is running."""
        if self.closed:
            raise ClosedError("this PPO has been closed", "make a new one, or load what you saved")
        if self.hooks.calling:
            raise learns_already()

    @property
    def coefficients(self) -> Coefficients:
        """Learning rates, clip ranges and loss weights of the iteration that began last."""
        begin = self.progress.begin
        return coefficients_at(self.config, 1.0 - min(begin / (self.total or 1), 1.0), begin)

    @property
    def lr(self) -> float:
        """The learning rate of the iteration that began last, adapted to the KL since then."""
        return self.learner.kl_control.rates(self.coefficients)[0]

    @property
    def progress(self) -> Progress:
        """Iterations and environment steps collected so far."""
        return self.collector.progress

    @property
    def step(self) -> int:
        """Environment steps collected so far."""
        return self.progress.step

    @property
    def complete_steps(self) -> int:
        """Environment steps of the complete iterations, which updates have used."""
        return self.progress.begin if self.pending else self.step

    @property
    def pending(self) -> bool:
        """True if the last rollout has not been used by an update yet."""
        return self.learner.last_iteration < self.progress.iteration - 1
