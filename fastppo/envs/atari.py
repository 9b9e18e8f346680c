"""Wrappers around Atari games (ALE), as most published results use them.

    AtariPreprocessing   Gymnasium's: up to 30 no-ops at a reset, in games that have this action;
                         an action is repeated for 4 frames; the maximum of the last two, in grey,
                         at 84 x 84, is observed. Ids of ale-py have the same in atari_game.py.
                         AtariOptions has these numbers
    EpisodicLives        the end of a life ends an episode [baselines], with end_on_life_loss
    FireOnReset          FIRE after a reset, in games that wait for it
    WholeGame            in evaluation: all lives of a game are one episode
    AtariVector          the same ends of episodes and returns for games that an engine steps

Sources: Mnih 2015, doi:10.1038/nature14236, methods; OpenAI baselines, atari_wrappers.py.
"""

import dataclasses
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import AtariPreprocessing

from fastppo.errors import ConfigError, Set
from fastppo.spaces.leaves import brief_text

NOOP, FIRE = 0, 1  # actions; two games, such as Backgammon, have no no-op
NOOPS, SKIP, SIZE = 30, 4, (84, 84)  # most no-ops; frames of an action; pixels [Mnih 2015]
SAME_GAME = "same_game"  # in the infos of an episode's end and of the next reset: the game goes on
ALE_ARGUMENTS = {"frameskip": 1, "obs_type": "grayscale"}  # colour frames would cost time
ALE_ENTRY, OWN_ENTRY = "ale_py.env:AtariEnv", "fastppo.envs.atari_game:AtariGame"
ALE_VECTOR = "ale_py.vector_env:AtariVectorEnv"
# The arguments of AtariEnv that AtariGame has, too; render_mode=human opens a window of its own.
OWN_ARGUMENTS = {"mode", "difficulty", "repeat_action_probability", "full_action_space",
                 "max_num_frames_per_episode", "game", "render_mode"}
GAME_RETURN, GAME_LENGTH = "game_return", "game_length"  # in the info of a game's end


class AtariOptions(NamedTuple):
    """Options of Atari preprocessing."""

    lives: bool  # the end of a life ends an episode
    whole: bool = False  # for evaluation: all lives of a game are one episode nevertheless
    noops: int = NOOPS
    fire: bool = True  # after a reset, see `needs_fire`
    skip: int = SKIP
    size: tuple[int, int] = SIZE


class EpisodicLives(gym.Wrapper):
    """The end of a life ends an episode; a game is reset when it is over [baselines].

    The step that loses a life takes `first`, the actions that begin the next life, too. `reset`
    then continues the same game after them and ignores the seed, unless that is the one the game
    began with: then, and always otherwise, a new game begins. So an episode is a function of the
    game's seed and of all actions since the game began. The infos of the step that loses a life
    and of a reset that continues a game have SAME_GAME.
    The info of the step that ends a game has its "game_return" (sum of raw rewards) and
    "game_length" (steps, including those between two lives).
    """

    def __init__(self, env: gym.Env, first: tuple[int, ...] = (NOOP,)):
        super().__init__(env)
        self.first, self.lives, self.score, self.seed, self.length = first, 0, 0.0, None, 0
        self.next_life: tuple[Any, dict] | None = None  # what reset returns if the game goes on

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """(observation, info) of the next life, or of a game's first one."""
        life, self.next_life = self.next_life, None
        if life and (seed is None or seed != self.seed):
            return life
        obs, info = self.env.reset(seed=seed, options=options)
        self.seed, self.length, self.score = self.seed if seed is None else seed, 0, 0.0
        self.lives = self.unwrapped.ale.lives()
        return obs, info

    def step(self, action):
        """The game's step; a lost life terminates the episode, too."""
        before = self.lives
        obs, rew, term, trunc, info = self._step_game(action)
        # Some games have 0 lives some frames before they are over: that is not a lost life.
        lost = 0 < self.lives < before and not (term or trunc)
        return obs, rew, term or lost, trunc, info | self._begin_life() if lost else info

    def _step_game(self, action):
        self.length += 1
        obs, rew, term, trunc, info = self.env.step(action)
        self.lives, self.score = self.unwrapped.ale.lives(), self.score + rew
        if term or trunc:
            info = {**info, GAME_RETURN: self.score, GAME_LENGTH: self.length}
        return obs, rew, term, trunc, info

    def _begin_life(self) -> dict:
        """The info to be added to that of the lost life, after which the next life has begun.

        That is SAME_GAME, or the return and the length of a game that its time limit ends here.
        """
        for action in self.first:
            obs, _, term, trunc, info = self._step_game(action)
            if term or trunc:
                return {name: info[name] for name in (GAME_RETURN, GAME_LENGTH)}
        self.next_life = obs, info | {SAME_GAME: True}
        return {SAME_GAME: True}


class FireOnReset(gym.Wrapper):
    """Presses FIRE after every reset [baselines], see `needs_fire`."""

    def reset(self, **kwargs):
        """(observation, info) of the step with FIRE; of another reset if that ends the game."""
        self.env.reset(**kwargs)
        obs, _, term, trunc, info = self.env.step(FIRE)
        return self.env.reset() if term or trunc else (obs, info)


class WholeGame(gym.Wrapper):
    """All lives of a game as one episode.

    Between two lives the same happens as in training: the no-op, FIRE, and a new stack of frames.
    The rewards sum up to the game's "game_return".
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.score = 0.0

    def reset(self, **kwargs):
        """The environment's reset."""
        self.score = 0.0
        return self.env.reset(**kwargs)

    def step(self, action):
        """The environment's step, but a lost life does not end the episode."""
        obs, rew, term, trunc, info = self.env.step(action)
        if term and GAME_RETURN not in info:
            obs, info = self.env.reset()
            term = False
        self.score += rew
        if term or trunc:
            rew += info[GAME_RETURN] - self.score  # rewards of the steps between two lives
        return obs, rew, term, trunc, info


class AtariVector(gym.vector.VectorWrapper):
    """The games of a vector environment in NEXT_STEP mode, with returns as in EpisodicLives.

    With `lives` the end of a life ends an episode. The next step then begins the next one, in the
    same game, with `action` (FIRE or a no-op) in place of the action given; the frames that are
    stacked go on. Infos of `env` have the number of "lives" of each game. A game that its time
    limit ends in the step that begins a life is not reported.
    """

    def __init__(self, env: gym.vector.VectorEnv, lives: bool, action: int):
        super().__init__(env)
        self.ends_lives, self.first = lives, action

    def reset(self, **kwargs):
        """Begins new games."""
        obs, info = self.env.reset(**kwargs)
        self.left, self.score = np.array(info["lives"]), np.zeros(self.num_envs)
        self.length = np.zeros(self.num_envs, np.int64)
        self.over, self.lost = np.zeros((2, self.num_envs), bool)
        return obs, {}

    def step(self, actions):
        """One step; a reset, after the end of a game or of a life, has no reward."""
        resetting, actions = self.over | self.lost, np.where(self.lost, self.first, actions)
        obs, rew, term, trunc, info = self.env.step(actions)
        ended, left, running = term | trunc, np.array(info["lives"]), ~self.over
        self.score = np.where(running, self.score + rew, 0.0)
        self.length = np.where(running, self.length + 1, 0)
        lost = ~resetting & (0 < left) & (left < self.left) & ~ended & self.ends_lives
        self.over, self.lost, self.left = ended, lost, left
        return obs, np.where(resetting, 0.0, rew), term | lost, trunc, {
            GAME_RETURN: self.score, f"_{GAME_RETURN}": ended,
            GAME_LENGTH: self.length, f"_{GAME_LENGTH}": ended,
            SAME_GAME: lost, f"_{SAME_GAME}": lost}


def game_spec(spec: EnvSpec, kwargs: dict[str, Any], games: AtariOptions) -> EnvSpec:
    """`spec`, made so that every frame is one step, and grey.

    A game of ale-py gets the entry point of AtariGame, if that has all arguments `kwargs`.
    """
    plain = spec.entry_point == ALE_ENTRY and not spec.additional_wrappers
    fits = kwargs.keys() <= OWN_ARGUMENTS and kwargs.get("render_mode") != "human"
    given = {name: ALE_ARGUMENTS.get(name, value) for name, value in spec.kwargs.items()}
    if plain and fits:
        return dataclasses.replace(spec, entry_point=OWN_ENTRY, kwargs=given | {
            "noops": games.noops, "skip": games.skip, "size": games.size})
    return dataclasses.replace(spec, kwargs=given)


def preprocess_atari(env: gym.Env, limit: int | None, games: AtariOptions) -> gym.Env:
    """`env`, an ALE game, in the wrappers of this module; truncated after `limit` actions.

    Raises ConfigError for an environment that is no such game.
    """
    spaces = tuple(getattr(env, f"{kind}_space", None) for kind in ("observation", "action"))
    if not hasattr(env.unwrapped, "ale") or len(getattr(spaces[0], "shape", None) or ()) < 2 or \
            not isinstance(spaces[1], gym.spaces.Discrete):
        raise ConfigError("preprocessing=atari is for games of the Arcade Learning Environment, of"
                          " one player, of frames and Discrete actions; but"
                          f" {type(env.unwrapped).__name__} has the spaces"
                          f" {' and '.join(map(brief_text, spaces))}",
                          ("give such a game", Set(preprocessing="none")))
    if not getattr(env.unwrapped, "preprocessed", False):
        height, width = games.size
        env = AtariPreprocessing(env, games.noops if has_noop(env) else 0, games.skip,
                                 (width, height))
    env = gym.wrappers.TimeLimit(env, limit) if limit else env
    fire = games.fire and needs_fire(env)
    env = FireOnReset(env) if fire else env
    return EpisodicLives(env, (NOOP, FIRE)[:1 + fire]) if games.lives else env


def has_noop(env: gym.Env) -> bool:
    """Returns True for games whose first action is to do nothing."""
    return env.unwrapped.get_action_meanings()[NOOP] == "NOOP"


def needs_fire(env: gym.Env) -> bool:
    """Returns True for games that may wait for FIRE: it is the second of at least 3 actions."""
    meanings = env.unwrapped.get_action_meanings()
    return len(meanings) >= 3 and meanings[FIRE] == "FIRE"


def own_skips(env: gym.Env) -> Any:
    """The frames for which a wrapper around a game, or the game, repeats an action; 1 for none."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, AtariPreprocessing):
            return env.frame_skip
        if isinstance(env, gym.wrappers.MaxAndSkipObservation):
            return env._skip
        env = env.env
    return getattr(env, "_frameskip", 1) if hasattr(env, "ale") else 1
