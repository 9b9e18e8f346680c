"""Train on an environment in JAX, all episodes at once; it needs `pip install gymnax six`."""

import sys

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from fastppo import PPO

try:
    import gymnax
    import jax
except ImportError:
    sys.exit("this example needs gymnax: pip install gymnax six")


class GymnaxVector(VectorEnv):
    """Environments of gymnax, which step together in one compiled call, on any device of JAX."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, name: str, num_envs: int):
        env, params = gymnax.make(name)
        self.num_envs = num_envs
        obs = env.observation_space(params)
        self.single_observation_space = gym.spaces.Box(-np.inf, np.inf, obs.shape, np.float32)
        self.single_action_space = gym.spaces.Discrete(env.action_space(params).n)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

        def step(key, state, act):
            obs, state, reward, done, _ = env.step_env(key, state, act, params)
            late = state.time >= params.max_steps_in_episode  # a truncation, for gymnax an end
            first, fresh = env.reset_env(key, params)
            state = jax.tree.map(lambda new, old: jax.numpy.where(done, new, old), fresh, state)
            seen = jax.numpy.where(done, first, obs)
            return state, (seen, reward, done & ~late, done & late, obs)

        self.begin = jax.jit(jax.vmap(lambda key: env.reset_env(key, params)))
        self.advance = jax.jit(jax.vmap(step))

    def keys(self):
        """New random numbers for every environment."""
        self.key, *keys = jax.random.split(self.key, self.num_envs + 1)
        return jax.numpy.stack(keys)

    def reset(self, *, seed=None, options=None):
        """Begin an episode in every environment."""
        self.key = jax.random.PRNGKey(0 if seed is None else seed)
        obs, self.state = self.begin(self.keys())
        return np.array(obs), {}

    def step(self, actions):
        """`final_obs` has the observations before those that ended episodes are reset."""
        self.state, answer = self.advance(self.keys(), self.state, actions)
        obs, reward, terminated, truncated, final = map(np.array, answer)
        return obs, reward, terminated, truncated, {"final_obs": final}


if __name__ == "__main__":
    with PPO(GymnaxVector("CartPole-v1", 64), num_steps=32, seed=1, lr=1e-3) as ppo:
        ppo.learn(200_000)
        print(ppo.evaluate(episodes=20, env="CartPole-v1"))
