"""Wrappers around environments: those that are added, and those that a step can skip."""

import copy
import logging
import sys
from typing import Callable

import gymnasium as gym

from fastppo.envs import masks
from fastppo.envs.spaces import MASK, has_mask
from fastppo.errors import ConfigError
from fastppo.settings.fixes import Omit

# Wrappers that do what training does itself, and the setting or rule that does it.
DOUBLED = {gym.wrappers.NormalizeObservation: "norm_obs",
           gym.wrappers.NormalizeReward: "norm_rewards",
           gym.wrappers.ClipAction: "clipping every action to its space",
           gym.wrappers.RescaleAction: "action_scaling"}

log = logging.getLogger("fastppo")

UNLIMITED = sys.maxsize  # the time limit of an environment without one


def stack_frames(env: gym.Env, count: int) -> gym.Env:
    """`env` with its last `count` observations stacked; an episode's first one is repeated.

    Raises ConfigError for observations with an action mask, which would be stacked too.
    """
    if count == 1:
        return env
    if has_mask(env.observation_space):
        raise ConfigError(f"frame_stack={count} would stack the observation's {MASK!r}, too, but"
                          " only the last one says what is legal",
                          (Omit("frame_stack"), "stack the other parts in the environment"))
    return gym.wrappers.FrameStackObservation(env, count)


def warn_of_doubled(env: gym.Env) -> None:
    """Warns of wrappers around `env` that do what training does itself; they stay."""
    while isinstance(env, gym.Wrapper):
        if type(env) in DOUBLED:
            log.warning("the environment is wrapped in %s, and training does the same, faster, by"
                        " %s: one of them is enough", type(env).__name__, DOUBLED[type(env)])
        env = env.env


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
    found = []
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.TimeLimit):
            found.append(env._max_episode_steps)
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
