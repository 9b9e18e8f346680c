"""Action masks: an environment says which actions are legal, and no other one is ever taken.

It may say so by a method `action_masks()`, as here, by info["action_mask"], or by a part
"action_mask" of a Dict observation.
"""

import gymnasium as gym
import numpy as np

from fastppo import load, PPO


class Nim(gym.Env):
    """Take one to three of the matches that are left; whoever takes the last one wins.

    The other player takes at random.
    """

    observation_space = gym.spaces.Discrete(22)
    action_space = gym.spaces.Discrete(3, start=1)

    def reset(self, *, seed=None, options=None):
        """Between 10 and 21 matches."""
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(10, 22))
        return self.left, {}

    def step(self, action):
        """1 for the last match, -1 if the other player has it."""
        self.left -= int(action)
        if self.left == 0:
            return self.left, 1.0, True, False, {}
        self.left -= int(self.np_random.integers(1, min(3, self.left) + 1))
        return self.left, -float(self.left == 0), self.left == 0, False, {}

    def action_masks(self):
        """Which of 1, 2 and 3 there are enough matches for."""
        return np.arange(1, 4) <= self.left


with PPO(Nim, gamma=1.0, lr=3e-3, num_envs=16, num_steps=64, seed=1, total_steps=25_000,
         progress="lines") as ppo:
    ppo.learn()
    print("evaluation return", ppo.evaluate(200))
    ppo.save("nim.safetensors")

policy = load("nim.safetensors")
for left in range(1, 8):  # take left % 4, if you can
    print(left, "matches: take", policy.predict(left, action_mask=np.arange(1, 4) <= left))
