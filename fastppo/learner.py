"""The losses of PPO as pure functions of tensors, and the epochs of minibatch steps on them.

    loss = policy loss - entropy_coef * mean entropy + value_coef * value loss
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from fastppo.collect import Rollout
from fastppo.config import Config
from fastppo.networks.normaliser import RunningMoments
from fastppo.update.batches import Batch, PolicyOutput, flatten_rollout, normalise_advantages
from fastppo.update.flat_parameters import FlatParameters, restored_at_end
from fastppo.update.optimizers import make_clipping, make_optimizer
from fastppo.update.schedules import Coefficients, KLControl
from fastppo.update.statistics import Statistics, average, check_finite, loss_report, ratio_stats


def policy_loss(log_ratio: Tensor, adv: Tensor, clip_range: float, dual_clip: float | None = None
                ) -> Tensor:
    """mean(max(-adv * ratio, -adv * clip(ratio, 1 - eps, 1 + eps))) [Schulman 2017, eq. 7].

    With dual_clip, where adv < 0, no more than -adv * dual_clip [Ye 2020, arXiv:1912.09729].
    """
    ratio, cost = log_ratio.exp(), -adv
    free, held = cost * ratio, cost * ratio.detach().clamp(1 - clip_range, 1 + clip_range)
    loss = torch.where(free < held, held, free)  # torch.max halves the gradient of equals
    if dual_clip is not None:
        loss = torch.where(adv < 0, torch.min(loss, cost * dual_clip), loss)
    return loss.mean()


def value_loss(val: Tensor, batch: Batch, clip_range_vf: float | None) -> Tensor:
    """0.5 * mean((val - ret)^2), or of the larger error with val clipped around batch.val."""
    error = nn.functional.mse_loss(val, batch.ret, reduction="none")
    if clip_range_vf is not None:
        clipped = batch.val + (val - batch.val).clamp(-clip_range_vf, clip_range_vf)
        error = torch.max(error, (clipped - batch.ret).square())
    return 0.5 * error.mean()


def total_loss(output: PolicyOutput, batch: Batch, coefs: Coefficients
               ) -> tuple[Tensor, Statistics]:
    """(loss, its parts by name) of a minibatch; batch.adv is taken as it is."""
    policy = policy_loss(output.logp - batch.logp, batch.adv, coefs.clip_range, coefs.dual_clip)
    value = value_loss(output.val, batch, coefs.clip_range_vf)
    loss = policy - coefs.entropy_coef * output.ent.mean() + coefs.value_coef * value
    return loss, {"policy_loss": policy, "value_loss": value}


class Learner:
    """Minibatch steps of an optimizer on a policy's parameters, which are views of one vector.

    Subclass it to change what is optimised: override `loss` or `evaluate_actions`. `flatten` makes
    the samples of a rollout; each of `transforms` changes them before an epoch. `last_iteration` is
    the number of the last complete one, from 0 on; -1 before. For built-in MLPs on the CPU the
    subclass compiled/learner.py computes the same minibatches in C.
    """

    def __init__(self, policy: nn.Module, config: Config, flat: FlatParameters):
        self.policy, self.config, self.flat = policy, config, flat
        self.flatten, self.transforms = flatten_rollout, []
        self.optimizer, self.kl_control = make_optimizer(config, flat), KLControl(config)
        self.clip_gradient, self.last_iteration = make_clipping(config, flat), -1
        moments = (part for part in policy.modules() if isinstance(part, RunningMoments))
        self.stateful = [flat, self.optimizer, self.kl_control, *moments]

    def evaluate_actions(self, batch: Batch) -> PolicyOutput:
        """Log-probability of the recorded action, entropy and value under the policy as it is."""
        return PolicyOutput(*self.policy.evaluate_actions(batch.obs, batch.act, batch.sequences))

    def loss(self, output: PolicyOutput, batch: Batch, coefs: Coefficients
             ) -> tuple[Tensor, Statistics]:
        """(loss, statistics by name) of a minibatch, a mean over its samples."""
        return total_loss(output, batch, coefs)

    def helpers(self, rollout: Rollout, coefs: Coefficients) -> AbstractContextManager[bool]:
        """A context in which others help with the epochs, and that yields True if they do."""
        return nullcontext(False)

    def update(self, rollout: Rollout, coefs: Coefficients, iteration: int) -> dict[str, float]:
        """Runs the epochs of an iteration, then merges its observations into the moments.

        Returns the losses, means over minibatches. If it is interrupted, or a gradient is not
        finite (NonFiniteError), everything is as it was before.
        """
        self.flat.check()
        samples, epochs = self.flatten(rollout, self.flat.values.device), []
        with restored_at_end(self.stateful) as undo:  # unless undo.pop_all() was reached
            with self.helpers(rollout, coefs) as self.helped:
                for epoch in range(self.config.epochs if len(samples.adv) else 0):
                    batch, self.optimizer.rates = samples, self.kl_control.rates(coefs)
                    for transform in self.transforms:
                        batch = transform(rollout, batch, iteration, epoch)
                    order = samples.order(self.config.seed, iteration, epoch)
                    epochs.append(self._epoch(batch, order, coefs))
                    if self.kl_control.adapt(epochs[-1]["approx_kl"], coefs, epoch, samples):
                        break
            stats = loss_report(epochs, self.flat.values)
            if self.policy.observer.norm:
                # Rows in time order: the moments of the same rows differ in their last bits in
                # another order, such as that of a recurrent policy's samples.
                self.policy.observer.learn_from(flatten_rollout(rollout).obs)
            self.last_iteration = iteration
            undo.pop_all()
        return stats

    def _epoch(self, batch: Batch, order: Tensor, coefs: Coefficients) -> Statistics:
        """One pass over the shuffled samples; returns the mean statistics of its minibatches."""
        minibatches = batch.shuffled(order).split(self.config.num_minibatches)
        return average([self._minibatch(minibatch, coefs) for minibatch in minibatches])

    @torch.enable_grad()  # whatever the host script has set
    def _minibatch(self, batch: Batch, coefs: Coefficients) -> Statistics:
        """One step of the optimizer on the gradient of one minibatch."""
        if self.config.norm_advantages == "minibatch":
            batch = batch._replace(adv=normalise_advantages(batch.adv))
        self.flat.grad.zero_()
        parts = []
        for part in batch.split(self.config.num_microbatches):
            weight = batch.adv.new_full((), len(part.adv) / len(batch.adv))
            output, (params, sums) = self.evaluate_actions(part), self.flat.trained()
            loss, losses = self.loss(output, part, coefs)
            if self.flat.alone:
                grads = torch.autograd.grad(loss, params, weight, materialize_grads=True)
                torch._foreach_add_(sums, grads)  # pyright: ignore[reportPrivateImportUsage]
            else:
                (weight * loss).backward()
            parts.append((losses | ratio_stats(output, part, coefs), weight))
        stats = average(*zip(*parts)) | {"grad_norm": self.clip_gradient()}
        check_finite(stats | {"loss": loss.detach()})
        self.optimizer.step()
        return stats
