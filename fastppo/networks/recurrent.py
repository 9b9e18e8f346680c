"""Networks with memory: an encoder and a recurrent cell, run for one step or over sequences.

Sequences of unequal length are packed step by step, so that one call of the cell runs all of them
[torch.nn.utils.rnn.PackedSequence]. On the CPU a GRU is a compiled loop in place of torch's many
small calls: products with the inputs and gradients of the weights are computed for all samples at
once, and only the hidden part, which needs the previous step, is in csrc/gru/gru.c.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from fastppo.machine import kernels
from fastppo.networks.encoders import ActorCritic
from fastppo.spaces.leaves import tree_map


class MinGRU(nn.Linear):
    """A cell whose gates depend on the input alone, called like nn.GRU: h = (1 - z) h + z n.

    n and sigmoid^-1(z) are the two halves of its linear function of the input. One product has
    those of all steps; csrc/network/scan.h runs along them. Source: Feng et al. 2024,
    arXiv:2410.01201, section 3.1.
    """

    def __init__(self, inputs: int, size: int, **options: Any):
        super().__init__(inputs, 2 * size, **options)

    def forward(self, x: Any, state: Tensor) -> tuple[Any, Tensor]:
        """(outputs, last state [1 b h]) for inputs [1 b f], or a PackedSequence, and [1 b h]."""
        packed = isinstance(x, PackedSequence)
        n, z = super().forward(x.data if packed else x).chunk(2, -1)
        if not packed:
            h = state + z.sigmoid() * (n - state)
            return h, h
        h, found, sizes = state[0], [], x.batch_sizes.tolist()
        for candidate, gate in zip(n.split(sizes), z.sigmoid().split(sizes)):
            h = h[:len(candidate)] + gate * (candidate - h[:len(candidate)])
            found.append(h)
        return PackedSequence(torch.cat(found), x.batch_sizes), h[None]


CELLS = {"gru": nn.GRU, "lstm": nn.LSTM, "mingru": MinGRU}


def can_unroll(cell: nn.Module, features: Tensor) -> bool:
    """Returns True if the kernel can run `cell` on these features; for an LSTM oneDNN is faster."""
    return (kernels.COMPILED and type(cell) is nn.GRU and features.device.type == "cpu"
            and features.dtype == torch.float32)


def unroll_gru(cell: nn.GRU, features: Tensor, state: Tensor, sizes: Tensor) -> Tensor:
    """The outputs [b h] of `cell` for packed features [b f] from `state` [k h]; see kernels.unroll.

    Equal to torch's within 1e-5, gradients too. The state gets no gradient.
    """
    x = F.linear(features, cell.weight_ih_l0, cell.bias_ih_l0)
    return _Unroll.apply(x, cell.weight_hh_l0, cell.bias_hh_l0, state, sizes)


class _Unroll(torch.autograd.Function):
    """kernels.unroll and kernels.unroll_back as one differentiable function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, state: Tensor, sizes: Tensor
                ) -> Tensor:
        """The outputs; saves what `backward` needs."""
        rows, size = len(x), weight.shape[1]
        arrays = [_array(tensor) for tensor in (sizes, x, weight, bias, state)]
        work = np.zeros(kernels.unroll_floats(size, int(sizes[0])), np.float32)
        prev, out, kept = (np.empty((rows, n * size), np.float32) for n in (1, 1, 4))
        kernels.unroll(*arrays, work, prev, kept, out)
        ctx.save_for_backward(weight)
        ctx.rest = arrays[0], prev, kept, work
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of x, weight and bias for the gradient of the outputs."""
        sizes, prev, kept, work = ctx.rest
        weight, = ctx.saved_tensors
        dx, inner = (np.empty((len(prev), len(weight)), np.float32) for _ in range(2))
        kernels.unroll_back(sizes, _array(weight), _array(dout), prev, kept, work, dx, inner)
        gates = torch.from_numpy(inner)
        return (torch.from_numpy(dx), gates.T @ torch.from_numpy(prev), gates.sum(0), None, None)


def _array(x: Tensor) -> np.ndarray:
    return x.detach().contiguous().numpy()


class Sequences(NamedTuple):
    """The recurrent state and the boundaries of samples stored sequence after sequence.

    Each sequence is in time order, and all sequences of an environment stand together.
    """

    state: Tensor  # f32 [b s] recorded before the sample's observation
    first: Tensor  # bool [b] True for the first sample of a sequence
    env: Tensor  # i64 [b] the sample's environment


class SequencePacking(NamedTuple):
    """The order in which a cell takes the samples of k sequences: step by step, longest first."""

    starts: Tensor  # i64 [k] the first sample of each sequence
    index: Tensor  # i64 [b] the samples in that order
    back: Tensor  # i64 [b] the place of each sample in it
    sizes: Tensor  # i64 [steps] the number of sequences with such a step; on the CPU

    @classmethod
    def of(cls, first: Tensor) -> "SequencePacking":
        """The packing of samples [b]; a sequence begins at each `first`, bool [b]."""
        starts, which = first.nonzero()[:, 0], first.cumsum(0) - 1
        order = which.bincount().argsort(descending=True, stable=True)
        step = torch.arange(len(first), device=first.device) - starts[which]
        index = (step * len(starts) + order.argsort()[which]).argsort()
        return cls(starts[order], index, index.argsort(), step.bincount().cpu())


class RecurrentEncoder(nn.Module):
    """An encoder followed by a recurrent cell, whose output are the features [b size].

    Weights begin orthogonal, drawn from `generator`, biases at 0 [37 details, number 32]; but those
    of a minGRU's z from 0 to -3, for memories of 2 to 21 steps [Tallec 2018,
    arXiv:1804.11188]. The state is one row of `state_size` numbers; for an LSTM these are its
    output and its cell state.
    """

    def __init__(self, body: nn.Module, kind: str, size: int,
                 generator: torch.Generator | None = None):
        super().__init__()
        self.body, self.flat, self.image_leaves = body, body.flat, body.image_leaves
        self.widths, self.size = body.widths, size
        self.cell = CELLS[kind](body.size, size, dtype=torch.float32)
        self.parts = 2 if kind == "lstm" else 1
        self.state_size = self.parts * size
        for x in self.cell.parameters():
            if x.ndim == 2:
                nn.init.orthogonal_(x, generator=generator)
            else:
                nn.init.zeros_(x)
        if kind == "mingru":
            self.cell.bias.data[size:] = torch.linspace(0, -3, size)

    def forward(self, obs: Any, state: Tensor) -> tuple[Tensor, Tensor]:
        """(features [b f], next state [b s]) of one step."""
        out, state = self.cell(self.body(obs)[None], self._cell_state(state))
        return out[0], torch.cat(state, -1)[0] if self.parts > 1 else state[0]

    def unroll(self, obs: Any, state: Tensor, packing: SequencePacking) -> Tensor:
        """The features [b f] of packed sequences; `state` [b s] as recorded."""
        features, state = self.body(obs)[packing.index], state[packing.starts]
        if can_unroll(self.cell, features):
            return unroll_gru(self.cell, features, state, packing.sizes)[packing.back]
        packed = PackedSequence(features, packing.sizes)
        return self.cell(packed, self._cell_state(state))[0].data[packing.back]

    def _cell_state(self, state: Tensor) -> Any:
        """The state as torch's cell takes it: a tensor, or for an LSTM two of them."""
        parts = tuple(x[None].contiguous() for x in state.chunk(self.parts, -1))
        return parts if self.parts > 1 else parts[0]


class RecurrentActorCritic(ActorCritic):
    """An ActorCritic with recurrent encoders: one each, or one that actor and critic share."""

    def __init__(self, actor_body: RecurrentEncoder, critic_body: RecurrentEncoder, *args):
        super().__init__(actor_body, critic_body, *args)
        self.bodies = list(dict.fromkeys((actor_body, critic_body)))
        self.state_sizes = [body.state_size for body in self.bodies]
        self.state_size = sum(self.state_sizes)

    def forward(self, obs: Any, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(action parameters [b p], value [b], next state [b s]) of one step."""
        found = [body(obs, part) for body, part in self._with_states(state)]
        params, val = self.apply_heads(found[0][0], found[-1][0])
        return params, val, torch.cat([after for _, after in found], -1)

    def unroll(self, obs: Any, state: Tensor, packing: SequencePacking) -> tuple[Tensor, Tensor]:
        """(action parameters [b p], value [b]) of packed sequences; `state` [b s] as recorded."""
        features = [body.unroll(obs, part, packing) for body, part in self._with_states(state)]
        return self.apply_heads(features[0], features[-1])

    def _with_states(self, state: Tensor) -> list[tuple[RecurrentEncoder, Tensor]]:
        return list(zip(self.bodies, state.split(self.state_sizes, -1)))


def unroll_network(net: nn.Module, obs: Any, state: Tensor, packing: SequencePacking
                   ) -> tuple[Tensor, Tensor]:
    """(action parameters [b p], value [b]) of packed sequences; `state` [b s] as recorded.

    A network without `unroll` is called once for each step, with all sequences that have this step.
    """
    if hasattr(net, "unroll"):
        return net.unroll(obs, state, packing)
    obs, state = tree_map(lambda x: x[packing.index], obs), state[packing.starts]
    found, at = [], 0
    for size in packing.sizes.tolist():
        step = tree_map(lambda x, part=slice(at, at + size): x[part], obs)
        *outputs, state = net(step, state[:size])
        found.append(outputs)
        at += size
    params, val = (torch.cat(parts)[packing.back] for parts in zip(*found))
    return params, val
