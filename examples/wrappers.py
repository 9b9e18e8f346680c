"""Gymnasium's wrappers in training: a function makes the wrapped environment, also in workers.

Leave out what fastppo does itself. RecordEpisodeStatistics: returns and lengths of episodes are
metrics. NormalizeObservation, NormalizeReward, ClipAction, RescaleAction: a warning names the
setting that does the same faster.
"""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.wrappers import FrameStackObservation, TimeLimit, TransformObservation

from fastppo import PPO


class UprightReward(gym.RewardWrapper):
    """A reward of 1 for a pole that stands upright, less the more it leans."""

    def reward(self, reward):
        """The cosine of ten times the angle, which ends the episode at 0.21."""
        return reward * float(np.cos(10 * self.unwrapped.state[2]))


def make_env(seconds=4.0, render_mode=None):
    """CartPole without its velocities, which two stacked observations show again."""
    env = gym.make("CartPole-v1", render_mode=render_mode)
    env = TimeLimit(env.unwrapped, round(seconds * env.metadata["render_fps"]))  # not its 500 steps
    env = UprightReward(env)
    env = TransformObservation(env, lambda obs: obs[[0, 2]], Box(-5.0, 5.0, (2,), np.float32))
    return FrameStackObservation(env, 2)  # or frame_stack=2 as a setting


# A lambda gives the function arguments; on the command line --env_kwargs does.
if __name__ == "__main__":
    with PPO(lambda: make_env(seconds=4.0), num_workers=2, num_steps=64, num_minibatches=8, lr=2e-3,
             gamma=0.98, seed=1, total_steps=60_000, progress="lines") as ppo:
        ppo.learn()
        print("observations", ppo.policy.obs_space.shape)
        print("evaluation return", ppo.evaluate(20), "of at most 200")
