"""Measures the seconds that a step of an environment takes."""

import math
from time import perf_counter
from typing import Any, Callable

import gymnasium as gym
import numpy as np

from fastppo.envs.actions import ActionMapping
from fastppo.envs.observations import ObservationLayout
from fastppo.machine import kernels
from fastppo.machine.global_rng import preserved_global_rng
from fastppo.machine.kernels import Purpose

MOST_STEPS, MOST_SECONDS = 300, 0.05  # of measuring, whichever is first
ACTIONS = 64


def step_seconds(env: gym.Env) -> float:
    """Seconds that a step of `env` takes under random actions, with its share of the resets.

    At most 300 steps or 50 ms, or two steps if they take longer. The process's shared generators
    are left as they were; infinite where the environment fails, which its run will tell better.
    """
    try:
        with preserved_global_rng():
            return _measured(env)
    except (Exception, SystemExit):  # an environment may raise anything
        return math.inf


def _measured(env: gym.Env) -> float:
    chosen = _chooser(env)
    obs, steps, seconds = env.reset(seed=0)[0], -1, 0.0
    while steps < MOST_STEPS and seconds < MOST_SECONDS:
        action, begun = chosen(obs, steps), perf_counter()
        obs, _, term, trunc, _ = env.step(action)
        steps += 1
        if term or trunc:
            obs, _ = env.reset(seed=steps)
        if steps:  # the first one may load or compile what the others only use
            seconds += perf_counter() - begun
    return seconds / steps


def _chooser(env: gym.Env) -> Callable[[Any, int], Any]:
    """A function from an observation and the number of a step to a random legal action."""
    acts, seen = ActionMapping(env.action_space), ObservationLayout(env.observation_space, env.action_space)
    u, z = (np.empty((ACTIONS, acts.size), np.float32) for _ in "uz")
    kernels.uniform(0, Purpose.WARMUP, 0, 0, u)
    kernels.normal(0, Purpose.WARMUP, 0, 1, z)
    to_env = acts.to_env()
    if seen.mask is None:
        actions = to_env(acts.random(u, z))
        return lambda obs, step: actions[step % ACTIONS]

    def legal(obs, step: int):
        row, mask = slice(step % ACTIONS, step % ACTIONS + 1), seen.legal(seen.rows([obs]))
        return to_env(acts.random(u[row], z[row], mask))[0]
    return legal
