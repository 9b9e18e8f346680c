"""The limit: the time of a step with nothing but the environment and the network's arithmetic.

    seconds per step = environment + (FLOPs to act + FLOPs to update) / GEMM peak of one core
    limit = cores / seconds per step

A GPU is one device: there the limit is 1 / (environment / cores + FLOPs / GEMM peak of the GPU).

The environment's time is measured by replaying recorded episodes in one process, without
Gymnasium's wrappers; the FLOPs are counted from the network; the peak is that of a matrix product.
"""

import time
from typing import Any, NamedTuple, Sequence

import gymnasium as gym
import numpy as np

from fastppo.envs.make import make_envs
from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose

WRAPPERS = (gym.wrappers.TimeLimit, gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker)


class Episode(NamedTuple):
    """One recorded episode of an environment; the last one may be unfinished."""

    seed: int
    actions: list[Any]


class Recorder:
    """The episodes of a run by environment, from its rollouts in order."""

    def __init__(self, ppo):
        self.config, self.to_env = ppo.config, ppo.policy.actions.to_env()
        self.rollouts: list[tuple[np.ndarray, ...]] = []

    def take(self, rollout) -> None:
        """Adds a rollout, before the next one overwrites it."""
        ended = (rollout.term | rollout.trunc).numpy()
        self.rollouts.append((rollout.act.numpy().copy(), ended, rollout.valid.numpy().copy()))

    def episodes(self, e: int) -> list[Episode]:
        """All episodes of environment `e`."""
        act, ended = (np.concatenate([one[i][:, e] for one in self.rollouts]) for i in (0, 1))
        parts = np.split(act, np.flatnonzero(ended) + 1)
        return [Episode(kernels.episode_seed(self.config.seed, Purpose.ENV_SEED, e, number),
                        self.to_env(part)) for number, part in enumerate(parts) if len(part)]


def without_wrappers(env: gym.Env) -> gym.Env:
    """`env` without the wrappers that gymnasium.make puts around every environment."""
    while isinstance(env, WRAPPERS):
        env = env.env
    return env


def time_episodes(env: gym.Env, episodes: Sequence[Episode]) -> tuple[float, float]:
    """Mean seconds of one step and of one reset over `episodes`."""
    step_seconds, reset_seconds = 0.0, 0.0
    for episode in episodes:
        start = time.perf_counter()
        env.reset(seed=episode.seed)
        begin = time.perf_counter()
        for action in episode.actions:
            env.step(action)
        step_seconds += time.perf_counter() - begin
        reset_seconds += begin - start
    steps = sum(len(episode.actions) for episode in episodes)
    return step_seconds / steps, reset_seconds / len(episodes)


def env_cost(ppo, recorder: Recorder, seconds: float) -> dict[str, float]:
    """The median seconds of a core for a step and a reset of the recorded episodes, replayed."""
    envs = [without_wrappers(env) for env in make_envs(ppo.source.factories)]
    costs, end = [], time.perf_counter() + seconds
    while not costs or time.perf_counter() < end:
        e = len(costs) % len(envs)
        costs.append(time_episodes(envs[e], recorder.episodes(e)))
    for env in envs:
        env.close()
    step, reset = np.median(costs, axis=0)
    return {"step": float(step), "reset": float(reset)}


def vector_cost(ppo, recorder: Recorder, seconds: float, cores: int) -> dict[str, float]:
    """The median cost of a native vector environment, which steps on all `cores` and autoresets.

    A row in which an environment begins its next episode counts as a step.
    """
    env, (act, _, valid) = ppo.source.vector, recorder.rollouts[-1]
    act[~valid] = act[valid][0]  # these steps are resets, but their actions must be legal, too
    stacked = ppo.policy.actions.stacked
    rows, costs, end = [stacked(recorder.to_env(row)) for row in act], [], 0.0
    env.reset(seed=ppo.config.seed)
    while not costs or time.perf_counter() < end:
        start = time.perf_counter()
        for row in rows:
            env.step(row)
        end = end or time.perf_counter() + seconds
        costs.append((time.perf_counter() - start) * cores / (len(rows) * env.num_envs))
    return {"step": float(np.median(costs)), "reset": 0.0}
