"""Gymnasium's CartPole-v1 as a compiled environment: its spaces, physics, ends and rewards.

A cart on a track balances a pole; action 0 pushes it to the left, 1 to the right. The formulas are
those of gymnasium.envs.classic_control.cartpole, in the same order, so a step from the same state
has the same result. The random numbers of the resets are others.
"""

import math

import numpy as np
from gymnasium.spaces import Box, Discrete

from fastppo import PPO, compiled_env

GRAVITY = 9.8
POLE_MASS, TOTAL_MASS = 0.1, 0.1 + 1.0
LENGTH = 0.5  # of half the pole
POLE_MOMENT = POLE_MASS * LENGTH
FORCE = 10.0
SECONDS = 0.02  # of a step
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * math.pi / 360
HIGH = np.array([2 * X_LIMIT, np.inf, 2 * ANGLE_LIMIT, np.inf], np.float32)

HEIGHT, WIDTH, PIXELS = 160, 240, 48  # of the picture; pixels of a unit of x
SKY, GROUND, CART, POLE = (236, 244, 252), (120, 110, 100), (40, 60, 90), (214, 120, 60)


@compiled_env
class CartPole:
    """The angle is 0 when the pole stands; each step gives 1 until it falls or the cart leaves."""

    observation_space = Box(-HIGH, HIGH)
    action_space = Discrete(2)
    max_episode_steps = 500
    state = [("x", "f8"), ("x_dot", "f8"), ("theta", "f8"), ("theta_dot", "f8")]

    def reset(state, rng, options):
        state.x = rng.uniform(-0.05, 0.05)
        state.x_dot = rng.uniform(-0.05, 0.05)
        state.theta = rng.uniform(-0.05, 0.05)
        state.theta_dot = rng.uniform(-0.05, 0.05)

    def step(state, action, rng):
        force = FORCE if action == 1 else -FORCE
        cos, sin = math.cos(state.theta), math.sin(state.theta)
        push = (force + POLE_MOMENT * (state.theta_dot * state.theta_dot) * sin) / TOTAL_MASS
        theta_acc = (GRAVITY * sin - cos * push) / (
            LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / TOTAL_MASS))
        x_acc = push - POLE_MOMENT * theta_acc * cos / TOTAL_MASS
        state.x += SECONDS * state.x_dot  # Euler: the velocities are those before the step
        state.x_dot += SECONDS * x_acc
        state.theta += SECONDS * state.theta_dot
        state.theta_dot += SECONDS * theta_acc
        return 1.0, abs(state.x) > X_LIMIT or abs(state.theta) > ANGLE_LIMIT

    def observe(state, obs):
        obs[0] = state.x
        obs[1] = state.x_dot
        obs[2] = state.theta
        obs[3] = state.theta_dot

    def render(state):
        y, x = np.mgrid[:HEIGHT, :WIDTH] - np.array([120, WIDTH / 2]).reshape(2, 1, 1)
        x = x - state.x * PIXELS  # from here on (0, 0) is the joint of cart and pole
        sin, cos = math.sin(state.theta), math.cos(state.theta)
        along, across = x * sin - y * cos, x * cos + y * sin  # the pole's own axes
        picture = np.full((HEIGHT, WIDTH, 3), SKY, np.uint8)
        picture[131:] = GROUND
        picture[(abs(x) < 25) & (abs(y) < 10)] = CART
        picture[(abs(across) < 4) & (along > 0) & (along < 2 * LENGTH * 100)] = POLE
        picture[x**2 + y**2 < 25] = SKY
        return picture


if __name__ == "__main__":
    with PPO(CartPole, seed=1, total_steps=200_000, progress="lines") as ppo:
        print(ppo.learn().evaluate(100))
