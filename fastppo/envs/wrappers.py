"""Wrappers around environments: which are added, and which a step may pass by."""

import logging
import sys
from typing import Callable

import gymnasium as gym
from gymnasium.wrappers.common import (
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    TimeLimit,
)

from fastppo.envs import masks
from fastppo.envs.spaces import MASK, has_mask
from fastppo.errors import ConfigError

UNLIMITED = sys.maxsize  # a time limit nobody reaches

# Wrappers of Gymnasium's that are kept, and what does the same without them.
SETTING_INSTEAD = {"NormalizeObservation": "norm_obs (on by default)",
         "NormalizeReward": "norm_rewards (on by default)",
         "ClipAction": "actions are clipped to their space anyway",
         "RescaleAction": "a policy's actions need no other scale than the space's"}

log = logging.getLogger("fastppo")


def stack_frames(env: gym.Env, count: int) -> gym.Env:
    """`env`, of which the last `count` observations are seen; an episode's first one is repeated.

    Raises ConfigError where an action mask would be stacked too.
    """
    if count == 1:
        return env
    if has_mask(env.observation_space):
        raise ConfigError(f"--frame_stack={count} would stack the observation's {MASK!r}, too, but"
                          " only the last one says what is legal", "leave --frame_stack out, and"
                          " stack what is to be seen in the environment")
    return gym.wrappers.FrameStackObservation(env, count)


class FreshBox2DWorld(gym.Wrapper):
    """BipedalWalker in a new Box2D world at every reset.

    Gymnasium keeps the world between episodes, and its contact solver's memory with it: then an
    episode is no function of its seed and actions (observations differ from about step 90).
    """

    def reset(self, **kwargs):
        """Like the environment's own reset, in a world without a past."""
        import Box2D
        walker = self.unwrapped
        walker._destroy()  # the old world's bodies, which the walker would else look for in the new
        walker.world = Box2D.b2World()
        return self.env.reset(**kwargs)


def make_deterministic(env: gym.Env) -> gym.Env:
    """`env` as episodes need it: a function of seed and actions."""
    kind = type(env.unwrapped)
    walker = kind.__module__ == "gymnasium.envs.box2d.bipedal_walker"
    return FreshBox2DWorld(env) if walker else env


# Whose `step` does what a Serial does itself; FreshWorld's does nothing.
SKIPPABLE = (TimeLimit, OrderEnforcing, PassiveEnvChecker, RecordEpisodeStatistics, FreshBox2DWorld)


def unchecked_step(env: gym.Env) -> tuple[Callable, int]:
    """(step, limit): a `step` that does what env's does, if one checks, counts and cuts oneself.

    It is that of the first wrapper, from outside, that does anything else; `limit` is the length in
    steps at which those passed by truncate. To be asked for anew in every episode. `env` stays as
    it is: its `reset` and attributes are all there.
    """
    if isinstance(env, masks.ActionMaskWrapper):
        step, limit = unchecked_step(env.env)
        return env.around(step), limit
    limit = UNLIMITED
    while type(env) in SKIPPABLE and "step" not in vars(env):
        if type(env) is TimeLimit:
            limit = min(limit, env._max_episode_steps)
        env = env.env
    return env.step, limit


def warn_redundant_wrappers(env: gym.Env) -> None:
    """Say, in one line, which wrappers around `env` do what a Config asks for without them."""
    found = []
    while isinstance(env, gym.Wrapper):
        if type(env).__module__.startswith("gymnasium.wrappers."):
            found += [type(env).__name__] if type(env).__name__ in SETTING_INSTEAD else []
        env = env.env
    if found:
        log.warning("the environment is wrapped in %s, which stays; fastppo does the same itself,"
                    " faster, and twice is not better: %s", ", ".join(found),
                    ", ".join(SETTING_INSTEAD[name] for name in found))
