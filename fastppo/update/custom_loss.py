"""The loss of a run: the learner's own, a function of the user's, in PopArt's units if asked for.

    loss(fresh, batch, coefficients) -> (loss [], statistics by name)

`fresh` is what the current policy computes for the samples that `batch` recorded (batches.Fresh
and Batch), `coefficients` are the numbers of this iteration (coefficients.Coefficients). The loss
must be a mean over the samples. Each statistic is a number, and is shown as losses/<name>.
"""

import functools
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from fastppo.config import Config
from fastppo.networks.value_normalisation import PopArt, normalised_loss
from fastppo.update.batches import Batch, Fresh
from fastppo.update.coefficients import Coefficients
from fastppo.update.statistics import LOSSES

Weighed = tuple[Tensor, dict[str, Tensor]]
Loss = Callable[[Fresh, Batch, Coefficients], Weighed]
MEASURED = {*LOSSES, "epochs", "explained_variance"} - {"policy_loss", "value_loss"}


def configured_loss(config: Config, policy: nn.Module, loss: Loss) -> Loss:
    """`loss`, unless the Config has a function instead; in PopArt's units if the policy has it."""
    if callable(config.loss) and not isinstance(config.loss, type):
        loss = functools.partial(_user_loss, config.loss)
    return normalised_loss(loss, policy.net) if isinstance(policy.net, PopArt) else loss


def _user_loss(function: Callable, fresh: Fresh, batch: Batch, coefs: Coefficients) -> Weighed:
    """The loss and statistics that the user's `function` returns."""
    loss, stats = function(fresh, batch, coefs)
    if taken := MEASURED & stats.keys():
        raise ValueError(f"{min(taken)!r} is the name of a statistic of every loss")
    return loss, {name: torch.as_tensor(x, dtype=loss.dtype, device=loss.device).reshape(())
                  for name, x in stats.items()}


def describe_output(out: Any) -> str:
    """Type and shape of a network's or a function's output, such as (float32 [2, 3], int)."""
    if isinstance(out, (tuple, list)):
        return f"({', '.join(map(describe_output, out))})"
    if isinstance(out, Distribution):
        return f"{type(out).__name__} {list(out.batch_shape + out.event_shape)}"
    if isinstance(out, Tensor):
        return f"{str(out.dtype).removeprefix('torch.')} {list(out.shape)}"
    return type(out).__name__
