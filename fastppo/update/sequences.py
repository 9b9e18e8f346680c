"""Batches of a policy with memory: whole environments, each with its rows in time order.

A sequence begins where a rollout or an episode begins, from the recurrent state recorded there
[37 details, numbers 35 and 36].
"""

from typing import Any, Iterator

import torch
from torch import Tensor

from fastppo.collect import Rollout
from fastppo.networks.recurrent import Sequences
from fastppo.spaces.leaves import tree_map
from fastppo.update.batches import Batch, split_between


class SequenceBatch(Batch):
    """A Batch that is shuffled and split by whole environments."""

    __slots__ = ()

    @property
    def units(self) -> int:
        """The number of environments."""
        return len(self._environments()[0])

    def shuffled(self, order: Tensor) -> Batch:
        """The environments in random order; `order` is a permutation i64 [b] of the samples."""
        starts, which = self._environments()
        place = order.argsort()[starts]  # an environment's place is that of its first sample
        return self.rows(place[which].argsort(stable=True))

    def split(self, count: int) -> Iterator[Batch]:
        """`count` parts of whole environments; fewer where there are fewer environments."""
        return split_between(self, count, [*self._environments()[0].tolist(), len(self.adv)])

    def _environments(self) -> tuple[Tensor, Tensor]:
        """(first sample [k] of each environment, number of its environment for each sample [b])."""
        env = self.sequences.env
        begins = torch.cat([torch.ones_like(env[:1]), env.diff()]) != 0
        return begins.nonzero()[:, 0], begins.cumsum(0) - 1


def flatten_sequences(rollout: Rollout, device: torch.device) -> SequenceBatch:
    """The valid rows of a rollout [t e ...] as samples [b ...], one environment after the other."""
    numbers = torch.arange(rollout.valid.numel(), device="cpu").reshape(rollout.valid.shape)
    which = numbers.T[rollout.valid.T]

    def rows(x: Any) -> Any:
        return x.flatten(0, 1).index_select(0, which.to(x.device)).to(device)
    first = torch.ones_like(rollout.valid)
    first[1:] = (rollout.term | rollout.trunc | ~rollout.valid)[:-1]
    env = torch.arange(first.shape[1], device="cpu").expand(first.shape)
    fields = (tree_map(rows, getattr(rollout, name)) for name in Batch._fields[:-1])
    return SequenceBatch(*fields, Sequences(rows(rollout.state), rows(first), rows(env)))
