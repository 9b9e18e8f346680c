"""A game as ALE shows one, but scripted; workers import this module by name, and so no torch."""

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

BAR = 16  # rows of a screen that light up in a frame, another bar in each


class Console:
    """What ALE's interface says of a Game."""

    def __init__(self, game):
        self.game = game

    def lives(self):
        """Those left."""
        return self.game.left

    def getScreenGrayscale(self, into):
        """The screen, written into `into`."""
        into[...] = self.game.screen()


class Game(gym.Env):
    """Three lives of 9 to 40 frames, by the seed; a reward is the action; no life is left for the
    last two frames. In frame n bar n of the screen is lit, as bright as the action."""

    def __init__(self, frameskip=4, obs_type="rgb", meanings=("NOOP", "FIRE", "UP", "DOWN")):
        self.ale, self._frameskip, self._obs_type = Console(self), frameskip, obs_type
        self.action_space, self.meanings = Discrete(len(meanings)), list(meanings)
        self.observation_space = Box(0, 255, (210, 160), np.uint8)
        self.frame, self.left, self.done, self.action = 0, 0, [], 0

    def get_action_meanings(self):
        """Names of the actions."""
        return self.meanings

    def screen(self):
        """The picture of this frame, u1 [210 160]."""
        found = np.zeros((210, 160), np.uint8)
        first = self.frame * BAR % 208
        found[first:first + BAR] = 50 + 50 * self.action
        return found

    def reset(self, *, seed=None, options=None):
        """A new game."""
        super().reset(seed=seed)
        self.frame, self.left, self.action, self.done = 0, 3, 0, [("reset", seed)]
        self.ends = np.cumsum(self.np_random.integers(9, 41, 3))
        return self.screen(), {}

    def step(self, action):
        """One frame."""
        self.frame, self.action = self.frame + 1, int(action)
        self.done.append(self.action)
        self.left = 3 - int((self.frame >= self.ends).sum())
        over = self.frame >= self.ends[2] + 2
        return self.screen(), float(action), over, False, {"told": 1.0}


class Quick(Game):
    """The same, made as a Config wants it."""

    def __init__(self):
        super().__init__(frameskip=1)
