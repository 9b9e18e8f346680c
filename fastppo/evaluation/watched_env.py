"""Episodes of a frozen policy, one after another, in an environment that is rendered."""

import dataclasses
import inspect
import os
from contextlib import contextmanager
from typing import Any, Callable, Iterator, NamedTuple

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, load_env_creator

from fastppo.arguments.policy_options import check_episodes
from fastppo.envs.make import EnvFactory
from fastppo.errors import ConfigError
from fastppo.evaluation.evaluate import EvaluationEnvs, evaluation_envs
from fastppo.machine.limits import has_display
from fastppo.networks.torch_state import torch_threads
from fastppo.policy import Policy

WINDOW, FRAMES = "human", "rgb_array"  # render modes


class WatchedMoment(NamedTuple):
    """The place in an episode at which an observation is seen."""

    episode: int  # from 0 on
    step: int  # steps that were taken
    total: float  # undiscounted return so far
    over: bool  # True for the last observation of the episode


@contextmanager
def watched_env(policy: Policy, factory: EnvFactory, seed: int, mode: str | None
                ) -> Iterator[EvaluationEnvs]:
    """One new environment with the render mode `mode`, for episodes with a frozen policy.

    None: any, it is not rendered. Afterwards it is closed. Raises ConfigError if it does not have
    that render mode.
    """
    make = factory if mode is None else with_render_mode(factory, mode)
    if mode == FRAMES and not has_display():  # which SDL and GLFW would look for
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")
    with torch_threads(1), evaluation_envs(policy, [make], seed) as envs:
        if mode is not None and envs.envs[0].render_mode != mode:
            raise no_render_mode(factory, mode, envs.envs[0])
        yield envs


def watched_moments(envs: EvaluationEnvs, episodes: int, deterministic: bool
                    ) -> Iterator[WatchedMoment]:
    """Plays episodes 0 .. episodes - 1 in the first environment; yields after resets and steps.

    They are the episodes of `evaluate` with the same seed.
    """
    check_episodes(episodes)
    for number in range(episodes):
        envs.begin(0, number)
        step, total, over = 0, 0.0, False
        yield WatchedMoment(number, step, total, over)
        while not over:
            (_, rew, over), = envs.steps([0], deterministic)
            step, total = step + 1, total + rew
            yield WatchedMoment(number, step, total, over)


def with_render_mode(factory: EnvFactory, mode: str) -> EnvFactory:
    """`factory` with the argument render_mode, if its constructor takes one.

    Raises ConfigError if the metadata of a class lacks the mode.
    """
    maker = constructor_of(factory)
    modes = getattr(maker, "metadata", {}).get("render_modes")
    # Gymnasium makes a window of frames itself.
    usable = {mode, FRAMES} if isinstance(factory.constructor, EnvSpec) else {mode}
    if modes is not None and not usable & {*modes}:
        raise no_render_mode(factory, mode, maker)
    arguments = {**factory.kwargs, "render_mode": mode}
    return dataclasses.replace(factory, kwargs=arguments) if takes(maker, "render_mode") \
        else factory


def constructor_of(factory: EnvFactory) -> Callable:
    """The class or function that makes the environment, before any wrapper."""
    spec = factory.constructor
    if not isinstance(spec, EnvSpec):
        return spec
    return load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) \
        else spec.entry_point


def takes(function: Callable, argument: str) -> bool:
    """True if a function or class has an argument of this name, or any."""
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:  # it is written in C and has no signature
        return True
    return any(one.name == argument or one.kind is one.VAR_KEYWORD for one in found)


def no_render_mode(factory: EnvFactory, mode: str, owner: Any) -> ConfigError:
    """The error for an environment, or a class of them, that lacks a render mode."""
    modes = ", ".join(getattr(owner, "metadata", {}).get("render_modes", [])) or "none"
    return ConfigError(
        f"{factory.name} cannot be shown: it is not made with the render mode {mode}; the render"
        f" modes in its metadata: {modes}",
        f'give its class metadata = {{"render_modes": ["{mode}"]}}, and its constructor an argument'
        " render_mode, which it keeps as self.render_mode, and a method render(); or"
        " --view=network")


def frames_per_second(env: gym.Env) -> float:
    """The rate at which an environment is meant to be seen, by its metadata; 30 without one."""
    return float(env.metadata.get("render_fps") or 30)
