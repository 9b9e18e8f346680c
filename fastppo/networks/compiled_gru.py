"""A GRU over packed sequences on the CPU: a compiled loop in place of torch's many small calls.

The products with the inputs, and the gradients of the weights, are computed for all samples at
once. Only the part that needs the previous step, the hidden part, is in csrc/gru/gru.c.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from fastppo.machine import kernels


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
