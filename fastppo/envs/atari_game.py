"""A game of ale-py in Atari preprocessing, over the interface of the emulator. Imports ale_py."""

from typing import Any

import gymnasium as gym
import numpy as np
from ale_py import Action
from ale_py.env import AtariEnv
from gymnasium.spaces import Box

from fastppo.envs.atari import NOOP, NOOPS, SIZE, SKIP, has_noop
from fastppo.machine import kernels

NOT_IN_STATES = {"atlantis2"}  # games of which ale-py does not store the lives in a state


class AtariGame(AtariEnv):
    """AtariPreprocessing(AtariEnv(...)) of Gymnasium and ale-py as one environment, faster.

    Observations and rewards are equal to theirs; two things differ. Sticky actions are drawn from
    the episode's seed, for each frame, instead of by the emulator. A reset restores a state that
    was kept when the game was loaded, instead of loading it again: ale-py's seed changes nothing
    else in any game.
    """

    preprocessed = True

    def __init__(self, game: str, noops: int = NOOPS, skip: int = SKIP,
                 size: tuple[int, int] = SIZE, **options):
        self.noops, self.skip = noops, skip
        super().__init__(game, **options)
        screen = self.ale.getScreenDims()
        self.observation_space = Box(0, 255, size, np.uint8)
        self.greys = np.full(256, -1, np.int16)  # of the colours that have been seen
        self.colours = np.empty(screen, np.uint8)  # of the last screen
        self.colours_before = np.empty(screen, np.uint8)
        # The screen before the last one in grey, and what it was a step earlier.
        self.before, self.earlier = np.zeros((2, *screen), np.uint8)
        self.action = Action.NOOP  # of the last frame
        self.first_picture: np.ndarray | None = None  # after a reset, for render
        self.starts = self._starts()

    def load_game(self) -> None:
        """Loads the game without the emulator's own sticky actions."""
        self.sticky = self.ale.getFloat("repeat_action_probability")
        self.ale.setFloat("repeat_action_probability", 0.0)
        if not 0 <= self.sticky <= 1:
            raise ValueError(f"repeat_action_probability is {self.sticky:g}, not from 0 to 1")
        super().load_game()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """(observation, info) after 1 to `noops` no-ops, drawn as AtariPreprocessing does."""
        gym.Env.reset(self, seed=seed)
        seeds = {} if seed is None else {"seeds": self.seed_game(seed)}
        count = self.np_random.integers(1, len(self.starts)) if len(self.starts) > 1 else 0
        state, self.colours[:], self.first_picture = self.starts[count]
        self.before[:], self.action = 0, Action.NOOP
        if self._game in NOT_IN_STATES:
            self.ale.reset_game()
        self.ale.restoreSystemState(state)
        return self._observation(), self._get_info() | seeds

    def step(self, action):
        """The game after `skip` frames of `action`, or fewer at its end; the sum of rewards."""
        ale, chosen, total, over = self.ale, self._action_set[action], 0.0, False
        repeated = self.sticky and (self.np_random.random(self.skip) < self.sticky).tolist()
        self.first_picture = None
        for frame in range(self.skip):
            if not repeated or not repeated[frame]:
                self.action = chosen
            total += ale.act(self.action)
            if over := ale.game_over():
                break
            if frame == self.skip - 2:
                self._see_before()
        if not over:
            ale.getScreen(self.colours)
        elif frame == self.skip - 1:
            # AtariPreprocessing keeps two screens. A game that ends with the last frame has
            # replaced the first of them only; the second is that of the step before.
            np.maximum(self.before, self.earlier, out=self.before)
        term = over and ale.game_over(with_truncation=False)
        return self._observation(), total, term, over and ale.game_truncated(), self._get_info()

    def render(self) -> np.ndarray | None:
        """The screen in colours."""
        return super().render() if self.first_picture is None else self.first_picture

    def _starts(self):
        """(state, screen, picture or None) after no no-op, 1 no-op, ... `noops` no-ops.

        All are kept, because in five games (such as Qbert) the emulator has begun a frame that
        belongs to no state: the first screen after a state is restored would be another one.
        """
        self.ale.reset_game()
        starts = [self._start()]
        for _ in range(self.noops if has_noop(self) else 0):
            self.ale.act(self._action_set[NOOP])
            if self.ale.game_over():
                self.ale.reset_game()
            starts.append(self._start())
        return starts

    def _start(self):
        self._learn_colours()
        picture = self.render() if self.render_mode else None
        return self.ale.cloneSystemState(), self.ale.getScreen(), picture

    def _learn_colours(self) -> None:
        """Adds those of the screen to the table, which ale-py does not tell otherwise."""
        self.greys[self.ale.getScreen()] = self.ale.getScreenGrayscale()

    def _see_before(self) -> None:
        """Keeps the screen as the one before the last."""
        self.before, self.earlier = self.earlier, self.before
        self.ale.getScreen(self.colours_before)
        if not kernels.recolour(self.colours_before, self.greys, self.before):
            self._learn_colours()
            self.ale.getScreenGrayscale(self.before)

    def _observation(self) -> np.ndarray:
        """The larger of the last two screens at each pixel, in the size of a picture."""
        obs = np.empty(self.observation_space.shape, np.uint8)
        if not kernels.resize_largest(self.before, self.colours, self.greys, obs):
            self._learn_colours()
            kernels.resize_largest(self.before, self.colours, self.greys, obs)
        return obs
