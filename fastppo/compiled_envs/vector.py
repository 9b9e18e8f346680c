"""A gymnasium VectorEnv of compiled environments, which one call steps."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from fastppo.compiled_envs.rows import FAILS
from fastppo.stepping.environments import checked_reward


class CompiledVector(VectorEnv):
    """`num_envs` environments of a class, each reset in the step that ends its episode.

    The final observations are the array info["final_obs"] (a dict of arrays for a Dict), where
    info["_final_obs"] is true. `reset(seed=s)` gives environment i the seed s + i; its later
    episodes are a function of s, too.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, kind: type, num_envs: int, options: dict[str, Any]):
        self.num_envs, self.layout = num_envs, kind.layout
        self.envs = [kind(**options) for _ in range(num_envs)]
        self.single_observation_space = kind.observation_space
        self.single_action_space = kind.action_space
        self.observation_space = batch_space(kind.observation_space, num_envs)
        self.action_space = batch_space(kind.action_space, num_envs)
        self.rows = np.zeros((num_envs, self.layout.row.itemsize), np.uint8)
        self.running = self.rows.view(self.layout.row)[:, 0]
        for env, memory in zip(self.envs, self.rows):
            env.use(memory)
        shape = num_envs, *self.layout.obs_shape
        self.obs = np.zeros((2, *shape), self.layout.obs)  # before a step, and after it
        self.final = np.zeros(shape, self.layout.obs)
        self.reward, self.ends = np.zeros((1, num_envs)), np.zeros((2, 1, num_envs), bool)
        self.length = np.zeros((1, num_envs), np.int64)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode in every environment."""
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        for i, env in enumerate(self.envs):
            env.reset(seed=seed + i, options=options)
            env.set_options({})  # of the later episodes
            self.obs[1, i] = env.obs[0]
        self.running["limit"], self.now = self.envs[0].limit, 0
        self.running["number"] = self.running["start"] = 0
        self.steps = self.envs[0].code.env_rows(
            self.rows, seed, 0, self.final, (self.reward, *self.ends, self.obs, self.length))
        return self.layout.given(self.obs[1]), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict]:
        """Takes a step in every environment."""
        actions = np.array(actions, self.layout.act, order="C").reshape(
            self.num_envs, *self.layout.act_shape)
        if not (isinstance(self.single_action_space, Box) or self.action_space.contains(actions)):
            raise ValueError(f"the actions {actions} are not in {self.action_space}")
        self.ends[:] = False
        failed = self.steps.step(0, self.now, 0, self.num_envs, actions)
        if failed >= 0:
            checked_reward(self.envs[failed].step(actions[failed])[1])
            self.envs[failed].reset()  # in which it may have failed
            raise RuntimeError(f"environment {failed}: {FAILS}")
        self.now += 1
        term, trunc = self.ends[:, 0].copy()
        ended, infos = term | trunc, {}
        if ended.any():
            infos = {"final_obs": self.layout.given(self.final), "_final_obs": ended}
        return self.layout.given(self.obs[1]), self.reward[0].copy(), term, trunc, infos

    def render(self) -> tuple:
        """The picture of each environment."""
        return tuple(env.render() for env in self.envs)
