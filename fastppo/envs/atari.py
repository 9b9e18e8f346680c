"""Atari games as most results on them were made: what stands around an environment of ALE's.

    AtariPreprocessing   Gymnasium's: up to 30 no-ops at a reset; an action is held for 4 frames,
                         and the brighter of the last two is seen, in grey, at 84 x 84
    Lives                the end of a life ends an episode [baselines], where end_on_life_loss asks
    Fire                 FIRE at a reset, in games that wait for it
    Whole                in evaluation: all lives of a game as one episode

Sources: Mnih 2015, doi:10.1038/nature14236, methods; OpenAI baselines, atari_wrappers.py.
"""

import importlib.util
from typing import Any, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.wrappers import AtariPreprocessing

from fastppo.envs import env_hints
from fastppo.errors import ConfigError

NOOP, FIRE = 0, 1  # actions
NOOPS, SKIP, SIDE = 30, 4, 84  # at a reset at most; frames an action is held; pixels [Mnih 2015]
KEPT = 8  # episodes that can begin again
MADE = {"frameskip": 1, "obs_type": "grayscale"}  # nobody looks at frames in colour
GAME_RETURN, GAME_LENGTH = "game_return", "game_length"  # shown as env/game_return, env/game_length


class AtariOptions(NamedTuple):
    """How games are played."""

    lives: bool  # the end of a life ends an episode
    whole: bool = False  # but not here: the lives of a game are one episode


class EpisodeStart(NamedTuple):
    """Where an episode began: after the first `count` of `moves` in the game of `seed`."""

    seed: int
    moves: list[int]
    count: int


class EpisodicLives(gym.Wrapper):
    """The end of a life ends an episode; a game is reset when it is over [baselines].

    After a lost life `reset` goes on in the same game with one no-op, whatever the seed: then an
    episode is a function of the game's seed and of all actions since the game began. They are
    kept: `reset` with the seed of one of the last episodes plays its game up to there, and so
    begins that very episode again. Otherwise `reset` begins a game.
    The info of the step that ends a game has its "game_return" (sum of raw rewards) and
    "game_length" (steps of 4 frames, with those of resets).
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.lost, self.lives, self.score = False, 0, 0.0
        self.seed, self.moves, self.starts = None, [], {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """(observation, info) of the next life, or of a game's first one."""
        if seed in self.starts:
            obs, info = self._again(self.starts[seed], options)
        else:
            obs, info = self._next(seed, options) if self.lost else self._game(seed, options)
        self.lost = False
        if None not in (seed, self.seed):
            self.starts[seed] = EpisodeStart(self.seed, self.moves, len(self.moves))
            if len(self.starts) > KEPT:
                del self.starts[next(iter(self.starts))]
        return obs, info

    def step(self, action):
        """As the game's own; a lost life is a termination, too."""
        obs, rew, term, trunc, info = self._play(action)
        return obs, rew, term or self.lost, trunc, info

    def _play(self, action):
        self.moves.append(int(action))
        obs, rew, term, trunc, info = self.env.step(action)
        before, self.lives = self.lives, self.unwrapped.ale.lives()
        # Some games have no life left some frames before they are over: that is no lost one.
        self.lost = 0 < self.lives < before and not (term or trunc)
        self.score += rew
        if term or trunc:
            info = {**info, GAME_RETURN: self.score, GAME_LENGTH: len(self.moves)}
        return obs, rew, term, trunc, info

    def _game(self, seed: int | None, options: dict[str, Any] | None):
        """Begin a game."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.seed, self.moves, self.score = seed, [], 0.0
        self.lives = self.unwrapped.ale.lives()
        return obs, info

    def _next(self, seed: int | None, options: dict[str, Any] | None):
        """Begin the next life; where that ends the game, by its time limit, begin another."""
        obs, _, term, trunc, info = self._play(NOOP)
        if not (term or trunc):
            return obs, info
        obs, first = self._game(seed, options)
        return obs, info | first

    def _again(self, start: EpisodeStart, options: dict[str, Any] | None):
        """Begin an episode that has begun before, by playing its game up to there."""
        obs, info = self._game(start.seed, options)
        for move in start.moves[:start.count]:
            obs, _, _, _, info = self._play(move)
        return obs, info


class FireOnReset(gym.Wrapper):
    """Presses FIRE after every reset [baselines]; for games that `waits`."""

    def reset(self, **kwargs):
        """(observation, info) of the step in which FIRE was pressed."""
        self.env.reset(**kwargs)
        obs, _, term, trunc, info = self.env.step(FIRE)
        if term or trunc:
            obs, first = self.env.reset()
            info = info | first
        return obs, info


class WholeGame(gym.Wrapper):
    """Lives, one after the other, as the one episode that a game is.

    What happens between two lives is what training does there: the no-op, FIRE, and frames stacked
    anew. Rewards sum up to the game's "game_return".
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.score = 0.0

    def reset(self, **kwargs):
        """As the environment's own."""
        self.score = 0.0
        return self.env.reset(**kwargs)

    def step(self, action):
        """As the environment's own, but a lost life ends nothing."""
        obs, rew, term, trunc, info = self.env.step(action)
        if term and GAME_RETURN not in info:
            obs, info = self.env.reset()
            term, trunc = False, GAME_RETURN in info
        self.score += rew
        if term or trunc:
            rew += info[GAME_RETURN] - self.score  # what came while no action of the policy's was taken
        return obs, rew, term, trunc, info


def atari_options(preprocessing: str, end_on_life_loss: bool) -> AtariOptions | None:
    """How the settings of these names want games to be played; None: as they are.

    Raises ConfigError where they contradict each other.
    """
    if preprocessing != "atari" and end_on_life_loss:
        raise ConfigError("end_on_life_loss is for --preprocessing=atari, and preprocessing is"
                          f" {preprocessing!r}",
                          "--preprocessing=atari, or --end_on_life_loss=False")
    return AtariOptions(end_on_life_loss) if preprocessing == "atari" else None


def atari_arguments(spec: EnvSpec, limit: int | None, kwargs: dict[str, Any]) -> dict[str, Any]:
    """What gym.make is given to make the game of `spec`: every frame is a step, and is grey.

    A `limit` is one of actions, not of frames: it is left to `preprocessed`.
    """
    entry = spec.entry_point
    takes = env_hints.accepted(load_env_creator(entry) if isinstance(entry, str) else entry)
    made = {name: value for name, value in MADE.items() if name in takes}
    return {"max_episode_steps": -1 if limit else None, **made, **kwargs}


def preprocess_atari(env: gym.Env, limit: int | None, lives: bool) -> gym.Env:
    """`env`, a game of ALE's, with what is said above; `limit` actions are a game's longest.

    Raises ConfigError for what is no such game, and where OpenCV is missing.
    """
    if misfit := _misfit(env, lives):
        raise ConfigError(*misfit)
    env = AtariPreprocessing(env, NOOPS, SKIP, SIDE)
    env = gym.wrappers.TimeLimit(env, limit) if limit else env
    env = EpisodicLives(env) if lives else env
    return FireOnReset(env) if needs_fire(env) else env


def needs_fire(env: gym.Env) -> bool:
    """Whether a game is one of those that may wait for FIRE: it has more to do than that."""
    meanings = env.unwrapped.get_action_meanings()
    return len(meanings) >= 3 and meanings[FIRE] == "FIRE"


def _misfit(env: gym.Env, lives: bool) -> tuple[str, str] | None:
    """(what, fix) where `env` cannot be preprocessed; None where it can."""
    game, space = env.unwrapped, env.observation_space
    name = game.spec.id if game.spec else type(game).__name__
    if not hasattr(game, "ale") or not hasattr(game, "get_action_meanings"):
        return (f"--preprocessing=atari is for games of the Arcade Learning Environment, and {name}"
                " is none", "--preprocessing=none --end_on_life_loss=False")
    if lives and not hasattr(game.ale, "lives"):
        return f"--end_on_life_loss=True, but {name} has no lives", "--end_on_life_loss=False"
    skips = getattr(game, "_frameskip", None)
    if skips != 1:
        return (f"--preprocessing=atari holds an action for {SKIP} frames, and {name} skips frames"
                f" itself: its frameskip is {skips}",
                "leave frameskip out of env_kwargs; where a callable makes it: frameskip=1")
    if not isinstance(space, gym.spaces.Box) or len(space.shape) < 2:
        return (f"--preprocessing=atari is for frames, and the observations of {name} are of the"
                f" space {space}", "--preset=none, or obs_type=\"grayscale\" in env_kwargs")
    if not isinstance(env.action_space, gym.spaces.Discrete) \
            or game.get_action_meanings()[NOOP] != "NOOP":
        return (f"--preprocessing=atari needs actions of which the first is a no-op, and those of"
                f" {name} are {env.action_space}", "--preset=none, or without continuous=True")
    if importlib.util.find_spec("cv2") is None:
        return ("--preprocessing=atari needs OpenCV, which is not installed",
                env_hints.EXTRAS["ale_py"])
    return None
