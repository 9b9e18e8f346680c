"""Gymnasium's Pendulum-v1 as a compiled environment: its spaces, physics and rewards.

A motor that is too weak to lift a pendulum at once must swing it up. The formulas are those of
gymnasium.envs.classic_control.pendulum, in the same order, so a step from the same state has the
same result, up to the rounding of the action's float32.
"""

import math

import numba
import numpy as np
from gymnasium.spaces import Box

from fastppo import PPO, compiled_env

GRAVITY, MASS, LENGTH = 10.0, 1.0, 1.0
SECONDS = 0.05  # of a step
MAX_SPEED, MAX_TORQUE = 8.0, 2.0
HIGH = np.array([1.0, 1.0, MAX_SPEED], np.float32)

SIDE = 160  # of the picture
SKY, ROD, JOINT, MOTOR = (250, 248, 242), (204, 77, 77), (40, 40, 40), (70, 130, 200)


@numba.njit
def clip(value, limit):
    """The number in [-limit, limit] that is nearest."""
    return max(-limit, min(limit, value))


@compiled_env
class Pendulum:
    """The angle is 0 when it stands; the reward is best, 0, where it stands still."""

    observation_space = Box(-HIGH, HIGH)
    action_space = Box(-MAX_TORQUE, MAX_TORQUE, (1,))
    max_episode_steps = 200
    state = [("theta", "f8"), ("speed", "f8"), ("torque", "f8")]

    def reset(state, rng, options):
        state.theta = rng.uniform(-math.pi, math.pi)
        state.speed = rng.uniform(-1.0, 1.0)

    def step(state, action, rng):
        state.torque = torque = clip(float(action[0]), MAX_TORQUE)
        angle = (state.theta + math.pi) % (2 * math.pi) - math.pi
        cost = angle * angle + 0.1 * (state.speed * state.speed) + 0.001 * (torque * torque)
        speed = state.speed + (3 * GRAVITY / (2 * LENGTH) * math.sin(state.theta)
                               + 3.0 / (MASS * LENGTH * LENGTH) * torque) * SECONDS
        state.speed = clip(speed, MAX_SPEED)
        state.theta += state.speed * SECONDS
        return -cost, False

    def observe(state, obs):
        obs[0] = math.cos(state.theta)
        obs[1] = math.sin(state.theta)
        obs[2] = state.speed

    def render(state):
        y, x = np.mgrid[:SIDE, :SIDE] - SIDE // 2
        up = -math.sin(state.theta), -math.cos(state.theta)  # x, y: a positive angle is to the left
        along = x * up[0] + y * up[1]
        near = np.clip(along, 0, 62)
        picture = np.full((SIDE, SIDE, 3), SKY, np.uint8)
        picture[(x - near * up[0])**2 + (y - near * up[1])**2 < 64] = ROD
        # An arc around the joint shows the torque, on the side to which it turns.
        radius, angle = np.hypot(x, y), np.arctan2(-x, -y)
        share = state.torque / MAX_TORQUE * 2.5
        turned = (angle > min(share, 0)) & (angle < max(share, 0))
        picture[(radius > 20) & (radius < 25) & turned] = MOTOR
        picture[radius < 4] = JOINT
        return picture


if __name__ == "__main__":
    with PPO(Pendulum, seed=1, total_steps=300_000, gamma=0.9, lr=1e-3, action_scaling=True,
             progress="lines") as ppo:
        print(ppo.learn().evaluate(100))
