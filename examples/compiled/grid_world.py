"""A grid world: find the key, open the door, reach the goal, in rooms that differ every time.

The observation is the map, a small code for each cell. As a MultiDiscrete space the codes are
choices, of which the network gets one column each; as numbers of a Box they are learnt worse.
"""

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete

from fastppo import PPO, compiled_env

SIDE = 7
FLOOR, WALL, KEY, DOOR, GOAL, AGENT = range(6)
MOVES = np.array([[-1, 0], [1, 0], [0, -1], [0, 1]])  # up, down, left, right: rows and columns
STEP, PROGRESS = -0.01, 0.3  # rewards of a step, and of the key and the door; the goal gives 1

CELL = 24  # pixels of a cell's side
COLORS = np.array([[240, 234, 220], [90, 96, 110], [240, 190, 40], [150, 90, 50], [80, 180, 100],
                   [60, 110, 210]], np.uint8)  # of the codes


@compiled_env
class GridWorld:
    """A wall with a door divides the map; the agent and the key are on its left, the goal is right.

    The four actions move the agent by a cell; without the key the door is a wall.
    """

    observation_space = MultiDiscrete(np.full((SIDE, SIDE), 6))
    action_space = Discrete(4)
    max_episode_steps = 100
    state = [("grid", "i8", (SIDE, SIDE)), ("y", "i8"), ("x", "i8"), ("has_key", "i8")]

    def reset(state, rng, options):
        state.grid[0, :] = state.grid[-1, :] = state.grid[:, 0] = state.grid[:, -1] = WALL
        middle = rng.integers(2, SIDE - 2)  # the column of the wall
        state.grid[:, middle] = WALL
        state.grid[rng.integers(1, SIDE - 1), middle] = DOOR
        state.grid[rng.integers(1, SIDE - 1), rng.integers(middle + 1, SIDE - 1)] = GOAL
        state.grid[rng.integers(1, SIDE - 1), rng.integers(1, middle)] = KEY
        while state.grid[state.y, state.x] != FLOOR:  # cell 0, 0 is a wall
            state.y, state.x = rng.integers(1, SIDE - 1), rng.integers(1, middle)
        state.grid[state.y, state.x] = AGENT

    def step(state, action, rng):
        y, x = state.y + MOVES[action, 0], state.x + MOVES[action, 1]
        found = state.grid[y, x]
        if found == WALL or found == DOOR and not state.has_key:
            return STEP, False
        state.grid[state.y, state.x], state.grid[y, x] = FLOOR, AGENT  # an open door is gone
        state.y, state.x = y, x
        if found == KEY:
            state.has_key = 1
        reward = 1.0 if found == GOAL else PROGRESS if found == KEY or found == DOOR else 0.0
        return STEP + reward, found == GOAL

    def observe(state, obs):
        obs[:] = state.grid

    def render(state):
        picture = COLORS[state.grid].repeat(CELL, 0).repeat(CELL, 1)
        picture[::CELL] //= 2  # lines between the cells
        picture[:, ::CELL] //= 2
        return picture


if __name__ == "__main__":
    with PPO(GridWorld, seed=1, num_envs=32, num_steps=128, total_steps=600_000, lr=1e-3,
             epochs=4, num_minibatches=8, entropy_coef=0.01, norm_obs=False,
             hidden_sizes=(128, 128), progress="lines") as ppo:
        print(ppo.learn().evaluate(100))
