"""Statistics of an update: means over minibatches and epochs, and their report."""

import math
from typing import Sequence

import torch
from torch import Tensor

from fastppo.errors import Error

Statistics = dict[str, Tensor]  # scalars by name
LOSSES = ("policy_loss", "value_loss", "entropy", "approx_kl", "old_approx_kl", "clipfrac",
          "grad_norm")


def average(statistics: Sequence[Statistics]) -> Statistics:
    """The mean of each statistic; all have the same names in the same order."""
    rows = torch.stack([torch.stack([*one.values()]) for one in statistics])
    return dict(zip(statistics[0], rows.mean(0)))


def loss_report(epochs: Sequence[Statistics]) -> dict[str, float]:
    """The metrics losses/<name>: means over the epochs, and their number.

    NaN if there were no epochs, because the rollout had no valid row. Raises Error if a gradient
    was not finite.
    """
    if not epochs:
        return {f"losses/{name}": math.nan for name in LOSSES} | {"losses/epochs": 0.0}
    means = {name: mean.item() for name, mean in average(epochs).items()}
    if not math.isfinite(means["grad_norm"]):
        raise Error("the gradient is not finite; the weights are as they were before the update",
                    ("check the rewards and a model of your own", "lower the learning rate"))
    return {f"losses/{name}": mean for name, mean in means.items()} | {
        "losses/epochs": float(len(epochs))}
