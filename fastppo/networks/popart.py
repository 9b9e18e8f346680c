"""PopArt: a critic whose values and targets are normalised by the moments of all returns.

The network's value is normalised; what `forward` returns, and all that is recorded, has the scale
of the rewards. When the moments change, the critic's last layer changes so that no value does.
Source: van Hasselt 2016, arXiv:1602.07714 (Pop-Art), with moments over all returns.
"""

from typing import Callable, Sequence

import torch
from torch import Tensor, nn

from fastppo.networks.normaliser import VARIANCE_EPSILON, RunningMoments
from fastppo.networks.recurrent import SequencePacking, unroll_network


class PopArt(RunningMoments):
    """A network whose value [b] is multiplied by `spread`, the std of the returns, plus `shift`.

    `shift` is their mean. `has_critic` says that the value is the output of the network's layer
    `critic`, a Linear. If that has a bias it is changed with the moments, so that no value changes;
    any other critic's values change with the moments.
    """

    def __init__(self, net: nn.Module, has_critic: bool):
        super().__init__(1)
        self.net, self.keeps_values = net, has_critic and net.critic.bias is not None
        self.recorded_with = None  # (shift, spread) of recorded values; None: nothing to convert
        self.register_buffer("shift", torch.zeros(1, dtype=torch.float32))
        self.register_buffer("spread", torch.ones(1, dtype=torch.float32))

    def forward(self, *inputs):
        """The network's outputs, with the value in the scale of the rewards."""
        params, val, *rest = self.net(*inputs)
        return params, val * self.spread + self.shift, *rest

    def unroll(self, obs, state: Tensor, packing: SequencePacking) -> tuple[Tensor, Tensor]:
        """(action parameters [b p], value [b]) of packed sequences."""
        params, val = unroll_network(self.net, obs, state, packing)
        return params, val * self.spread + self.shift

    def normalise(self, val: Tensor) -> Tensor:
        """Values or returns [b], normalised."""
        return (val - self.shift) / self.spread

    def convert_recorded(self, val: Tensor) -> Tensor:
        """Values recorded before the last `learn`, as the network returns them since then."""
        if self.recorded_with is None:
            return val
        shift, spread = (x.to(val.device) for x in self.recorded_with)
        normalised = (val - shift) / spread
        return normalised * self.spread.to(val.device) + self.shift.to(val.device)

    @torch.no_grad()
    def learn(self, ret: Tensor) -> None:
        """Merges returns f32 [b] into the moments; keeps all values if the critic can.

        The first returns change the values of any critic: those of an untrained one are not worth
        keeping.
        """
        before, first = (self.shift.clone(), self.spread.clone()), not self.count.item()
        self.merge(ret.cpu().numpy()[:, None])
        self.recorded_with = before if first or not self.keeps_values else None
        if self.recorded_with is None:
            (shift, spread), critic = before, self.net.critic
            critic.weight.mul_(spread / self.spread)
            critic.bias.mul_(spread).add_(shift - self.shift).div_(self.spread)

    def restore(self, state: Sequence[Tensor]) -> None:
        """Replaces the moments by a `state`; the caller restores the weights."""
        super().restore(state)
        std = (self.m2 / self.count + VARIANCE_EPSILON).sqrt()
        self.shift.copy_(self.mean)
        self.spread.copy_(torch.where(self.count > 0, std, 1.0))


def normalised_loss(loss: Callable, net: PopArt) -> Callable:
    """The same loss with values, recorded values and targets normalised by `net`."""
    def normalised(output, batch, coefs):
        batch = batch._replace(val=net.normalise(batch.val), ret=net.normalise(batch.ret))
        return loss(output._replace(val=net.normalise(output.val)), batch, coefs)
    return normalised
