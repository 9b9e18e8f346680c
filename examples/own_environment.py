"""Train on your own environment: any gymnasium.Env, given as a class, a lambda or a list.

No `if __name__ == "__main__"` guard is needed: worker processes never import this script.
"""

import gymnasium as gym
import numpy as np

from fastppo import PPO


class Catch(gym.Env):
    """A ball falls in one of five columns; the paddle must be under it when it lands."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, height: int = 8):
        self.height = height

    def reset(self, *, seed=None, options=None):
        """Drop a new ball."""
        super().reset(seed=seed)
        self.ball, self.row, self.paddle = int(self.np_random.integers(5)), self.height, 2
        return self.observation(), {}

    def step(self, action):
        """Move left, stay or move right; reward 1 for a catch, -1 for a miss."""
        self.paddle = min(max(self.paddle + int(action) - 1, 0), 4)
        self.row -= 1
        landed = self.row == 0
        reward = (1.0 if self.paddle == self.ball else -1.0) if landed else 0.0
        return self.observation(), reward, landed, False, {}

    def observation(self) -> np.ndarray:
        """Ball column, ball height and paddle column, each from -1 to 1."""
        return np.array([self.ball / 2 - 1, 2 * self.row / self.height - 1, self.paddle / 2 - 1],
                        np.float32)


with PPO(lambda: Catch(height=6), num_envs=16, num_steps=64, lr=2e-3, seed=1,
         total_steps=30_000, progress="lines") as ppo:
    ppo.learn()
    print("evaluation return", ppo.evaluate(100))
