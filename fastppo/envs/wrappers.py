"""Wrappers around environments: those that are added, and those that a step can skip."""

import copy
import itertools
import re
import sys
from typing import Any, Callable, Sequence

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Dict, MultiDiscrete

from fastppo.envs import masks
from fastppo.envs.images import ImagePreprocessing
from fastppo.errors import ConfigError, Omit
from fastppo.spaces.leaves import MASK, has_mask

MISSION = "mission"  # the key of the sentence in an observation of MiniGrid
# BabyAI's spaces do not list its sentences: these are the words of its grammar, and the number of
# words in the longest one, which has four times "put ... next to ..."
# (minigrid/envs/babyai/core/verifier.py).
BABYAI_WORDS = (", a after and ball behind blue box door front go green grey in key left next"
                " object of on open pick purple put red right the then to up yellow you"
                " your").split()
BABYAI_LONGEST = 72

UNLIMITED = sys.maxsize  # the time limit of an environment without one


def stack_frames(env: gym.Env, count: int) -> gym.Env:
    """`env` with its last `count` observations stacked; an episode's first one is repeated.

    Raises ConfigError for observations with an action mask, which would be stacked too.
    """
    if has_mask(env.observation_space):
        raise ConfigError(f"frame_stack={count} would stack the observation's {MASK!r}, too",
                          (Omit("frame_stack"), "stack the other parts in the environment"))
    return gym.wrappers.FrameStackObservation(env, count)


class MissionWords(gym.ObservationWrapper):
    """A MiniGrid environment whose mission is a row of numbers, one for each word, then zeros."""

    def __init__(self, env: gym.Env, words: Sequence[str], longest: int):
        super().__init__(env)
        self.numbers = {word: number for number, word in enumerate(words, 1)}
        self.longest = longest
        choices = MultiDiscrete([len(words) + 1] * longest)
        self.observation_space = Dict({**env.observation_space.spaces, MISSION: choices})

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        """`observation` with numbers i64 [longest]; ValueError if its space has no such mission."""
        words = words_of(observation[MISSION])
        if len(words) > self.longest or not self.numbers.keys() >= {*words}:
            raise ValueError(f"the mission {observation[MISSION]!r} is not one of its space's")
        row = np.zeros(self.longest, np.int64)
        row[:len(words)] = [self.numbers[word] for word in words]
        return {**observation, MISSION: row}


def read_mission(env: gym.Env) -> gym.Env:
    """`env` with the mission of a MiniGrid environment, a sentence, as numbers of words.

    A mission that is always the same is left out of the observations. Other environments stay.
    """
    space = getattr(env, "observation_space", None)
    spaces = space.spaces if isinstance(space, Dict) else {}
    if not any(kind.__name__ == "MissionSpace" and kind.__module__.startswith("minigrid.")
               for kind in type(spaces.get(MISSION)).__mro__):  # MiniGrid is not imported
        return env
    words, longest, fixed = mission_words(spaces[MISSION])
    if not fixed:
        return MissionWords(env, words, longest)
    rest = Dict({key: space for key, space in spaces.items() if key != MISSION})
    return gym.wrappers.TransformObservation(
        env, lambda obs: {key: obs[key] for key in rest.spaces}, rest)


def mission_words(space: Any) -> tuple[list[str], int, bool]:
    """(words, most words of a sentence, True if there is one sentence only) of a MissionSpace."""
    if type(space).__name__ == "BabyAIMissionSpace":
        return BABYAI_WORDS, BABYAI_LONGEST, False
    sentences = {space.mission_func(*words)
                 for words in itertools.product(*space.ordered_placeholders or ())}
    split = [words_of(sentence) for sentence in sentences]
    return sorted({word for words in split for word in words}), max(map(len, split)), len(split) < 2


def words_of(sentence: str) -> list[str]:
    """The words and commas of a sentence."""
    return re.findall(r"\w+|,", sentence)


class FreshBox2DWorld(gym.Wrapper):
    """BipedalWalker in a new Box2D world at every reset.

    Gymnasium keeps the world, and with it the memory of the contact solver, between episodes. Then
    an episode is no function of its seed and actions (observations differ from about step 90).
    """

    def reset(self, **kwargs):
        """The environment's reset, in a new world."""
        import Box2D
        walker = self.unwrapped
        walker._destroy()  # the next reset would look for the bodies in the new world
        walker.world = Box2D.b2World()
        return self.env.reset(**kwargs)


def make_deterministic(env: gym.Env) -> gym.Env:
    """`env`, wrapped if its episodes are otherwise no function of seed and actions.

    Wrappers that stack observations get copies: they keep references, and an environment may write
    every observation into one buffer.
    """
    kind, inner = type(env.unwrapped), env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, gym.wrappers.FrameStackObservation):
            inner.env = gym.wrappers.TransformObservation(
                inner.env, copy.deepcopy, inner.env.observation_space)
        inner = inner.env
    walker = kind.__module__ == "gymnasium.envs.box2d.bipedal_walker"
    return FreshBox2DWorld(env) if walker else env


# Wrappers whose step does what Serial does itself, or nothing (FreshBox2DWorld).
SKIPPABLE = (gym.wrappers.TimeLimit, gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker,
             gym.wrappers.RecordEpisodeStatistics, FreshBox2DWorld)


def step_limit(env: gym.Env) -> int | None:
    """Steps after which a wrapper truncates an episode, the shortest of several; None without."""
    found, repeats = [], 1
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            found.append(-(-env._max_episode_steps // repeats))
        repeats *= env.frames if isinstance(env, ImagePreprocessing) else 1
        env = env.env
    return min(found, default=None)


def unchecked_step(env: gym.Env) -> tuple[Callable, int]:
    """(step, limit): the step of `env` without its outer skippable wrappers.

    The caller checks actions, counts steps and truncates after `limit` steps, the shortest of the
    skipped time limits. Call it again in every episode, because `env.step` may be replaced. `env`
    is not changed; call its own `reset`.
    """
    if isinstance(env, masks.ActionMaskWrapper):
        step, limit = unchecked_step(env.env)
        return env.masked_step(step), limit
    limit = UNLIMITED
    while type(env) in SKIPPABLE and "step" not in vars(env):
        if type(env) is gym.wrappers.TimeLimit:
            limit = min(limit, env._max_episode_steps)
        env = env.env
    return env.step, limit
