"""PPO: collect, update, report, until the steps are done. Start reading here.

    while step < total:
        rollout = collect()        T steps of E environments, advantages and returns
        stats = update(rollout)    epochs of clipped minibatch steps
"""

from fastppo.build.given_settings import one_environment
from fastppo.collect import Rollout
from fastppo.evaluation.evaluate import Evaluation, checked_call, evaluate
from fastppo.evaluation.factories import evaluation_factories
from fastppo.networks.torch_state import torch_threads
from fastppo.outputs.callbacks import Callbacks, learning, rollout_collected
from fastppo.outputs.metrics import explained_variance
from fastppo.outputs.saved_run import SavedRun
from fastppo.update.coefficients import Coefficients, coefficients_of


class PPO(SavedRun):
    """Proximal policy optimisation [Schulman 2017, arXiv:1707.06347] on an environment.

    `env`: a Gymnasium id, class, callable, list of callables, or a gymnasium VectorEnv; `settings`:
    fields of Config by name. `init_from`: the file of a policy to start with; `checkpoint`: see
    `resume`. Nothing is printed or written unless `run_dir`, `logger` or `progress` is given.
    Raises subclasses of fastppo.Error; close() it, or use `with`.
    """

    def __init__(self, *env, checkpoint=None, init_from=None, **settings):
        super().__init__(one_environment(env, settings), settings, checkpoint, init_from)

    def learn(self, total_steps: int | None = None, callbacks: Callbacks = (), **others) -> "PPO":
        """Trains until `step` reaches `total_steps` (default: the Config's), in whole iterations.

        After each iteration `callbacks`, one or several, are called with (ppo, stats); False ends
        training. They may also be objects, see outputs/callbacks.py. After an interrupt the next
        call continues with the same rollout.
        """
        with learning(self, total_steps, callbacks, others) as ended_by:
            while self.step < self.total or self.pending:
                if ended_by(self._iterate()):
                    break
        return self

    def collect(self) -> Rollout:
        """Takes num_steps steps in every environment; its tensors are good until the next call."""
        self.check_open()
        with self.clock("collect"), torch_threads(self.config.torch_threads, self.tf32):
            return self.attempt(self.collector.collect)

    def update(self, rollout: Rollout) -> dict[str, float]:
        """Trains on a rollout; returns the losses as floats, means over minibatches."""
        self.check_rollout(rollout)
        with self.clock("update"), torch_threads(self.config.update_threads, self.tf32):
            stats = self.attempt(lambda: self.learner.update(
                rollout, self.coefficients, self.progress.iteration - 1))
        return stats | {"losses/explained_variance": explained_variance(rollout, self.ranks)}

    @property
    def coefficients(self) -> Coefficients:
        """Learning rates, clip ranges and loss weights of the iteration that began last."""
        return coefficients_of(self.config, self.progress.begin, self.total)

    @property
    def lr(self) -> float:
        """The learning rate of the iteration that began last, adapted to the KL since then."""
        return self.learner.kl_control.rates(self.coefficients)[0]

    @checked_call
    def evaluate(self, episodes: int = 100, deterministic: bool = True, env=None,
                 report=None) -> Evaluation:
        """Plays episodes in environments of their own; always the same ones, training is untouched.

        `env`: an id or callable to play in, needed if a VectorEnv was trained on; ConfigError if it
        has other spaces or masks. `report` is called with the returns of those that have ended;
        None: where progress is shown, a line says every ten seconds how many these are.
        """
        with torch_threads(self.config.torch_threads, self.tf32), \
                self.reporting(episodes, report) as report:
            return evaluate(self.policy, evaluation_factories(self.source, env), self.config.seed,
                            episodes, deterministic, report)

    def _iterate(self) -> dict[str, float]:
        """Runs one iteration, or finishes an interrupted one; returns its metrics."""
        self.check_open()
        rollout = self.rollout if self.pending else self.collect()
        rollout_collected(self, rollout)
        stats = self.update(rollout) | {"charts/learning_rate": self.lr}
        return stats | self.episodes.stats() | self.clock.stats(self.step) | self.fault_stats()
