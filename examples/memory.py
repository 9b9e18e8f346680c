"""Memory: a pole is balanced by its position and angle alone, velocities must be remembered."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from fastppo import PPO


def blind(render_mode=None):
    """CartPole-v1 without its two velocities."""
    env = gym.make("CartPole-v1", render_mode=render_mode)
    space = Box(-5.0, 5.0, (2,), np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: obs[[0, 2]], space)


with PPO(blind, rnn="gru", num_envs=8, num_steps=128, num_minibatches=4, lr=1e-3, seed=1,
         total_steps=100_000, progress="lines") as ppo:
    ppo.learn()
    print("with memory:", ppo.evaluate(20))
    policy = ppo.policy

env, state, over, total = blind(), None, False, 0.0
obs, _ = env.reset(seed=0)
while not over:
    action, state = policy.predict(obs, state=state)  # no state: an episode begins
    obs, reward, terminated, truncated, _ = env.step(action)
    over, total = terminated or truncated, total + reward
print("one episode, played by hand:", total)
