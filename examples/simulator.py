"""Train on a simulator that steps all its environments at once, with tensors on one device.

Gymnasium's CartPole-v1 and Pendulum-v1, written in torch: `python examples/simulator.py` trains in
64 environments on the CPU; on a GPU give it `cuda` and some thousand environments.
"""

import sys
from math import pi

import gymnasium as gym
import torch
from torch import Tensor

from fastppo import PPO


class Simulator:
    """What is common: states [e s] on a device, and new episodes within the step that ends one."""

    env_id: str
    limit: int  # steps of an episode
    start: tuple[float, ...]  # states begin with random numbers within plus or minus these

    def __init__(self, num_envs: int, device: str = "cpu"):
        self.num_envs, self.device = num_envs, torch.device(device)
        one = gym.make(self.env_id)
        self.single_observation_space = one.observation_space
        self.single_action_space = one.action_space
        self.random = torch.Generator(self.device)
        self.spread = torch.tensor(self.start, device=self.device)  # once: a copy waits for a GPU

    def reset(self, *, seed=None, options=None):
        """Begin an episode in every environment."""
        if seed is not None:
            self.random.manual_seed(seed)
        self.state = self.first_states()
        self.age = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        return self.observe(self.state), {}

    def step(self, act: Tensor):
        """Step all environments; those whose episode ended return the next one's observation."""
        self.state, rewards, terminated = self.move(self.state, act)
        self.age += 1
        truncated, final = self.age >= self.limit, self.observe(self.state)
        ended = terminated | truncated
        self.state = torch.where(ended[:, None], self.first_states(), self.state)
        self.age = self.age.masked_fill(ended, 0)
        return self.observe(self.state), rewards, terminated, truncated, {"final_obs": final}

    def first_states(self) -> Tensor:
        """Random states [e s] with which episodes begin."""
        shape = self.num_envs, len(self.start)
        numbers = torch.rand(shape, generator=self.random, device=self.device)
        return (2 * numbers - 1) * self.spread

    def observe(self, state: Tensor) -> Tensor:
        """The observations [e ...] of states."""
        return state

    def move(self, state: Tensor, act: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(next states, rewards [e], terminated [e])."""
        raise NotImplementedError


class CartPole(Simulator):
    """CartPole-v1."""

    env_id, limit, start = "CartPole-v1", 500, (0.05, 0.05, 0.05, 0.05)

    def move(self, state: Tensor, act: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Push the cart to the left or right for 0.02 s [Barto, Sutton, Anderson 1983]."""
        place, speed, angle, turning = state.unbind(1)
        push = 20.0 * act - 10.0
        cos, sin = angle.cos(), angle.sin()
        pull = (push + 0.05 * turning.square() * sin) / 1.1
        bend = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos.square() / 1.1))
        rates = torch.stack([speed, pull - 0.05 * bend * cos / 1.1, turning, bend], 1)
        state = state + 0.02 * rates
        fallen = (state[:, 0].abs() > 2.4) | (state[:, 2].abs() > 12 * pi / 180)
        return state, torch.ones_like(push), fallen


class Pendulum(Simulator):
    """Pendulum-v1."""

    env_id, limit, start = "Pendulum-v1", 200, (pi, 1.0)

    def observe(self, state: Tensor) -> Tensor:
        """Cosine and sine of the angle, and its rate."""
        angle, turning = state.unbind(1)
        return torch.stack([angle.cos(), angle.sin(), turning], 1)

    def move(self, state: Tensor, act: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turn it with a torque of at most 2 for 0.05 s."""
        (angle, turning), torque = state.unbind(1), act[:, 0].clamp(-2, 2)
        off = (angle + pi) % (2 * pi) - pi
        cost = off.square() + 0.1 * turning.square() + 0.001 * torque.square()
        turning = (turning + (15 * angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        state = torch.stack([angle + 0.05 * turning, turning], 1)
        return state, -cost, torch.zeros_like(cost, dtype=torch.bool)


if __name__ == "__main__":
    device, count, *_ = [*sys.argv[1:], "cpu", "64"]
    with PPO(CartPole(int(count), device), num_steps=64, num_minibatches=8, epochs=4, lr=1e-3,
             reward_scale=0.1, seed=1, progress="lines") as ppo:
        ppo.learn(150_000)
        print(ppo.evaluate(episodes=20, env="CartPole-v1"))
