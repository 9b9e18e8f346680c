"""Episodes of a frozen policy, one after another, in an environment that is rendered."""

import os
from contextlib import contextmanager
from typing import Iterator, NamedTuple

import gymnasium as gym

from fastppo.arguments.policy_options import check_episodes
from fastppo.envs.make import EnvFactory
from fastppo.errors import ConfigError
from fastppo.evaluation.evaluate import EvaluationEnvs, evaluation_envs
from fastppo.evaluation.factories import FRAMES, with_render_mode
from fastppo.machine import limits
from fastppo.networks.torch_state import torch_threads
from fastppo.policy import Policy


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
    if mode == FRAMES and not limits.has_display():  # which SDL and GLFW would look for
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("MUJOCO_GL", "egl")
    with torch_threads(1), evaluation_envs(policy, [make], seed) as envs:
        if mode is not None and envs.envs[0].render_mode != mode:
            modes = ", ".join((envs.envs[0].metadata or {}).get("render_modes") or []) or "none"
            raise ConfigError(
                f"{factory.name} cannot be shown: it is not made with the render mode {mode}; the"
                f" render modes in its metadata: {modes}",
                f'give its class metadata = {{"render_modes": ["{mode}"]}}, and its constructor an'
                " argument render_mode, which it keeps as self.render_mode, and a method render();"
                " or --view=network")
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


def frames_per_second(env: gym.Env) -> float:
    """The rate at which an environment is meant to be seen, by its metadata; 30 without one."""
    return float(env.metadata.get("render_fps") or 30)
