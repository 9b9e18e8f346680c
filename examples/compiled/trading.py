"""A trading game: the price of a share strays from its value and returns, and a trade costs money.

The value is a random walk that nobody can predict. The gap between price and value is known, and
closes slowly: it pays to buy cheap and to sell dear, but only where the gap exceeds the cost.
"""

import numpy as np
from gymnasium.spaces import Box, Discrete

from fastppo import PPO, compiled_env

DAYS = 250  # of an episode
NOISE, SHOCK, REVERSION = 0.5, 1.0, 0.1  # of the value; of the gap; what closes of it in a day
COST = 0.5  # of a trade from 0 to 1

HEIGHT, ZOOM = 160, 3  # pixels of the picture, and of a unit of the price
COLORS = np.array([[225, 80, 80], [190, 190, 190], [70, 170, 100]], np.uint8)  # of -1, 0 and 1


@compiled_env
class Trading:
    """Actions are positions: 0 sold short, 1 no share, 2 one share; the reward is the profit."""

    observation_space = Box(-np.inf, np.inf, (3,))
    action_space = Discrete(3)
    max_episode_steps = DAYS
    state = [("value", "f8"), ("gap", "f8"), ("change", "f8"), ("position", "i8"), ("day", "i8"),
             ("profit", "f8"), ("prices", "f8", (DAYS + 1,)), ("positions", "i8", (DAYS + 1,))]

    def reset(state, rng, options):
        state.gap = rng.normal(0.0, SHOCK / np.sqrt(2 * REVERSION))
        state.prices[0] = state.gap

    def step(state, action, rng):
        traded = abs(action - 1 - state.position)
        state.position = action - 1
        before = state.value + state.gap
        state.value += rng.normal(0.0, NOISE)
        state.gap += rng.normal(0.0, SHOCK) - REVERSION * state.gap
        price = state.value + state.gap
        state.change = price - before
        reward = state.position * state.change - COST * traded
        state.day += 1
        state.profit += reward
        state.prices[state.day], state.positions[state.day] = price, state.position
        return reward, False

    def observe(state, obs):
        obs[0] = state.gap
        obs[1] = state.change
        obs[2] = state.position

    def render(state):
        """The price of each day in the colour of the position, and the profit as a bar below."""
        picture = np.full((HEIGHT, DAYS + 10, 3), 250, np.uint8)
        picture[HEIGHT // 2] = 215
        for day in range(state.day + 1):
            y = int(np.clip(HEIGHT / 2 - ZOOM * state.prices[day], 2, HEIGHT - 14))
            picture[y - 2:y + 2, day + 4:day + 7] = COLORS[state.positions[day] + 1]
        bar = int(np.clip(abs(state.profit), 0, DAYS))
        picture[HEIGHT - 8:HEIGHT - 2, 4:4 + bar] = COLORS[0 if state.profit < 0 else 2]
        return picture


if __name__ == "__main__":
    with PPO(Trading, seed=1, num_envs=32, num_steps=250, total_steps=1_000_000, gamma=0.95,
             lr=1e-3, epochs=4, num_minibatches=8, progress="lines") as ppo:
        print(ppo.learn().evaluate(100))
