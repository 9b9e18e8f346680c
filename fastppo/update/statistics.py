"""Statistics of an update: means over minibatches and epochs, and their report."""

import math
import operator
from typing import Sequence

import torch
from torch import Tensor

from fastppo.errors import NonFiniteError
from fastppo.update.batches import Batch, PolicyOutput
from fastppo.update.schedules import Coefficients

Statistics = dict[str, Tensor]  # scalars by name
LOSSES = ("policy_loss", "value_loss", "entropy", "approx_kl", "old_approx_kl", "clipfrac",
          "grad_norm")
# The stage of an update whose numbers are not finite: that of the first statistic that is not.
STAGES = (("entropy", "the logits, which actions are drawn from, are"),
          ("approx_kl", "the log-probabilities of actions are"),
          ("value_loss", "the values, or the returns, are"),
          ("policy_loss", "the loss is"), ("loss", "the loss is"), ("grad_norm", "the gradient is"))


@torch.no_grad()
def ratio_stats(fresh: PolicyOutput, batch: Batch, coefs: Coefficients) -> Statistics:
    """Mean entropy, two estimates of the KL, and the share of ratios out of the clip range.

    approx_kl = mean(ratio - 1 - log ratio), old_approx_kl = mean(-log ratio).
    """
    fall = batch.logp - fresh.logp
    change = (-fall).expm1()  # ratio - 1
    rows = fresh.ent, change + fall, fall, (change.abs() > coefs.clip_range).to(fall.dtype)
    return dict(zip(LOSSES[2:-1], torch.stack(rows).mean(1)))


def average(statistics: Sequence[Statistics], weights: Sequence[float] | None = None) -> Statistics:
    """The mean of each statistic, or its sum with `weights`; by the first one's names."""
    names = [*statistics[0]]
    rows = [torch.stack([one[name] for name in names]).detach() for one in statistics]
    if weights is None:
        return dict(zip(names, torch.stack(rows).mean(0)))
    first, *rest = map(operator.mul, rows, weights)
    return dict(zip(names, sum(rest, first)))


def check_finite(stats: Statistics) -> None:
    """Raises NonFiniteError, which names the stage, if the gradient's norm is not finite.

    On a GPU nothing is checked before the end of the update, because a check would wait for it.
    """
    if stats["grad_norm"].device.type != "cpu" or math.isfinite(stats["grad_norm"]):
        return
    stage = next(text for name, text in STAGES if name in stats and not stats[name].isfinite())
    raise NonFiniteError(f"in an update {stage} not finite; the weights are as they were before it",
                         ("check the rewards and a model or loss of your own",
                          "lower the learning rate"))


def loss_report(epochs: Sequence[Statistics], weights: Tensor) -> dict[str, float]:
    """The metrics losses/<name>: means over the epochs, and their number.

    NaN if there were no epochs, because the rollout had no valid row. Raises NonFiniteError if a
    gradient or, by an optimizer of the user's, a weight is not finite.
    """
    means = average(epochs) if epochs else dict.fromkeys(LOSSES, weights.new_full((), math.nan))
    # One read: a GPU is waited for once.
    *found, finite = torch.stack([*means.values(), weights.isfinite().all()]).cpu()
    means = dict(zip(means, found))
    if epochs:
        check_finite(means)
    if not finite:
        raise NonFiniteError("after an update weights are not finite; they are as they were before",
                             ("check an optimizer of your own", "lower the learning rate"))
    report = {f"losses/{name}": float(mean) for name, mean in means.items()}
    return report | {"losses/epochs": float(len(epochs))}
