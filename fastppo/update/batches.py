"""Samples: what a rollout recorded of them, what the policy says of them now, and their parts."""

from typing import Any, Callable, NamedTuple, Sequence

import torch
from torch import Tensor

from fastppo.collect import Rollout
from fastppo.envs.spaces import tree_map


class Batch(NamedTuple):
    """What the rollout recorded of some samples."""

    obs: Any  # [b ...], or a structure of tensors
    act: Tensor  # [b] or [b a]
    logp: Tensor  # [b]
    val: Tensor  # [b]
    adv: Tensor  # [b]
    ret: Tensor  # [b]
    past: tuple = ()  # recurrent.Sequenced, where the network has a memory

    def rows(self, which: Tensor | slice) -> "Batch":
        """Some of the samples."""
        return Batch(*(tree_map(lambda x: x[which], field) for field in self))


class Fresh(NamedTuple):
    """What the policy says now of some samples; gradients flow from here."""

    logp: Tensor  # [b] of what the rollout did
    ent: Tensor  # [b]
    val: Tensor  # [b]


def normalise_advantages(adv: Tensor) -> Tensor:
    """Advantages [b] with mean 0 and std 1 (ddof 1); as they are under 2 rows, 0 where constant."""
    if len(adv) < 2:
        return adv
    low, high = adv.aminmax()
    # A constant's deviations are rounding errors, which dividing by their std would blow up to 1.
    return torch.where(low == high, 0.0, (adv - adv.mean()) / (adv.std() + 1e-8))


def split_batch(batch: Batch, count: int) -> list[Batch]:
    """A batch in `count` parts, or as many as it has rows; their sizes differ by one at most."""
    return split_between(batch, count, range(len(batch.adv) + 1))


def split_between(batch: Batch, count: int, ends: Sequence[int]) -> list[Batch]:
    """A batch in `count` parts of whole units, which lie between `ends`; or as many as it has."""
    units = len(ends) - 1
    ends = [ends[units * i // min(count, units)] for i in range(min(count, units) + 1)]
    return [batch.rows(slice(first, last)) for first, last in zip(ends, ends[1:])]


def flatten_rollout(rollout: Rollout, device: torch.device) -> Batch:
    """The valid rows of a rollout [t e ...] as samples [b ...] on `device`, in time order."""
    valid = rollout.valid.reshape(-1)

    def rows(x: Tensor) -> Tensor:
        x = x[:len(rollout.raw)].reshape(len(valid), *x.shape[2:])
        return (x if valid.all() else x[valid]).to(device)
    return Batch(*(tree_map(rows, getattr(rollout, name)) for name in Batch._fields[:-1]))


class Sampling(NamedTuple):
    """How a rollout becomes minibatches: three functions."""

    samples: Callable[[Rollout, torch.device], Batch]  # of a rollout
    shuffled: Callable[[Batch, Tensor], Batch]  # by a random permutation of its rows
    cut: Callable[[Batch, int], list[Batch]]  # into parts


ROWS = Sampling(flatten_rollout, Batch.rows, split_batch)  # samples that stand for themselves
