"""The clipped objective, as pure functions of tensors, and the only backward pass there is.

    loss = policy - entropy_coef * mean entropy + value_coef * value
"""

import math

import torch
from torch import Tensor, nn

from fastppo.collect import Rollout
from fastppo.config import Config
from fastppo.errors import Error
from fastppo.machine import kernels
from fastppo.networks.value_normalisation import modules_with_moments
from fastppo.update.batches import Batch, Fresh, flatten_rollout, normalise_advantages
from fastppo.update.coefficients import Coefficients, KLControl, coefficients_at
from fastppo.update.custom_loss import Weighed, configured_loss, ratio_statistics
from fastppo.update.epoch_transforms import make_epoch_transforms
from fastppo.update.flat_parameters import FlatParameters
from fastppo.update.optimizers import make_clipping, make_optimizer
from fastppo.update.sequences import sampling_of

STATS = ("policy_loss", "value_loss", "entropy", "approx_kl", "old_approx_kl", "clipfrac",
         "grad_norm")


def policy_loss(log_ratio: Tensor, adv: Tensor, clip_range: float, dual_clip: float | None = None
                ) -> Tensor:
    """mean(max(-adv * ratio, -adv * clip(ratio, 1 - eps, 1 + eps))) [Schulman 2017, eq. 7].

    With dual_clip, where adv < 0, no more than -adv * dual_clip [Ye 2020, arXiv:1912.09729].
    """
    ratio = log_ratio.exp()
    loss = torch.max(-adv * ratio, -adv * ratio.clamp(1 - clip_range, 1 + clip_range))
    if dual_clip is not None:
        loss = torch.where(adv < 0, torch.min(loss, -adv * dual_clip), loss)
    return loss.mean()


def value_loss(val: Tensor, batch: Batch, clip_range_vf: float | None) -> Tensor:
    """0.5 * mean((val - ret)^2), or of the larger error with val clipped around batch.val."""
    error = (val - batch.ret).square()
    if clip_range_vf is not None:
        near = batch.val + (val - batch.val).clamp(-clip_range_vf, clip_range_vf)
        error = torch.max(error, (near - batch.ret).square())
    return 0.5 * error.mean()


def total_loss(fresh: Fresh, batch: Batch, now: Coefficients) -> Weighed:
    """(loss, its parts by name) of a minibatch; batch.adv is taken as it is."""
    gain = policy_loss(fresh.logp - batch.logp, batch.adv, now.clip_range, now.dual_clip)
    error = value_loss(fresh.val, batch, now.clip_range_vf)
    loss = gain - now.entropy_coef * fresh.ent.mean() + now.value_coef * error
    return loss, {"policy_loss": gain, "value_loss": error}


class Learner:
    """Steps of an optimizer on the flat vector of a policy's parameters.

    To change what it does, subclass it: `judge`, what the policy says of samples; `loss`, what is
    made of that.
    """

    def __init__(self, policy: nn.Module, config: Config, flat: FlatParameters):
        self.policy, self.config, self.flat, self.names = policy, config, flat, STATS
        self.now, self.pace, self.finished = coefficients_at(config, 1.0), KLControl(config), -1
        self.optimizer, self.clip = make_optimizer(config, flat), make_clipping(config, flat)
        self.changes = make_epoch_transforms(config, policy)
        self.loss_function = configured_loss(config, policy, self.loss)
        self.sampling = sampling_of(policy)
        self.parts = [flat, self.optimizer, self.pace, *modules_with_moments(policy)]  # all an update changes

    def judge(self, batch: Batch) -> Fresh:
        """What the policy says of a minibatch."""
        return Fresh(*self.policy.judge(batch.obs, batch.act, batch.past))

    def loss(self, fresh: Fresh, batch: Batch, now: Coefficients) -> Weighed:
        """(loss, statistics by name) of a minibatch, a mean over its samples."""
        return total_loss(fresh, batch, now)

    def update(self, rollout: Rollout, now: Coefficients, iteration: int) -> dict[str, float]:
        """The epochs of one iteration, then its observations into the moments.

        Returns the losses, means over minibatches. Interrupted anywhere, or where a gradient is not
        finite (Error), everything is as it was before.
        """
        self.flat.check()
        before = [part.state for part in self.parts]
        try:
            stats, observer = self._epochs(rollout, now, iteration), self.policy.observer
            observer.learn(observer.seen.split(flatten_rollout(rollout, torch.device("cpu")).obs))
            self.finished = iteration
        except BaseException:
            for part, state in zip(self.parts, before):
                part.restore(state)
            raise
        return stats

    def _epochs(self, rollout: Rollout, now: Coefficients, iteration: int) -> dict[str, float]:
        batch, config = self.sampling.samples(rollout, self.flat.values.device), self.config
        self.now, rows = now, len(batch.adv)
        if not rows:  # all environments were reset, and did nothing else
            return {f"losses/{name}": math.nan for name in STATS} | {"losses/epochs": 0.0}
        order, means = torch.empty(rows, dtype=torch.int64, device="cpu"), []
        for epoch in range(config.epochs):
            samples, self.optimizer.rates = batch, self.pace.rates(now)
            for change in self.changes:
                samples = change(rollout, samples, iteration, epoch)
            kernels.permutation(config.seed, iteration, epoch, order.numpy())
            means.append(self._epoch(samples, order.to(batch.adv.device)))
            if self.pace.over(means[-1][self.names.index("approx_kl")], now):
                break
        stats = torch.stack(means).mean(0)
        if not torch.isfinite(stats[-1]):
            raise Error("the gradient is not finite; the weights are as they were before the "
                        "update", "check the rewards and a model of your own, or lower --lr")
        names = (f"losses/{name}" for name in self.names)
        return dict(zip(names, stats.tolist())) | {"losses/epochs": float(len(means))}

    def _epoch(self, batch: Batch, order: Tensor) -> Tensor:
        """The mean statistics of one pass over the shuffled samples, minibatch by minibatch."""
        parts = self.sampling.cut(self.sampling.shuffled(batch, order), self.config.num_minibatches)
        return torch.stack([self._minibatch(part) for part in parts]).mean(0)

    @torch.enable_grad()  # whatever the host script has set
    def _minibatch(self, batch: Batch) -> Tensor:
        if self.config.norm_advantages == "minibatch":
            batch = batch._replace(adv=normalise_advantages(batch.adv))
        self.flat.grad.zero_()
        means = torch.zeros((), device=batch.adv.device)
        for part in self.sampling.cut(batch, self.config.num_microbatches):
            fresh, weight = self.judge(part), len(part.adv) / len(batch.adv)
            loss, stats = self.loss_function(fresh, part, self.now)
            (weight * loss).backward()
            stats = stats | ratio_statistics(fresh, part, self.now)
            means = means + weight * torch.stack([*stats.values()]).detach()
        self.names = *stats, "grad_norm"
        norm = self.clip()
        self.optimizer.step()
        return torch.cat([means, norm[None]])
