"""dm_control's cartpole-swingup as functions that Numba compiles, which train much faster.

The pole and the cart, their damping, the reward and the limit of 1,000 steps are those of
dm_control 1.0 (suite/cartpole.py and cartpole.xml); the rail ends without a bounce, and two
semi-implicit Euler steps stand for its Runge-Kutta step.
"""

import math

import numba
import numpy as np
from gymnasium.spaces import Box

from fastppo import compiled_env

CART, POLE, HALF = 1.0, 0.1, 0.5  # kg, kg, m: the pole's half length
INERTIA = POLE * HALF**2 * 4 / 3  # about the hinge
FORCE, RAIL, STEP = 10.0, 1.8, 0.005  # N, m, s


@numba.njit
def near_zero(x: float, margin: float) -> float:
    """1 at 0, and 0.1 at the margin: dm_control's gaussian tolerance."""
    return 0.1 ** (x / margin) ** 2


@numba.njit
def accelerations(state, force: float) -> tuple[float, float]:
    """(m/s² of the cart, rad/s² of the pole)."""
    sine, total = math.sin(state.angle), CART + POLE
    coupling = POLE * HALF * math.cos(state.angle)
    cart = force + POLE * HALF * state.spin**2 * sine - 5e-4 * state.speed
    pole = POLE * 9.81 * HALF * sine - 2e-6 * state.spin
    scale = total * INERTIA - coupling**2
    return (INERTIA * cart - coupling * pole) / scale, (total * pole - coupling * cart) / scale


@compiled_env
class Swingup:
    """Swing a pole up with a cart, and balance it; the return is at most 1,000."""

    observation_space = Box(-np.inf, np.inf, (5,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)
    max_episode_steps = 1_000
    state = [(name, "f8") for name in ("place", "speed", "angle", "spin")]  # angle 0: upright

    def reset(state, rng, options):
        state.place, state.angle = rng.normal(0.0, 0.01), math.pi + rng.normal(0.0, 0.01)
        state.speed, state.spin = rng.normal(0.0, 0.01), rng.normal(0.0, 0.01)

    def step(state, action, rng):
        push = min(max(float(action[0]), -1.0), 1.0)
        for _ in range(2):
            cart, pole = accelerations(state, FORCE * push)
            state.speed += STEP * cart
            state.spin += STEP * pole
            state.place += STEP * state.speed
            state.angle += STEP * state.spin
            if abs(state.place) > RAIL:
                state.place, state.speed = math.copysign(RAIL, state.place), 0.0
        return (1 + math.cos(state.angle)) / 2 * (1 + near_zero(state.place, 2.0)) / 2 * (
            5 - push**2) / 5 * (1 + near_zero(state.spin, 5.0)) / 2, False

    def observe(state, obs):
        obs[0], obs[1], obs[2] = state.place, math.cos(state.angle), math.sin(state.angle)
        obs[3], obs[4] = state.speed, state.spin
