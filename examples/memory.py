"""Recurrent policy: balance a pole from position and angle only, without velocities."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from fastppo import PPO


def make_env(render_mode=None):
    """CartPole-v1 without its two velocities."""
    env = gym.make("CartPole-v1", render_mode=render_mode)
    space = Box(-5.0, 5.0, (2,), np.float32)
    return gym.wrappers.TransformObservation(env, lambda obs: obs[[0, 2]], space)


if __name__ == "__main__":
    with PPO(make_env, rnn="mingru", num_envs=8, num_steps=128, num_minibatches=4, lr=1e-3, seed=1,
             total_steps=100_000, progress="lines") as ppo:
        ppo.learn()
        print("evaluation return", ppo.evaluate(20))
        policy = ppo.policy

    env, state, done, total = make_env(), None, False, 0.0
    obs, _ = env.reset(seed=0)
    while not done:
        action, state = policy.predict(obs, state=state)  # state None: an episode begins
        obs, reward, terminated, truncated, _ = env.step(action)
        done, total = terminated or truncated, total + reward
    print("return of one episode in our own loop:", total)
