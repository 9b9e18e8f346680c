"""Batches: samples as the rollout recorded them, and what the policy computes for them now.

Of a policy with memory a batch is whole environments, each with its rows in time order. A sequence
begins where a rollout or an episode begins, from the recurrent state recorded there [37 details,
numbers 35 and 36].
"""

from typing import Any, Iterator, NamedTuple, Sequence

import torch
from torch import Tensor

from fastppo.collect import Rollout
from fastppo.machine import kernels
from fastppo.networks.recurrent import Sequences
from fastppo.spaces.leaves import tree_map


class Batch(NamedTuple):
    """Samples of a rollout, as it recorded them."""

    obs: Any  # [b ...], or a structure of tensors; FrameStacks before it is split
    act: Tensor  # [b] or [b a]
    logp: Tensor  # [b]
    val: Tensor  # [b]
    adv: Tensor  # [b]
    ret: Tensor  # [b]
    sequences: tuple = ()  # recurrent.Sequences of a policy with memory

    def rows(self, which: Tensor | slice) -> "Batch":
        """The samples that `which` selects."""
        def pick(x: Tensor) -> Tensor:  # of images index_select takes an eighth of the time
            return x[which] if isinstance(which, slice) else x.index_select(0, which)
        return type(self)(*(tree_map(pick, field) for field in self))

    @property
    def ends(self) -> Sequence[int]:
        """Where it can be split: the first sample of each unit, and the number of samples."""
        return range(len(self.adv) + 1)

    def order(self, seed: int, iteration: int, epoch: int) -> Tensor:
        """The permutation i64 [b] of the samples for an epoch, on their device.

        A GPU copies it by itself, from memory that torch uses again only after that.
        """
        count, device = len(self.adv), self.adv.device
        order = torch.empty(count, dtype=torch.int64, device="cpu",
                            pin_memory=device.type == "cuda")
        kernels.permutation(seed, iteration, epoch, order.numpy())
        return order.to(device, non_blocking=True)

    def placed(self, order: Tensor) -> Tensor:
        """The samples i64 [b] in the order of their shuffled units, of a random permutation [b]."""
        return order

    def shuffled(self, order: Tensor) -> "Batch":
        """The samples in `order`, a random permutation i64 [b]."""
        return self.rows(self.placed(order))

    def split(self, count: int) -> Iterator["Batch"]:
        """`count` parts, whose units differ by one at most; fewer where there are fewer units."""
        for first, last in self.parts(count):  # one part at a time: images are copied
            yield self.rows(slice(first, last))

    def parts(self, count: int) -> Sequence[tuple[int, int]]:
        """The first sample of each part of `split`, and the one after its last."""
        ends = self.ends
        units, parts = len(ends) - 1, min(count, len(ends) - 1)
        ends = [ends[units * i // parts] for i in range(parts + 1)]
        return [*zip(ends, ends[1:])]


class PolicyOutput(NamedTuple):
    """What the policy computes for samples now; gradients flow from here."""

    logp: Tensor  # [b] log-probability of the recorded action
    ent: Tensor  # [b] entropy of the action distribution
    val: Tensor  # [b] value


def flatten_rollout(rollout: Rollout, device: torch.device | None = None) -> Batch:
    """The valid rows of a rollout [t e ...] as samples [b ...] on `device`, in time order.

    Without a `device` each field is where the rollout has it.
    """
    valid = rollout.valid.reshape(-1)
    which = valid.nonzero()[:, 0]

    def rows(x: Any) -> Any:
        x = x.flatten(0, 1).narrow(0, 0, len(valid))
        x = x if valid.all() else x.index_select(0, which.to(x.device))
        # A GPU reads later: the rollout stays as it is until the statistics have been read.
        return x if device is None else x.to(device, non_blocking=device.type == "cuda")
    return Batch(*(tree_map(rows, getattr(rollout, name)) for name in Batch._fields[:-1]))


def normalise_advantages(adv: Tensor) -> Tensor:
    """Advantages [b] with mean 0 and std 1 (ddof 1); unchanged under 2 rows, 0 where constant."""
    if len(adv) < 2:
        return adv
    low, high = adv.aminmax()
    # A constant's deviations are rounding errors, which a division by their std would make 1.
    return ((adv - adv.mean()) / (adv.std() + 1e-8)).masked_fill_(low == high, 0.0)


class SequenceBatch(Batch):
    """A Batch that is shuffled and split by whole environments."""

    __slots__ = ()

    @property
    def ends(self) -> Sequence[int]:
        """The first sample of each environment, and the number of samples."""
        return [*self._environments()[0].tolist(), len(self.adv)]

    def placed(self, order: Tensor) -> Tensor:
        """See Batch: the environments in random order."""
        starts, which = self._environments()
        place = order.argsort()[starts]  # an environment's place is that of its first sample
        return place[which].argsort(stable=True)

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
    env = rows(torch.arange(numbers.shape[1], device="cpu").expand(numbers.shape))
    first, ended = torch.ones_like(env, dtype=torch.bool), rows(rollout.term | rollout.trunc)
    first[1:] = ended[:-1] | (env[1:] != env[:-1])
    fields = (tree_map(rows, getattr(rollout, name)) for name in Batch._fields[:-1])
    return SequenceBatch(*fields, Sequences(rows(rollout.state), first, env))
