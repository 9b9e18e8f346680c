"""Action masks: the environment states which actions are legal; the policy takes no other one.

The mask comes from a method `action_masks()` (this example), from info["action_mask"], or from a
part "action_mask" of a Dict observation.
"""

import gymnasium as gym
import numpy as np

from fastppo import PPO, load


class Nim(gym.Env):
    """Each player takes one to three of the remaining matches; the last match wins.

    The opponent takes a random number.
    """

    observation_space = gym.spaces.Discrete(22)
    action_space = gym.spaces.Discrete(3, start=1)

    def reset(self, *, seed=None, options=None):
        """Start with 10 to 21 matches."""
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(10, 22))
        return self.left, {}

    def step(self, action):
        """Reward 1 for the last match, -1 if the opponent takes it."""
        self.left -= int(action)
        if self.left == 0:
            return self.left, 1.0, True, False, {}
        self.left -= int(self.np_random.integers(1, min(3, self.left) + 1))
        return self.left, -float(self.left == 0), self.left == 0, False, {}

    def action_masks(self):
        """True for each of the actions 1, 2 and 3 that is possible with the remaining matches."""
        return np.arange(1, 4) <= self.left


if __name__ == "__main__":
    with PPO(Nim, gamma=1.0, lr=3e-3, num_envs=16, num_steps=64, seed=1, total_steps=25_000,
             progress="lines") as ppo:
        ppo.learn()
        print("evaluation return", ppo.evaluate(200))
        ppo.save("nim.safetensors")

    policy = load("nim.safetensors")
    for left in range(1, 8):  # the best action is left % 4, if that is not 0
        print(left, "matches: take", policy.predict(left, action_mask=np.arange(1, 4) <= left))
