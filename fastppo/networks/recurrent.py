"""Networks with memory: a cell behind a body, run for one step, or over whole sequences at once.

Sequences of unequal length are packed step by step, so that one call of the cell runs all of them
[torch.nn.utils.rnn.PackedSequence]; nothing here loops over time but for networks that cannot.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from fastppo.envs.spaces import tree_map
from fastppo.networks import compiled_gru
from fastppo.networks.mlp import ActorCritic

CELLS = {"gru": nn.GRU, "lstm": nn.LSTM}


class Sequences(NamedTuple):
    """What went before samples that lie sequence after sequence, each in time order."""

    state: Tensor  # f32 [b s] memory before the sample was seen, as recorded
    first: Tensor  # bool [b] whether a sequence begins with it
    env: Tensor  # i64 [b] environment it is of; all its sequences lie together


class SequencePacking(NamedTuple):
    """The order in which a cell takes the samples of k sequences: step by step, longest first."""

    starts: Tensor  # i64 [k] the sample that each sequence begins with
    index: Tensor  # i64 [b] the samples in that order
    back: Tensor  # i64 [b] where each sample stands in it
    sizes: Tensor  # i64 [steps] how many sequences have such a step; on the CPU

    @classmethod
    def of(cls, first: Tensor) -> "SequencePacking":
        """The packing of samples [b], of which a sequence begins at each `first`, bool [b]."""
        starts, which = first.nonzero()[:, 0], first.cumsum(0) - 1
        order = which.bincount().argsort(descending=True, stable=True)
        step = torch.arange(len(first), device=first.device) - starts[which]
        index = (step * len(starts) + order.argsort()[which]).argsort()
        return cls(starts[order], index, index.argsort(), step.bincount().cpu())


class RecurrentEncoder(nn.Module):
    """A body, and behind it a GRU or LSTM cell whose output are the features [b size].

    Its weights are orthogonal, its biases 0 [37 details, number 32], drawn from `generator`. The
    state is one row of `state_size` numbers: of an LSTM the output and the cell.
    """

    def __init__(self, body: nn.Module, kind: str, size: int,
                 generator: torch.Generator | None = None):
        super().__init__()
        self.body, self.flat, self.widths, self.size = body, body.flat, body.widths, size
        self.cell = CELLS[kind](body.size, size, dtype=torch.float32)
        self.parts = 2 if kind == "lstm" else 1
        self.state_size = self.parts * size
        for x in self.cell.parameters():
            if x.ndim == 2:
                nn.init.orthogonal_(x, generator=generator)
            else:
                nn.init.zeros_(x)

    def forward(self, seen: Any, state: Tensor) -> tuple[Tensor, Tensor]:
        """(features [b f], state [b s] after) of one step."""
        out, state = self.cell(self.body(seen)[None], self._inside(state))
        return out[0], torch.cat(state, -1)[0] if self.parts > 1 else state[0]

    def unroll(self, seen: Any, state: Tensor, packing: SequencePacking) -> Tensor:
        """The features [b f] of packed sequences; `state` [b s] as recorded."""
        features, state = self.body(seen)[packing.index], state[packing.starts]
        if compiled_gru.can_unroll(self.cell, features):
            return compiled_gru.unroll_gru(self.cell, features, state, packing.sizes)[packing.back]
        packed = PackedSequence(features, packing.sizes)
        return self.cell(packed, self._inside(state))[0].data[packing.back]

    def _inside(self, state: Tensor) -> Any:
        parts = tuple(x[None].contiguous() for x in state.chunk(self.parts, -1))
        return parts if self.parts > 1 else parts[0]


class RecurrentActorCritic(ActorCritic):
    """An ActorCritic whose bodies have memory: of actor and critic, or one that both share."""

    def __init__(self, actor_body: RecurrentEncoder, critic_body: RecurrentEncoder, *settings, **named):
        super().__init__(actor_body, critic_body, *settings, **named)
        self.sizes = [body.state_size for body in self._bodies()]
        self.state_size = sum(self.sizes)

    def forward(self, obs: Any, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(action parameters [b p], value [b], state [b s] after) of one step."""
        found = [body(obs, part) for body, part in zip(self._bodies(), self._split(state))]
        params, val = self.answers(found[0][0], found[-1][0])
        return params, val, torch.cat([after for _, after in found], -1)

    def unroll(self, obs: Any, state: Tensor, packing: SequencePacking) -> tuple[Tensor, Tensor]:
        """(action parameters [b p], value [b]) of packed sequences; `state` [b s] as recorded."""
        found = [body.unroll(obs, part, packing)
                 for body, part in zip(self._bodies(), self._split(state))]
        return self.answers(found[0], found[-1])

    def _bodies(self) -> list[RecurrentEncoder]:
        shared = self.critic_body is self.actor_body
        return [self.actor_body] if shared else [self.actor_body, self.critic_body]

    def _split(self, state: Tensor) -> tuple[Tensor, ...]:
        return state.split(self.sizes, -1)


def unroll_network(net: nn.Module, obs: Any, state: Tensor, packing: SequencePacking) -> tuple[Tensor, Tensor]:
    """(action parameters [b p], value [b]) of sequences, what the observer makes of them [b ...].

    A network of one's own is asked step by step, for all sequences that have such a step at once.
    """
    if hasattr(net, "unroll"):
        return net.unroll(obs, state, packing)
    obs, state = tree_map(lambda x: x[packing.index], obs), state[packing.starts]
    found, at = [], 0
    for size in packing.sizes.tolist():
        step = tree_map(lambda x, part=slice(at, at + size): x[part], obs)
        *answers, state = net(step, state[:size])
        found.append(answers)
        at += size
    params, val = (torch.cat(parts)[packing.back] for parts in zip(*found))
    return params, val
