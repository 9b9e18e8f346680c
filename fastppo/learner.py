"""The clipped objective, as pure functions of tensors, and the only backward pass there is.

    loss = policy - entropy_coef * mean entropy + value_coef * value
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from . import kernels
from .collect import Rollout
from .config import Config
from .errors import Error
from .flat import Adam, Flat
from .spaces import mapped

STATS = ("policy_loss", "value_loss", "entropy", "approx_kl", "old_approx_kl", "clipfrac",
         "grad_norm")


class Batch(NamedTuple):
    """What the rollout recorded of some samples."""

    obs: Any  # [b ...], or a structure of tensors
    act: Tensor  # [b] or [b a]
    logp: Tensor  # [b]
    val: Tensor  # [b]
    adv: Tensor  # [b]
    ret: Tensor  # [b]

    def rows(self, which: Tensor | slice) -> "Batch":
        """Some of the samples."""
        return Batch(*(mapped(lambda x: x[which], field) for field in self))


def normalised(adv: Tensor) -> Tensor:
    """Advantages [b] with mean 0 and std 1 (ddof 1); as they are under 2 rows, 0 where constant."""
    if len(adv) < 2:
        return adv
    low, high = adv.aminmax()
    # A constant's deviations are rounding errors, which dividing by their std would blow up to 1.
    return torch.where(low == high, 0.0, (adv - adv.mean()) / (adv.std() + 1e-8))


def policy_loss(log_ratio: Tensor, adv: Tensor, clip_range: float) -> Tensor:
    """mean(max(-adv * ratio, -adv * clip(ratio, 1 - eps, 1 + eps))) [Schulman 2017, eq. 7]."""
    ratio = log_ratio.exp()
    return torch.max(-adv * ratio, -adv * ratio.clamp(1 - clip_range, 1 + clip_range)).mean()


def value_loss(val: Tensor, batch: Batch, clip_range_vf: float | None) -> Tensor:
    """0.5 * mean((val - ret)^2), or of the larger error with val clipped around batch.val."""
    error = (val - batch.ret).square()
    if clip_range_vf is not None:
        near = batch.val + (val - batch.val).clamp(-clip_range_vf, clip_range_vf)
        error = torch.max(error, (near - batch.ret).square())
    return 0.5 * error.mean()


def total_loss(policy: nn.Module, batch: Batch, config: Config) -> tuple[Tensor, Tensor]:
    """(loss, statistics [6] in the order of STATS) of a minibatch; batch.adv is taken as it is."""
    logp, ent, val = policy.judge(batch.obs, batch.act)
    log_ratio, entropy = logp - batch.logp, ent.mean()
    gain = policy_loss(log_ratio, batch.adv, config.clip_range)
    error = value_loss(val, batch, config.clip_range_vf)
    with torch.no_grad():
        ratio, old_kl = log_ratio.exp(), -log_ratio.mean()
        clipped = ((ratio - 1).abs() > config.clip_range).float().mean()
        stats = torch.stack([gain, error, entropy, ratio.mean() - 1 + old_kl, old_kl, clipped])
    return gain - config.entropy_coef * entropy + config.value_coef * error, stats


class Learner:
    """Adam on the flat vector of a policy's parameters."""

    def __init__(self, policy: nn.Module, config: Config, flat: Flat):
        self.policy, self.config, self.flat = policy, config, flat
        self.adam = Adam(flat, config.adam_eps)
        self.finished = -1  # the last iteration whose update is whole

    def update(self, rollout: Rollout, lr: float, iteration: int) -> dict[str, float]:
        """The epochs of one iteration, then its observations into the moments.

        Returns the losses, means over minibatches. Interrupted anywhere, or where a gradient is not
        finite (Error), everything is as it was before.
        """
        self.flat.check()
        observer = self.policy.observer
        values, adam, moments = self.flat.values.clone(), self.adam.state, observer.moments
        try:
            stats = self._epochs(rollout, lr, iteration)
            observer.learn(observer.seen.split(flattened(rollout, torch.device("cpu")).obs))
            self.finished = iteration
        except BaseException:
            self.flat.values.copy_(values)
            self.adam.restore(adam)
            observer.set_moments(moments)
            raise
        return stats

    def _epochs(self, rollout: Rollout, lr: float, iteration: int) -> dict[str, float]:
        batch, config = flattened(rollout, self.flat.values.device), self.config
        if config.norm_advantages == "rollout":
            batch = batch._replace(adv=normalised(batch.adv))
        rows, self.adam.lr = len(batch.adv), lr
        if not rows:  # all environments were reset, and did nothing else
            return {f"losses/{name}": math.nan for name in STATS} | {"losses/epochs": 0.0}
        order, means = torch.empty(rows, dtype=torch.int64, device="cpu"), []
        for epoch in range(config.epochs):
            kernels.permutation(config.seed, iteration, epoch, order.numpy())
            means.append(self._epoch(batch, order.to(batch.adv.device)))
            if config.target_kl and means[-1][STATS.index("approx_kl")] > 1.5 * config.target_kl:
                break
        stats = torch.stack(means).mean(0)
        if not torch.isfinite(stats[-1]):
            raise Error("the gradient is not finite; the weights are as they were before the "
                        "update", "check the environment's rewards, or lower --lr")
        names = (f"losses/{name}" for name in STATS)
        return dict(zip(names, stats.tolist())) | {"losses/epochs": float(len(means))}

    def _epoch(self, batch: Batch, order: Tensor) -> Tensor:
        """The mean statistics of one pass over the shuffled samples, minibatch by minibatch."""
        count, rows = min(self.config.num_minibatches, len(order)), len(order)
        shuffled = batch.rows(order)
        return torch.stack([self._minibatch(shuffled.rows(
            slice(rows * i // count, rows * (i + 1) // count))) for i in range(count)]).mean(0)

    @torch.enable_grad()  # whatever the host script has set
    def _minibatch(self, batch: Batch) -> Tensor:
        if self.config.norm_advantages == "minibatch":
            batch = batch._replace(adv=normalised(batch.adv))
        self.flat.grad.zero_()
        loss, stats = total_loss(self.policy, batch, self.config)
        loss.backward()
        norm = self.flat.grad.norm()
        self.flat.grad.mul_((self.config.max_grad_norm / (norm + 1e-6)).clamp(max=1.0))
        self.adam.step()
        return torch.cat([stats, norm[None]])


def flattened(rollout: Rollout, device: torch.device) -> Batch:
    """The valid rows of a rollout [t e ...] as samples [b ...] on `device`, in time order."""
    valid = rollout.valid.reshape(-1)

    def rows(x: Tensor) -> Tensor:
        x = x[:len(rollout.raw)].reshape(len(valid), *x.shape[2:])
        return (x if valid.all() else x[valid]).to(device)
    return Batch(*(mapped(rows, getattr(rollout, name)) for name in Batch._fields))
