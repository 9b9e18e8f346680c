"""Networks from observations to (action parameters, value).

An encoder turns observations into features: `encoder(obs) -> [b f]`. Its attributes: `size` is f;
`flat` is True if it takes one row of columns; `image_leaves` are the leaves that it takes as
images. ActorCritic puts a linear actor and a linear critic behind one or two encoders.
"""

import math
from typing import Sequence

import numpy as np
import torch
from torch import Tensor, nn

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU, "gelu": nn.GELU,
               "leaky_relu": nn.LeakyReLU}
ACTIVATION_CODES = {nn.Tanh: 1, nn.ReLU: 2, nn.ELU: 3}  # of kernels.forward; 0 is none
COMPILED_ACTIVATIONS = [name for name, kind in ACTIVATIONS.items() if kind in ACTIVATION_CODES]
HIDDEN_GAIN = math.sqrt(2)  # of layers before a nonlinearity [37 details, number 2]


def init_orthogonal(layer: nn.Module, gain: float, generator: torch.Generator | None) -> nn.Module:
    """`layer` with orthogonal weights of that gain, drawn from `generator`, and zero biases."""
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def linear(inputs: int, outputs: int, gain: float, generator: torch.Generator | None) -> nn.Linear:
    """A linear layer, initialised orthogonally."""
    return init_orthogonal(nn.Linear(inputs, outputs, dtype=torch.float32), gain, generator)


class DenseEncoder(nn.Sequential):
    """Dense layers with one activation, initialised orthogonally with gain sqrt 2, zero biases.

    With `layer_norm` each layer is normalised before its activation. Without layers the features
    are the columns.
    """

    flat, image_leaves = True, ()

    def __init__(self, inputs: int, hidden_sizes: Sequence[int], activation: str = "tanh",
                 generator: torch.Generator | None = None, layer_norm: bool = False):
        widths, layers = [inputs, *hidden_sizes], []
        for size, next_size in zip(widths, widths[1:]):
            layers.append(linear(size, next_size, HIDDEN_GAIN, generator))
            if layer_norm:
                layers.append(nn.LayerNorm(next_size, dtype=torch.float32))
            layers.append(ACTIVATIONS[activation]())
        super().__init__(*layers)
        self.inputs, self.size, self.widths = inputs, widths[-1], widths

    def forward(self, obs: Tensor) -> Tensor:
        """Features [b f] of observations [b ...], flattened."""
        return super().forward(obs.reshape(obs.shape[0], self.inputs))


class ActorCritic(nn.Module):
    """Two encoders, or one that is shared, followed by a linear actor and a linear critic.

    Their gains are 0.01 and 1 [37 details, number 2]. With `features` the actor's features follow
    the action parameters, for gSDE. Parameters in `final_tanh`, bool [p], pass through a tanh.
    """

    def __init__(self, actor_body: nn.Module, critic_body: nn.Module, outputs: int,
                 generator: torch.Generator | None = None, features: bool = False,
                 final_tanh: np.ndarray | None = None):
        super().__init__()
        self.flat, self.image_leaves = actor_body.flat, actor_body.image_leaves
        columns = None if final_tanh is None else torch.from_numpy(final_tanh)
        self.register_buffer("final_tanh", columns, persistent=False)
        self.actor_body, self.critic_body, self.features = actor_body, critic_body, features
        self.actor = linear(actor_body.size, outputs, 0.01, generator)
        self.critic = linear(critic_body.size, 1, 1.0, generator)

    def forward(self, obs) -> tuple[Tensor, Tensor]:
        """(action parameters [b p], value [b]) of normalised observations."""
        hidden = self.actor_body(obs)
        shared = self.critic_body is self.actor_body
        return self.apply_heads(hidden, hidden if shared else self.critic_body(obs))

    def apply_heads(self, hidden: Tensor, critic_hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(action parameters [b p], value [b]) of the actor's and the critic's features [b f]."""
        params, val = self.actor(hidden), self.critic(critic_hidden).squeeze(-1)
        if self.final_tanh is not None:
            params = torch.where(self.final_tanh, params.tanh(), params)
        return torch.cat([params, hidden], -1) if self.features else params, val


class MLP(ActorCritic):
    """An ActorCritic of dense layers, with activations that the kernels know.

    All weights are drawn from `generator`.
    """

    def __init__(self, inputs: int, outputs: int, hidden_sizes: Sequence[int] = (64, 64),
                 activation: str = "tanh", shared_critic: bool = False,
                 generator: torch.Generator | None = None, features: bool = False,
                 final_tanh: np.ndarray | None = None):
        bodies = [DenseEncoder(inputs, hidden_sizes, activation, generator)
                  for _ in range(1 if shared_critic else 2)]
        super().__init__(bodies[0], bodies[-1], outputs, generator, features, final_tanh)
