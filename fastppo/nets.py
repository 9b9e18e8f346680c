"""Networks: observations to (action parameters, value), and what the compiled twin must know."""

import math
from typing import Sequence

import numpy as np
import torch
from torch import Tensor, nn

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}
CODES = {nn.Tanh: 1, nn.ReLU: 2, nn.ELU: 3}  # of kernels.forward; 0 is none


class MLP(nn.Module):
    """Hidden layers with one activation; actor and critic apart, or sharing them.

    Initialised orthogonally with gains sqrt 2 (hidden), 0.01 (actor) and 1 (critic) and zero
    biases [37 details, number 2], from `generator` alone. With `features` the actor's last hidden
    layer follows the action parameters (gSDE looks at it); with `final_tanh` these end in a tanh.
    """

    flat = True  # observations are seen as one row of columns

    def __init__(self, inputs: int, outputs: int, hidden_sizes: Sequence[int] = (64, 64),
                 activation: str = "tanh", shared_critic: bool = False,
                 generator: torch.Generator | None = None, features: bool = False,
                 final_tanh: bool = False):
        super().__init__()
        self.inputs, widths = inputs, [inputs, *hidden_sizes]
        self.features, self.final_tanh = features, final_tanh

        def layer(wide: int, out: int, gain: float) -> nn.Linear:
            linear = nn.Linear(wide, out, dtype=torch.float32)
            nn.init.orthogonal_(linear.weight, gain, generator=generator)
            nn.init.zeros_(linear.bias)
            return linear

        def hidden() -> nn.Sequential:
            pairs = [(layer(wide, out, math.sqrt(2)), ACTIVATIONS[activation]())
                     for wide, out in zip(widths, widths[1:])]
            return nn.Sequential(*(module for pair in pairs for module in pair))

        self.actor_body = hidden()
        self.critic_body = self.actor_body if shared_critic else hidden()
        self.actor, self.critic = layer(widths[-1], outputs, 0.01), layer(widths[-1], 1, 1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """(action parameters [b p], value [b]) of observations [b ...], flattened."""
        obs = obs.reshape(obs.shape[0], self.inputs)  # len() is no part of an exported graph
        hidden = self.actor_body(obs)
        valued = hidden if self.critic_body is self.actor_body else self.critic_body(obs)
        params, val = self.actor(hidden), self.critic(valued)[:, 0]
        params = params.tanh() if self.final_tanh else params
        return torch.cat([params, hidden], -1) if self.features else params, val

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
            src = 0
            for linear, nonlinear in zip(layers[::2], layers[1::2]):
                last += 1
                add(linear, src, last, CODES[type(nonlinear)])
                src = last
            return src

        top = body(self.actor_body)
        add(self.actor, top, -1, 0)
        shared = self.critic_body is self.actor_body
        add(self.critic, top if shared else body(self.critic_body), -1, 0)
        return np.array(rows, np.int64)
