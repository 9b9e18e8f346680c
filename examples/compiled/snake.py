"""Snake: steer to the food, grow, and run neither into a wall nor into yourself.

The body is a ring buffer of cells in the state. The observation is what surrounds the head, turned
to the direction of travel, so that no place and no direction must be learnt on its own.
"""

import numpy as np
from gymnasium.spaces import Box, Discrete

from fastppo import PPO, compiled_env

SIDE, VIEW = 10, 4  # cells of the board; cells that are seen in each direction
WIDTH = SIDE + 2 * VIEW  # of the board with its walls, which are as thick as the view is far
INSIDE = slice(VIEW, VIEW + SIDE)
STEPS = np.array([-WIDTH, 1, WIDTH, -1])  # from cell to cell: up, right, down, left
PIXELS = 14  # of a cell's side


@compiled_env
class Snake:
    """The actions turn left, go on and turn right; food gives 1, death -1."""

    observation_space = Box(-1, 1, ((2 * VIEW + 1) ** 2 + 2,))
    action_space = Discrete(3)
    max_episode_steps = 1_000
    state = [("board", "i8", (WIDTH * WIDTH,)), ("body", "i8", (SIDE * SIDE,)), ("newest", "i8"),
             ("length", "i8"), ("heading", "i8"), ("food", "i8")]

    def reset(state, rng, options):
        state.board[:] = 1
        state.board.reshape(WIDTH, WIDTH)[INSIDE, INSIDE] = 0
        state.length, state.heading = 1, rng.integers(0, 4)
        while state.board[state.body[0]]:
            state.body[0] = rng.integers(0, WIDTH * WIDTH)
        state.board[state.body[0]] = 1
        while state.board[state.food]:  # cell 0 is a wall
            state.food = rng.integers(0, WIDTH * WIDTH)

    def step(state, action, rng):
        state.heading = (state.heading + action + 3) % 4
        head = state.body[state.newest] + STEPS[state.heading]
        if head == state.food:
            state.length += 1
        else:  # the tail leaves its cell before the head comes
            state.board[state.body[(state.newest - state.length + 1) % SIDE**2]] = 0
        if state.board[head]:
            return -1.0, True
        state.newest = (state.newest + 1) % SIDE**2
        state.body[state.newest], state.board[head] = head, 1
        if head != state.food:
            return 0.0, False
        while state.board[state.food] and state.length < SIDE**2:
            state.food = rng.integers(0, WIDTH * WIDTH)
        return 1.0, state.length == SIDE**2

    def observe(state, obs):
        head, ahead = state.body[state.newest], STEPS[state.heading]
        right, side = STEPS[(state.heading + 1) % 4], 2 * VIEW + 1
        for i in range(side * side):
            obs[i] = state.board[head + (i // side - VIEW) * ahead + (i % side - VIEW) * right]
        down, across = state.food // WIDTH - head // WIDTH, state.food % WIDTH - head % WIDTH
        for _ in range(state.heading):
            down, across = -across, down  # turned to the left
        obs[side * side], obs[side * side + 1] = down / SIDE, across / SIDE

    def render(state):
        colors = np.full((WIDTH * WIDTH, 3), (34, 40, 49), np.uint8)
        for age in range(state.length):  # the older, the darker
            colors[state.body[state.newest - age]] = 60, 220 - 140 * age // state.length, 90
        colors[state.body[state.newest]], colors[state.food] = (240, 220, 90), (225, 70, 70)
        picture = colors.reshape(WIDTH, WIDTH, 3)[INSIDE, INSIDE].repeat(PIXELS, 0)
        return picture.repeat(PIXELS, 1)


if __name__ == "__main__":
    with PPO(Snake, seed=1, num_envs=64, num_steps=128, total_steps=3_000_000, lr=1e-3,
             epochs=4, num_minibatches=8, entropy_coef=0.01, progress="lines") as ppo:
        print(ppo.learn().evaluate(100))
