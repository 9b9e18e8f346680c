"""A critic in units of its own: values and targets normalised by the moments of all returns.

The network's value is in those units; what leaves `forward`, and all that is recorded, is as
rewards are. Where the moments move, the critic's last layer moves against them: no value changes.
Source: van Hasselt 2016, arXiv:1602.07714 (Pop-Art), with moments over all returns.
"""

from typing import Callable

import numpy as np
import torch
from torch import Tensor, nn

from fastppo.machine import kernels
from fastppo.networks.recurrent import SequencePacking, unroll_network

VARIANCE_EPSILON = 1e-8


class PopArt(nn.Module):
    """A network whose value [b] is brought from units of the returns' moments to the rewards'.

    `keeps`: its value is what its layer `critic` gives, a Linear, which moves against the moments.
    """

    def __init__(self, net: nn.Module, keeps: bool):
        super().__init__()
        self.net, self.keeps = net, keeps
        self.began = -1  # the iteration whose returns were the first
        self.flat, self.state_size = (getattr(net, name, 0) for name in ("flat", "state_size"))
        for name in ("count", "mean", "m2"):
            self.register_buffer(name, torch.zeros(1, dtype=torch.float64))
        self.register_buffer("shift", torch.zeros(1, dtype=torch.float32))
        self.register_buffer("spread", torch.ones(1, dtype=torch.float32))

    def forward(self, *inputs):
        """What the network returns, its value times the returns' std plus their mean."""
        params, val, *rest = self.net(*inputs)
        return params, val * self.spread + self.shift, *rest

    def unroll(self, obs, state: Tensor, packing: SequencePacking) -> tuple[Tensor, Tensor]:
        """The same of packed sequences."""
        params, val = unroll_network(self.net, obs, state, packing)
        return params, val * self.spread + self.shift

    def units(self, val: Tensor) -> Tensor:
        """Values or returns [b] in the critic's units."""
        return (val - self.shift) / self.spread

    def moved(self, val: Tensor, iteration: int) -> Tensor:
        """Values recorded in an iteration as they are after `learn`: the first one moved them."""
        first = iteration == self.began
        return val * self.spread.to(val.device) + self.shift.to(val.device) if first else val

    @torch.no_grad()
    def learn(self, ret: Tensor) -> None:
        """Merge returns f32 [b] into the moments; a critic that can keeps its values.

        Others move with the moments, as all do with the first of them: what an untrained critic
        says is not worth keeping.
        """
        shift, spread, first = self.shift.clone(), self.spread.clone(), not self.count.item()
        count, mean, m2 = (x.cpu().numpy().copy() for x in (self.count, self.mean, self.m2))
        kernels.merge_moments(np.ascontiguousarray(ret.cpu().numpy()[:, None]), count, mean, m2)
        self.restore(tuple(map(torch.from_numpy, (count, mean, m2))))
        if self.keeps and not first:
            critic = self.net.critic
            critic.weight.mul_(spread / self.spread)
            critic.bias.mul_(spread).add_(shift - self.shift).div_(self.spread)

    @property
    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """A copy of (count, mean, sum of squared deviations) of the returns, f64 [1]."""
        return self.count.clone(), self.mean.clone(), self.m2.clone()

    def restore(self, state: tuple[Tensor, Tensor, Tensor]) -> None:
        """Go back to a `state`; the weights are the caller's."""
        for buffer, value in zip((self.count, self.mean, self.m2), state):
            buffer.copy_(value)
        if self.count.item():
            self.shift.copy_(self.mean)
            self.spread.copy_((self.m2 / self.count + VARIANCE_EPSILON).sqrt())
        else:
            self.shift.zero_()
            self.spread.fill_(1.0)


def modules_with_moments(policy: nn.Module) -> list[nn.Module]:
    """What has moments that an update moves: the observations', and the critic's where it has."""
    return [policy.observer, *(one for one in policy.modules() if isinstance(one, PopArt))]


def normalised_loss(loss: Callable, net: PopArt) -> Callable:
    """The same loss with values, recorded ones and targets in the units of `net`'s critic."""
    def normalised(fresh, batch, now):
        return loss(fresh._replace(val=net.units(fresh.val)),
                    batch._replace(val=net.units(batch.val), ret=net.units(batch.ret)), now)
    return normalised
