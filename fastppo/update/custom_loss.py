"""The loss a Config asks for: a function of one signature, whoever wrote it.

    loss(fresh, batch, coefficients) -> (loss [], statistics by name)

`fresh` is what the policy says now of the samples that `batch` recorded (batches.Fresh and Batch),
`coefficients` the numbers of this iteration (pace.Coefficients). The loss must be a mean over the
samples. The statistics, a single number each, are shown as losses/<name>; the names in MEASURED are
taken.
"""

import functools
import inspect
from typing import Any, Callable

import torch
from torch import Tensor, nn

from fastppo.config import Config
from fastppo.errors import ModelError
from fastppo.networks.value_normalisation import PopArt, normalised_loss
from fastppo.update.batches import Batch, Fresh
from fastppo.update.coefficients import Coefficients

Weighed = tuple[Tensor, dict[str, Tensor]]
Loss = Callable[[Fresh, Batch, Coefficients], Weighed]
MEASURED = ("entropy", "approx_kl", "old_approx_kl", "clipfrac", "grad_norm", "epochs",
            "explained_variance")  # shown whatever the loss is
METHODS = {"__init__": "self, policy, config, flat",  # of a Learner, as they are called
           "evaluate_actions": "self, batch", "loss": "self, fresh, batch, coefficients"}
LOSS_FIX = "return (loss, {}), the loss a mean over samples that depends on fresh.logp or fresh.val"


def configured_loss(config: Config, policy: nn.Module, loss: Loss) -> Loss:
    """The loss that a Config asks for: the learner's own `loss`, unless a setting changes it."""
    if callable(config.loss) and not isinstance(config.loss, type):
        loss = functools.partial(_checked, config.loss, [])
    elif isinstance(config.loss, type):
        loss = functools.partial(_checked, loss, [])
    return normalised_loss(loss, policy.net) if isinstance(policy.net, PopArt) else loss


def check_loss(config: Config) -> None:
    """Raise ModelError for a loss of the user's that cannot be called as it will be."""
    if isinstance(config.loss, type):
        for name, given in METHODS.items():
            _check_signature(getattr(config.loss, name), name, given)
    elif callable(config.loss):
        _check_signature(config.loss, "loss", "fresh, batch, coefficients")


def _check_signature(made: Callable, name: str, given: str) -> None:
    try:
        inspect.signature(made).bind(*given.split(", "))
    except ValueError:  # some callables have no signature to read
        return
    except TypeError as error:
        raise ModelError(f"the loss {made!r} is called with ({given}), but has the signature"
                         f" {inspect.signature(made)}: {error}",
                         f"def {name}({given}): ...") from error


def _checked(loss: Callable, names: list[tuple[str, ...]], fresh: Fresh, batch: Batch,
             now: Coefficients) -> Weighed:
    """What a function of the user's returns, if it is a loss; else a ModelError says what it is."""
    _check_fresh(loss, fresh, len(batch.adv))
    try:
        made = loss(fresh, batch, now)
    except Exception as error:  # a user's function may raise anything
        raise ModelError(f"the loss {loss!r} failed: {type(error).__name__}: {error}",
                         "mend it where the exception above was raised") from error
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[1], dict):
        raise ModelError(f"the loss {loss!r} returned {type(made).__name__}, not (loss,"
                         " statistics)", LOSS_FIX)
    value, stats = made
    if not isinstance(value, Tensor) or value.shape or not value.requires_grad:
        what = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) \
            else type(value).__name__
        raise ModelError(f"the loss {loss!r} returned {what}, not a single number that gradients"
                         " flow from", LOSS_FIX)
    names[:] = names or [tuple(stats)]
    if tuple(stats) != names[0]:
        raise ModelError(f"the loss {loss!r} returned the statistics {list(stats)}, and"
                         f" {list(names[0])} before", "return the same ones in the same order")
    return value, {name: _statistic(loss, name, x, value) for name, x in stats.items()}


def _check_fresh(loss: Callable, fresh: Any, rows: int) -> None:
    """Raises ModelError if `evaluate_actions` of the user's did not return three numbers a sample."""
    shapes = [list(x.shape) if isinstance(x, Tensor) else type(x).__name__ for x in fresh] \
        if isinstance(fresh, Fresh) else type(fresh).__name__
    if shapes != [[rows]] * 3:
        raise ModelError(f"evaluate_actions of the loss {loss!r} returned {shapes}, not a Fresh of (logp,"
                         f" entropy, value), [{rows}] each", "return Fresh(logp, ent, val)")


def _statistic(loss: Callable, name: str, x: Any, like: Tensor) -> Tensor:
    """A statistic [] of a user's loss; ModelError where it is no number, or its name is taken."""
    told = f"the loss {loss!r} returned the statistic {name!r}"
    if name in MEASURED:
        raise ModelError(f"{told}, but that is measured already, of every loss",
                         f'call it "my_{name}", or leave it out')
    try:
        found = torch.as_tensor(x, dtype=like.dtype, device=like.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"{told}, which is {x!r}, no number", "leave it out, or return a number"
                         " or a tensor of one") from error
    if found.shape:
        raise ModelError(f"{told}, which is of shape {list(found.shape)}, not a single number",
                         f'return its mean: "{name}": x.mean()')
    return found
