"""The smallest task for convolutions: the place of a bright square says which action is right."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from fastppo import PPO

SIDE, SQUARE, LENGTH = 36, 8, 8


class Square(gym.Env):
    """Reward 1 for the quarter of the image in which the square is; 8 steps.

    With `late` the image is dark after the first step of a square that stays two steps.
    """

    def __init__(self, dtype=np.uint8, late=False, last=False):
        self.shape = (SIDE, SIDE, 1) if last else (1, SIDE, SIDE)
        self.observation_space = Box(0, 255 if dtype == np.uint8 else 1, self.shape, dtype)
        self.action_space, self.late = Discrete(4), late

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._image(), {}

    def step(self, action):
        rew = float(action == self.quarter and (not self.late or self.steps % 2 == 1))
        self.steps += 1
        return self._image(), rew, False, self.steps == LENGTH, {}

    def _image(self):
        image = np.zeros((SIDE, SIDE), self.observation_space.dtype)
        if not self.late or self.steps % 2 == 0:
            self.quarter = int(self.np_random.integers(4))
            y, x = (half * SIDE // 2 + self.np_random.integers(2, 9)
                    for half in divmod(self.quarter, 2))
            image[y:y + SQUARE, x:x + SQUARE] = self.observation_space.high.flat[0]
        return image.reshape(self.shape)


@pytest.mark.full
@pytest.mark.parametrize(("settings", "env"), [
    ({}, {}), ({}, {"last": True}), ({"learner": "torch", "acting": "central"}, {}),
    ({}, {"dtype": np.float32}), ({"frame_stack": 2}, {"late": True}),
    ({"frame_stack": 2}, {"late": True, "dtype": np.float32}),
    ({"rnn": "gru", "rnn_size": 32}, {"late": True})], ids=str)
def test_the_place_of_a_square_is_learnt(settings, env):
    steps = 9216 if "rnn" in settings else 6144 if env.get("late") else 3584
    fixed = dict(preset="none", model="cnn", seed=1, num_workers=0, num_envs=8, num_steps=32,
                 num_minibatches=4, epochs=4, lr=1e-3, anneal_lr=False, norm_rewards=False,
                 entropy_coef=0.01, gamma=0.5)
    with PPO(lambda: Square(**env), **fixed | settings) as ppo:
        ppo.learn(steps)
        best = LENGTH / 2 if env.get("late") else LENGTH
        assert ppo.evaluate(20).mean > 0.9 * best
