"""Your own network: constructed with both spaces, forward(obs) -> (action parameters, value)."""

import torch
from torch import nn

from fastppo import PPO, load


class Residual(nn.Module):
    """A shared layer and a residual layer; `obs` is normalised, float32 [b ...]."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.first = nn.Linear(obs_space.shape[0], 64)
        self.second = nn.Linear(64, 64)
        self.actor, self.critic = nn.Linear(64, int(act_space.n)), nn.Linear(64, 1)

    def forward(self, obs):
        """Logits [b n] and value [b]."""
        hidden = torch.tanh(self.first(obs))
        hidden = hidden + torch.tanh(self.second(hidden))
        return self.actor(hidden), self.critic(hidden)[:, 0]


if __name__ == "__main__":  # the command imports this file, too: --model=own_model:Residual
    with PPO("CartPole-v1", model=Residual, seed=1, total_steps=30_000, progress="lines") as ppo:
        ppo.learn()
        ppo.save("residual.safetensors")
    policy = load("residual.safetensors", model=Residual)
    print("action for a pole that leans right:", policy.predict([0.0, 0.0, 0.1, 0.0]))
