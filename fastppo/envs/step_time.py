"""Measures the seconds that a step of an environment takes."""

import math
from time import perf_counter

import gymnasium as gym
import numpy as np

from fastppo.machine.global_rng import preserved_global_rng
from fastppo.spaces.actions import ActionMapping
from fastppo.spaces.observations import ObservationLayout

MOST_STEPS, MOST_SECONDS = 300, 0.05  # the measurement ends at the first of them


def step_seconds(env: gym.Env) -> float:
    """Seconds of a step of `env` under random legal actions, with its share of the resets.

    The global random generators stay as they are. Infinity if the environment fails: training
    reports that with more detail.
    """
    try:
        with preserved_global_rng():
            actions = ActionMapping(env.action_space)
            layout = ObservationLayout(env.observation_space, env.action_space)
            rng = np.random.default_rng(0)
            obs, steps, seconds = env.reset(seed=0)[0], 0, 0.0
            while steps <= MOST_STEPS and seconds < MOST_SECONDS:
                u, z = rng.random((1, actions.size)), rng.standard_normal((1, actions.size))
                mask = layout.legal(layout.rows([obs]))
                action = actions.to_env()(actions.random(u, z, mask))[0]
                begin = perf_counter()
                obs, _, term, trunc, _ = env.step(action)
                if term or trunc:
                    obs, _ = env.reset(seed=steps)
                if steps:  # the first step may load or compile, it is not counted
                    seconds += perf_counter() - begin
                steps += 1
            return seconds / (steps - 1)
    except (Exception, SystemExit):  # an environment may raise anything
        return math.inf
