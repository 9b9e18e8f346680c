"""Networks: observations to (action parameters, value), and what the compiled twin must know.

A body is what turns observations into features: `body(seen) -> [b f]`, with `size` f, and `flat`
where it wants them as one row of columns. ActorCritic puts the two heads behind one or two of them.
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


def linear(wide: int, out: int, gain: float, generator: torch.Generator | None) -> nn.Linear:
    """A linear layer, initialised orthogonally."""
    return init_orthogonal(nn.Linear(wide, out, dtype=torch.float32), gain, generator)


class DenseEncoder(nn.Sequential):
    """The body of dense layers with one activation, orthogonal with gain sqrt 2, zero biases.

    With `layer_norm` each is normalised before its activation. Without layers: the columns.
    """

    flat = True

    def __init__(self, inputs: int, hidden_sizes: Sequence[int], activation: str = "tanh",
                 generator: torch.Generator | None = None, layer_norm: bool = False):
        widths, layers = [inputs, *hidden_sizes], []
        for wide, out in zip(widths, widths[1:]):
            layers += [linear(wide, out, HIDDEN_GAIN, generator), ACTIVATIONS[activation]()]
            if layer_norm:
                layers.insert(-1, nn.LayerNorm(out, dtype=torch.float32))
        super().__init__(*layers)
        self.inputs, self.size, self.widths = inputs, widths[-1], widths

    def forward(self, obs: Tensor) -> Tensor:
        """Features [b f] of observations [b ...], flattened."""
        return super().forward(obs.reshape(obs.shape[0], self.inputs))


class ActorCritic(nn.Module):
    """Two bodies, or one and the same, and behind them a linear actor and a linear critic.

    Their gains are 0.01 and 1 [37 details, number 2]. With `features` the actor's follow the action
    parameters (gSDE looks at them); those in `final_tanh`, bool [p], end in a tanh.
    """

    def __init__(self, actor_body: nn.Module, critic_body: nn.Module, outputs: int,
                 generator: torch.Generator | None = None, features: bool = False,
                 final_tanh: np.ndarray | None = None):
        super().__init__()
        self.flat, self.features = actor_body.flat, features
        columns = None if final_tanh is None else torch.from_numpy(final_tanh)
        self.register_buffer("final_tanh", columns, persistent=False)
        self.actor_body, self.critic_body = actor_body, critic_body
        self.actor = linear(actor_body.size, outputs, 0.01, generator)
        self.critic = linear(critic_body.size, 1, 1.0, generator)

    def forward(self, obs) -> tuple[Tensor, Tensor]:
        """(action parameters [b p], value [b]) of what the observer makes of observations."""
        hidden = self.actor_body(obs)
        shared = self.critic_body is self.actor_body
        return self.answers(hidden, hidden if shared else self.critic_body(obs))

    def answers(self, hidden: Tensor, valued: Tensor) -> tuple[Tensor, Tensor]:
        """(action parameters [b p], value [b]) of the actor's and the critic's features [b f]."""
        params, val = self.actor(hidden), self.critic(valued)[:, 0]
        if self.final_tanh is not None:
            params = torch.where(self.final_tanh, params.tanh(), params)
        return torch.cat([params, hidden], -1) if self.features else params, val


class MLP(ActorCritic):
    """Hidden layers alone, of activations that the kernels know, actor and critic apart or sharing.

    All weights are drawn from `generator`.
    """

    def __init__(self, inputs: int, outputs: int, hidden_sizes: Sequence[int] = (64, 64),
                 activation: str = "tanh", shared_critic: bool = False,
                 generator: torch.Generator | None = None, features: bool = False,
                 final_tanh: np.ndarray | None = None):
        actor_body = DenseEncoder(inputs, hidden_sizes, activation, generator)
        critic_body = actor_body if shared_critic else DenseEncoder(inputs, hidden_sizes, activation,
                                                              generator)
        super().__init__(actor_body, critic_body, outputs, generator, features, final_tanh)

    def plan(self, offsets: dict[int, int]) -> np.ndarray:
        """The layers as rows (src, dst, n_in, n_out, w_offset, b_offset, activation), i64.

        `offsets` maps id(parameter) to its place in the flat vector; buffer 0 is the observation,
        dst -1 the output: action parameters, then the value (see kernels.forward).
        """
        rows, last = [], 0

        def add(linear: nn.Linear, src: int, dst: int, code: int) -> None:
            rows.append((src, dst, linear.in_features, linear.out_features,
                         offsets[id(linear.weight)], offsets[id(linear.bias)], code))

        def body(layers: nn.Sequential) -> int:
            nonlocal last
            src, pairs = 0, list(layers)
            for linear, nonlinear in zip(pairs[::2], pairs[1::2]):
                last += 1
                add(linear, src, last, ACTIVATION_CODES[type(nonlinear)])
                src = last
            return src

        top = body(self.actor_body)
        add(self.actor, top, -1, 0)
        shared = self.critic_body is self.actor_body
        add(self.critic, top if shared else body(self.critic_body), -1, 0)
        return np.array(rows, np.int64)
