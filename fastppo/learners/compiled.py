"""The learner with compiled minibatches, equal to torch's within 1e-5."""

import numpy as np
import torch
from torch import Tensor, nn

from fastppo.collect import Rollout
from fastppo.config import Config
from fastppo.envs.observations import clamps_normalised_only
from fastppo.errors import ModelError
from fastppo.learner import STATS, Batch, Learner
from fastppo.learners.shared_minibatches import OwnMinibatches, SharedMinibatches
from fastppo.machine import kernels
from fastppo.networks.heads import COMPILED_HEADS
from fastppo.networks.mlp import MLP
from fastppo.policy import Policy
from fastppo.stepping.actors import PolicyPlan
from fastppo.update.coefficients import Coefficients
from fastppo.update.flat_parameters import FlatParameters
from fastppo.update.optimizers import Adam
from fastppo.workers.update_helper import shared_memory


def can_compile(policy: nn.Module, flat: FlatParameters) -> bool:
    """Whether the compiled learner can train this policy: a built-in MLP, on the CPU, no mask."""
    return (kernels.COMPILED and isinstance(policy, Policy) and flat.values.device.type == "cpu"
            and policy.observer.layout.mask is None and policy_plan(policy, flat) is not None)


def policy_plan(policy: Policy, flat: FlatParameters) -> PolicyPlan | None:
    """What the compiled twin needs, or None where only torch can run this network."""
    log_std, observer = getattr(policy.head, "log_std", None), policy.observer
    known = (type(policy.net) is MLP and policy.net.final_tanh is None
             and type(policy.head) in COMPILED_HEADS
             and clamps_normalised_only(observer.layout, observer.norm, observer.limit))
    if not known or log_std is not None and id(log_std) not in flat.offsets:
        return None
    return PolicyPlan(policy.net.plan(flat.offsets),
                  None if log_std is None else flat.offsets[id(log_std)], observer.limit)


def update_coefficients(config: Config, now: Coefficients) -> kernels.UpdateCoefficients:
    """The coefficients of the loss and of Adam, as the compiled update takes them."""
    return kernels.UpdateCoefficients(
        now.clip_range, now.clip_range_vf, now.entropy_coef, now.value_coef, now.dual_clip,
        config.max_grad_norm, config.norm_advantages == "minibatch", Adam.BETAS, config.adam_eps)


class CompiledLearner(Learner):
    """Learner with compiled minibatches, on the same vectors: equal to it within 1e-5.

    Raises ModelError for a policy it does not serve.
    """

    def __init__(self, policy: nn.Module, config: Config, flat: FlatParameters):
        super().__init__(policy, config, flat)
        if not can_compile(policy, flat):
            raise ModelError("the compiled learner serves built-in MLPs on the CPU alone",
                             "--learner=torch")
        self.recipe = policy_plan(policy, flat)
        self.memory = kernels.update_memory(
            *self.recipe[:2], flat.values.numpy(), self.optimizer.mean.numpy(),
            self.optimizer.square.numpy())
        self.terms, self.shards = update_coefficients(config, self.now), OwnMinibatches()

    def share(self, shards: SharedMinibatches) -> None:
        """From now on compute minibatches together with workers: the same bits, sooner."""
        self.shards, self.memory = shards, shared_memory(self.memory, shards.arena)

    def _epochs(self, rollout: Rollout, now: Coefficients, iteration: int) -> dict[str, float]:
        self.terms = update_coefficients(self.config, now)
        with self.shards.session(self.terms):
            return super()._epochs(rollout, now, iteration)

    def _epoch(self, batch: Batch, order: Tensor) -> Tensor:
        """The mean statistics of one pass over the shuffled samples, minibatch after minibatch."""
        rows, samples = len(order), self._samples(batch)
        count = min(self.config.num_minibatches, rows)
        shards = self.shards.among(samples, order.numpy())
        update = kernels.MinibatchUpdate(*self.recipe, self.memory, samples, order.numpy(), self.terms)
        stats = np.empty((count, len(STATS)), np.float32)
        for i in range(count):
            self.optimizer.steps += 1
            shards.minibatch(update, rows * i // count, rows * (i + 1) // count,
                             self.optimizer.steps, self.optimizer.lr, stats[i])
        return torch.from_numpy(stats).mean(0)

    def _samples(self, batch: Batch) -> kernels.UpdateSamples:
        observer, rest = self.policy.observer, (x.numpy() for x in batch[1:-1])
        obs = observer.encoding.encode(observer.layout.split(batch.obs))
        moments = (observer.shift, observer.scale) if observer.norm else ()
        return kernels.UpdateSamples(obs, *rest, *(x.numpy() for x in moments))
