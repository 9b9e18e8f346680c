"""Statistics of an update: means over minibatches and epochs, and their report."""

import math
from typing import Sequence

import torch
from torch import Tensor

from fastppo.errors import Error, ModelError

Statistics = dict[str, Tensor]  # scalars by name
LOSSES = ("policy_loss", "value_loss", "entropy", "approx_kl", "old_approx_kl", "clipfrac",
          "grad_norm")


def average(statistics: Sequence[Statistics]) -> Statistics:
    """The mean of each statistic; all have the same names."""
    names = [*statistics[0]]
    if any(one.keys() != {*names} for one in statistics):
        raise ModelError("the loss returned other statistics than in an earlier minibatch",
                         "return numbers by the same names in every minibatch")
    rows = torch.stack([torch.stack([one[name] for name in names]) for one in statistics])
    return dict(zip(names, rows.mean(0)))


def loss_report(epochs: Sequence[Statistics]) -> dict[str, float]:
    """The metrics losses/<name>: means over the epochs, and their number.

    NaN if there were no epochs, because the rollout had no valid row. Raises Error if a gradient
    was not finite.
    """
    means = average(epochs) if epochs else dict.fromkeys(LOSSES, math.nan)
    if epochs and not means["grad_norm"].isfinite():
        raise Error("the gradient is not finite; the weights are as they were before the update",
                    ("check the rewards and a model of your own", "lower the learning rate"))
    report = {f"losses/{name}": float(mean) for name, mean in means.items()}
    return report | {"losses/epochs": float(len(epochs))}
