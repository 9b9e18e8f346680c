"""Action heads: from a network's parameters to actions, log-probabilities and entropies (torch).

A head has `size` (parameters it wants), `act_dtype`, and three functions of those parameters
[b p]; noise comes in as an array (see kernels.uniform and kernels.normal), no head draws.
"""

import math

import torch
from gymnasium.spaces import Discrete, Space
from torch import Tensor, nn

from .spaces import action_store, noise_size


class Categorical(nn.Module):
    """One of n actions, from unnormalised log-probabilities [b n]."""

    act_dtype = torch.int64

    def __init__(self, n: int):
        super().__init__()
        self.size = n

    def sample(self, logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(act [b], logp [b]) by inverse CDF from one uniform number a row, noise [b 1]."""
        weight = (logits - logits.amax(-1, keepdim=True)).exp()
        below = weight.cumsum(-1)
        act = (below <= noise * weight.sum(-1, keepdim=True)).sum(-1).clamp(max=self.size - 1)
        return act, self.judge(logits, act)[0]

    def judge(self, logits: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b]), nats."""
        logp = logits.log_softmax(-1)
        return logp.gather(-1, act[:, None])[:, 0], -(logp.exp() * logp).sum(-1)

    def mode(self, logits: Tensor) -> Tensor:
        """The likeliest action [b]."""
        return logits.argmax(-1)


class Gaussian(nn.Module):
    """Independent normals around means [b a], with one log std a component, free of the state."""

    act_dtype = torch.float32

    def __init__(self, size: int, log_std_init: float):
        super().__init__()
        self.size = size
        self.log_std = nn.Parameter(torch.full((size,), float(log_std_init), dtype=torch.float32))

    def sample(self, mean: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(act [b a], logp [b]) from standard normal noise [b a]."""
        act = mean + self.log_std.exp() * noise
        logp = -0.5 * noise.square() - self.log_std - 0.5 * math.log(2 * math.pi)
        return act, logp.sum(-1)

    def judge(self, mean: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b]), both summed over components, nats."""
        z = (act - mean) * (-self.log_std).exp()
        scale = self.log_std.sum() + 0.5 * self.size * math.log(2 * math.pi)
        return -0.5 * z.square().sum(-1) - scale, (scale + 0.5 * self.size).expand(len(act))

    def mode(self, mean: Tensor) -> Tensor:
        """The mean [b a]."""
        return mean


def head_of(space: Space, log_std_init: float = 0.0) -> Categorical | Gaussian:
    """The head for an action space; SpaceError where none serves it."""
    action_store(space)
    if isinstance(space, Discrete):
        return Categorical(int(space.n))
    return Gaussian(noise_size(space), log_std_init)


def size(space: Space) -> int:
    """Columns of action parameters a network must return for an action space."""
    return head_of(space).size
