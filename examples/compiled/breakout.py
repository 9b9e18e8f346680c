"""Breakout in pixels: a ball, a paddle, and bricks to knock out of a wall, learnt by convolutions.

The game is a grid of cells, each of which is a square of 2 x 2 pixels of the observation. One
picture shows the ball and, in grey, where it was before, so that its direction can be seen.
"""

import numpy as np
from gymnasium.spaces import Box, Discrete

from fastppo import PPO, compiled_env

SIDE, SCALE = 18, 2  # cells of the grid's sides; pixels of a cell's side
TOP, ROWS, COLUMNS, BRICK = 2, 4, 6, 3  # rows above the bricks; their rows and columns; their cells
PADDLE = 6  # cells
BOUNCES = np.array([-2, -1, -1, 1, 1, 2])  # cells aside in a step, by where the paddle hits
COLORS = np.array([[210, 70, 70], [225, 150, 60], [90, 170, 90], [70, 110, 210]])  # of the rows
ZOOM = 8  # pixels of a cell's side in a picture


@compiled_env
class Breakout:
    """Actions move the paddle by -2, 0 and 2 cells; a brick gives 1, and losing the ball -1."""

    observation_space = Box(0, 255, (SIDE * SCALE, SIDE * SCALE), np.uint8)
    action_space = Discrete(3)
    max_episode_steps = 1_000
    state = [("bricks", "i8", (ROWS, COLUMNS)), ("paddle", "i8"), ("y", "i8"), ("x", "i8"),
             ("dy", "i8"), ("dx", "i8"), ("old_y", "i8"), ("old_x", "i8")]

    def reset(state, rng, options):
        state.bricks[:] = 1
        state.paddle = rng.integers(0, SIDE - PADDLE + 1)
        state.y = state.old_y = TOP + ROWS + 1
        state.x = state.old_x = rng.integers(0, SIDE)
        state.dy, state.dx = 1, BOUNCES[rng.integers(0, PADDLE)]

    def step(state, action, rng):
        state.paddle = min(max(state.paddle + 2 * (action - 1), 0), SIDE - PADDLE)
        state.old_y, state.old_x = state.y, state.x
        x, y = state.x + state.dx, state.y + state.dy
        if not 0 <= x < SIDE:
            x = -x if x < 0 else 2 * (SIDE - 1) - x
            state.dx = -state.dx
        if y < 0:
            y, state.dy = 1, 1
        row, column, hit = y - TOP, x // BRICK, False
        if 0 <= row < ROWS and state.bricks[row, column]:
            state.bricks[row, column], hit = 0, True
            state.dy, y = -state.dy, state.y
        elif y == SIDE - 1 and state.paddle <= x < state.paddle + PADDLE:
            state.dy, state.dx, y = -1, BOUNCES[x - state.paddle], y - 1
        state.x, state.y = x, y
        lost = y == SIDE - 1
        return -1.0 if lost else 1.0 if hit else 0.0, lost or state.bricks.sum() == 0

    def observe(state, obs):
        for row in range(ROWS):
            for column in range(COLUMNS):
                y, x = (TOP + row) * SCALE, column * BRICK * SCALE
                obs[y:y + SCALE, x:x + BRICK * SCALE] = 170 * state.bricks[row, column]
        for y, x, width, grey in ((state.old_y, state.old_x, 1, 90), (state.y, state.x, 1, 255),
                                  (SIDE - 1, state.paddle, PADDLE, 255)):
            obs[y * SCALE:(y + 1) * SCALE, x * SCALE:(x + width) * SCALE] = grey

    def render(state):
        cells = np.full((SIDE, SIDE, 3), 24, np.uint8)
        bricks = state.bricks.repeat(BRICK, 1)[..., None]
        cells[TOP:TOP + ROWS] += (bricks * COLORS[:, None]).astype(np.uint8)
        cells[-1, state.paddle:state.paddle + PADDLE] = 120, 200, 230
        cells[state.old_y, state.old_x], cells[state.y, state.x] = 90, 255
        return cells.repeat(ZOOM, 0).repeat(ZOOM, 1)


if __name__ == "__main__":
    with PPO(Breakout, seed=1, model="cnn", num_envs=32, num_steps=64, total_steps=250_000,
             gamma=0.98, lr=1e-3, epochs=3, num_minibatches=8, entropy_coef=0.01,
             progress="lines") as ppo:
        print(ppo.learn().evaluate(100))
