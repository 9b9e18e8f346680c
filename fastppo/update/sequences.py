"""Samples of a network with memory: whole environments, their rows in time order.

A sequence begins where a rollout or an episode does, from the memory that was recorded there; what
was learnt since changes it for later steps alone [37 details, numbers 35 and 36].
"""

import torch
from torch import Tensor, nn

from fastppo.collect import Rollout
from fastppo.envs.spaces import tree_map
from fastppo.networks.recurrent import Sequences
from fastppo.update.batches import ROWS, Batch, Sampling, split_between


def sampling_of(policy: nn.Module) -> Sampling:
    """How a rollout becomes minibatches of this policy."""
    return SEQUENCES if getattr(policy, "memory", 0) else ROWS


def flatten_sequences(rollout: Rollout, device: torch.device) -> Batch:
    """The valid rows of a rollout [t e ...] as samples [b ...], one environment after the other."""
    valid = rollout.valid.T.reshape(-1)

    def rows(x: Tensor) -> Tensor:
        x = x[:len(rollout.raw)].transpose(0, 1)
        return x.reshape(len(valid), *x.shape[2:])[valid].to(device)
    first = torch.ones_like(rollout.valid)
    first[1:] = (rollout.term | rollout.trunc | ~rollout.valid)[:-1]
    env = torch.arange(first.shape[1], device="cpu").expand(first.shape)
    fields = (tree_map(rows, getattr(rollout, name)) for name in Batch._fields[:-1])
    return Batch(*fields, Sequences(rows(rollout.state), rows(first), rows(env)))


def shuffle_sequences(batch: Batch, order: Tensor) -> Batch:
    """The batch with its environments in random order; `order`, a permutation of its samples."""
    begins, which = _environments(batch)
    place = order.argsort()[begins]  # of an environment: that of its first sample
    return batch.rows(place[which].argsort(stable=True))


def split_sequences(batch: Batch, count: int) -> list[Batch]:
    """A batch in `count` parts of whole environments, or as many as it has of these."""
    return split_between(batch, count, [*_environments(batch)[0].tolist(), len(batch.adv)])


def _environments(batch: Batch) -> tuple[Tensor, Tensor]:
    """(sample [k] with which each environment begins, which of these k a sample [b] is of)."""
    env = batch.past.env
    begin = torch.cat([torch.ones_like(env[:1]), env.diff()]) != 0
    return begin.nonzero()[:, 0], begin.cumsum(0) - 1


SEQUENCES = Sampling(flatten_sequences, shuffle_sequences, split_sequences)
