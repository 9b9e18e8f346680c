"""Functions that make the environments of packages which need more than an id.

Each is named on the command line: `python main.py --env_name=examples.packages:Crafter`.
docs/environments.md has the packages, and what each of them needs.
"""

import gymnasium as gym
import numpy as np


def deep_sea_treasure() -> gym.Env:
    """MO-Gymnasium's: the treasure less a tenth of the time that it takes, as one reward."""
    import mo_gymnasium
    env = mo_gymnasium.make("deep-sea-treasure-v0")
    return mo_gymnasium.wrappers.LinearReward(env, weight=np.array([1.0, 0.1]))


def nasim() -> gym.Env:
    """NASim's smallest network of computers; it wants an int of Python as action."""
    import nasim
    return gym.wrappers.TransformAction(nasim.make_benchmark("tiny", fully_obs=True), int, None)


def airstriker() -> gym.Env:
    """Stable-Retro's one free game; it allows one emulator in a process."""
    import stable_retro
    return stable_retro.make("Airstriker-Genesis-v0", render_mode=None)


def vizdoom() -> gym.Env:
    """ViZDoom's screen without the game variables: an image alone has a compiled network."""
    import vizdoom.gymnasium_wrapper  # noqa: F401
    env = gym.make("VizdoomBasic-v1")
    return gym.wrappers.TransformObservation(env, lambda obs: obs["screen"],
                                             env.observation_space["screen"])


class Crafter(gym.Env):
    """Crafter has the interface of gym before 0.26, and its seed is that of all episodes."""

    def __init__(self):
        import crafter
        self.game = crafter.Env()
        self.observation_space = gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gym.spaces.Discrete(len(self.game.action_names))

    def reset(self, *, seed=None, options=None):
        """The world of an episode follows from its seed."""
        super().reset(seed=seed)
        self.game._seed = int(self.np_random.integers(2**31))
        return self.game.reset(), {}

    def step(self, action):
        """The `discount` of the game is 0 where the player has died."""
        obs, reward, done, info = self.game.step(action)
        dead = info["discount"] == 0
        return obs, reward, dead, done and not dead, {}


if __name__ == "__main__":
    for make in (deep_sea_treasure, nasim, airstriker, vizdoom, Crafter):
        print(f"--env_name=examples.packages:{make.__name__:18} {make.__doc__}")
