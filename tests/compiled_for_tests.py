"""Compiled environments that use all that one may have, and the same ones as Python runs them."""

import math

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from fastppo import compiled_env
from fastppo.compiled_envs.definition import Interpreted

# An environment of one number, which halves, in C.
C_CODE = """
#include <stdint.h>
typedef struct { uint64_t seed, draws; } Stream;
int32_t reset(double *state, Stream *rng, const void *options) { *state = 0.5; return 0; }
int32_t step(double *state, const int64_t *action, Stream *rng, double *reward) {
    *reward = *state *= 0.5;
    return *state < 0.1;
}
int32_t observe(const double *state, float *obs) { *obs = (float)*state; return 0; }
"""


@compiled_env
class Drift:
    """A point that drifts at random and ends beyond 1; options, and every kind of random number."""

    observation_space = Box(-np.inf, np.inf, (3,), np.float32)
    action_space = Discrete(3)
    max_episode_steps = 12
    state = [("place", "f8"), ("steps", "i8"), ("fast", "?")]
    options = {"speed": 0.1, "bounds": [-1.0, 1.0]}

    def reset(state, rng, options):
        state.place = rng.uniform(-0.2, 0.2) * 10 * options.speed
        state.fast = rng.integers(0, 2)

    def step(state, action, rng):
        state.steps += 1
        state.place += 0.1 * (action - 1) + rng.normal(0.0, 0.3) * (1 + state.fast)
        return state.place - rng.random(), abs(state.place) > 1

    def observe(state, obs):
        obs[0] = state.place
        obs[1] = math.sqrt(state.steps)

    def render(state):
        picture = np.zeros((64, 64, 3), np.uint8)
        picture[32, int(32 + 16 * np.clip(state.place, -1, 1))] = 255
        return picture


@compiled_env
class Cards:
    """Cards to take, the legal ones alone; an observation of parts, with a mask."""

    observation_space = Dict(board=Box(0, 9, (2, 3), np.uint8), total=Box(-9, 99, (1,), np.float32),
                             action_mask=MultiBinary(5))
    action_space = MultiDiscrete([2, 3])
    state = [("cards", "i8", (2, 3)), ("total", "f8")]

    def reset(state, rng, options):
        for row in range(2):
            for column in range(3):
                state.cards[row, column] = rng.integers(0, 3)
        state.cards[0, 0] = state.cards[1, 2] = 2

    def step(state, action, rng):
        row, column = action[0], action[1]
        gain = state.cards[row, column]
        state.cards[row, column] = max(gain - 1, 0)
        state.total += gain
        return gain, state.cards[row].sum() == 0 or state.cards[:, column].sum() == 0

    def observe(state, obs):
        obs.board[:] = state.cards
        obs.total[0] = state.total
        for row in range(2):
            obs.action_mask[row] = state.cards[row].sum() > 0
        for column in range(3):
            obs.action_mask[2 + column] = state.cards[:, column].sum() > 0


@compiled_env
class Push:
    """A point to push by two forces; never over but by the limit."""

    observation_space = Box(-10, 10, (2,), np.float32)
    action_space = Box(-1.0, 1.0, (2,), np.float32)
    max_episode_steps = 7
    state = [("place", "f8", (2,))]

    def reset(state, rng, options):
        state.place[0] = rng.random()

    def step(state, action, rng):
        for i in range(2):
            state.place[i] = max(-9.0, min(9.0, state.place[i] + action[i]))
        return -abs(state.place[0]), False

    def observe(state, obs):
        obs[:] = state.place


def in_python(kind, **options):
    """A function that makes the same environment as Python runs it, which Serial steps."""
    def make():
        env = kind(**options)
        env.code = Interpreted(kind.definition)
        env.use(env.memory)
        return env
    make.__qualname__ = kind.__qualname__
    return make
