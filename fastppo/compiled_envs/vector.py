"""A gymnasium VectorEnv of compiled environments, which one call steps."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from fastppo.machine.kernels import EnvRows


class CompiledVector(VectorEnv):
    """`num_envs` environments of a class, each reset in the step that ends its episode.

    The final observations are the array info["final_obs"] (a dict of arrays for a Dict), where
    info["_final_obs"] is true. `reset(seed=s)` gives environment i the seed s + i; its later
    episodes are a function of s, too.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, kind: type, num_envs: int, options: dict[str, Any]):
        self.num_envs, layout = num_envs, kind.layout
        self.envs = [kind(**options) for _ in range(num_envs)]
        self.single_observation_space = kind.observation_space
        self.single_action_space = kind.action_space
        self.observation_space = batch_space(kind.observation_space, num_envs)
        self.action_space = batch_space(kind.action_space, num_envs)
        self.rows = np.zeros((num_envs, layout.row.itemsize), np.uint8)
        self.running = self.rows.view(layout.row)[:, 0]
        for env, memory in zip(self.envs, self.rows):
            env.use(memory)
        self.obs = np.zeros((2, num_envs, *layout.obs_shape), layout.obs)  # before a step, after it
        self.final = self.obs[0].copy()
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
        layout, code = self.envs[0].layout, self.envs[0].code
        self.steps = EnvRows(
            code.functions, self.rows, np.empty(layout.state.itemsize, np.uint8),
            (layout.state_at, layout.options_at), seed, 0, self.final,
            (self.reward, *self.ends, self.obs, self.length))
        return self._given(self.obs[1]), {}

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict]:
        """Takes a step in every environment."""
        layout = self.envs[0].layout
        actions = np.array(actions, layout.act, order="C").reshape(
            self.num_envs, *layout.act_shape)
        if not (isinstance(self.single_action_space, Box) or self.action_space.contains(actions)):
            raise ValueError(f"the actions {actions} are not in {self.action_space}")
        self.ends[:] = False
        failed = self.steps.step(0, self.now, 0, self.num_envs, actions)
        if failed >= 0:
            self.envs[failed].step(actions[failed])
            raise RuntimeError(f"environment {failed} fails as machine code, and not as Python;"
                               " check() compares them")
        self.now += 1
        term, trunc = self.ends[:, 0].copy()
        ended, infos = term | trunc, {}
        if ended.any():
            infos = {"final_obs": self._given(self.final), "_final_obs": ended}
        return self._given(self.obs[1]), self.reward[0].copy(), term, trunc, infos

    def render(self) -> tuple:
        """The picture of each environment."""
        return tuple(env.render() for env in self.envs)

    def _given(self, rows: np.ndarray) -> Any:
        """Stored observations [n ...] as the space has them: copies."""
        space = self.single_observation_space
        if isinstance(space, Dict):
            return {key: rows[key].astype(part.dtype) for key, part in space.items()}
        return rows.astype(space.dtype)
