"""The limit: what a step costs at least, were there nothing but environment and arithmetic.

    seconds a step = environment's + (FLOPs to act + FLOPs to update) / GEMM peak of one core
    limit = cores / that

The environment's share is measured by playing recorded episodes again in one process, without
Gymnasium's wrappers; the FLOPs are counted from the network; the peak is a matrix product's.
"""

import contextlib
import time
import warnings
from typing import Any, NamedTuple, Sequence

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import nn

from fastppo.envs.make import make_envs
from fastppo.envs.observations import ObservationLayout
from fastppo.envs.spaces import leaf_arrays
from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose
from fastppo.stepping.native_vector import autoreset_mode
from fastppo.update.flat_parameters import trained_parameters

PEAK_SIZES = (256, 384, 512)  # of square matrices that fit into a core's cache
PEAK_SECONDS = 0.15
WRAPPERS = (gym.wrappers.TimeLimit, gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker)


class Episode(NamedTuple):
    """One episode of an environment as it was played; the last one may have no end."""

    seed: int
    actions: list[Any]
    obs: np.ndarray  # [k ...] what was seen after each action but the last one


class Cost(NamedTuple):
    """What an environment costs one core, in seconds."""

    step: float
    reset: float
    same: bool  # whether the episodes played again were the recorded ones


class Recorder:
    """The episodes of a run by environment, from its rollouts' records taken in order."""

    def __init__(self, ppo):
        self.config, self.arena, self.to_env = ppo.config, ppo.arena, ppo.policy.actions.to_env()
        self.rollouts: list[tuple[np.ndarray, ...]] = []

    def take(self, rollout) -> None:
        """Add a rollout, before the next one overwrites it."""
        ended = (rollout.term | rollout.trunc).numpy()
        self.rollouts.append((rollout.act.numpy().copy(), self.arena["obs"].copy(), ended,
                              rollout.valid.numpy().copy()))

    def episodes(self, e: int) -> list[Episode]:
        """All episodes of environment `e`."""
        act, ended = (np.concatenate([one[i][:, e] for one in self.rollouts]) for i in (0, 2))
        obs = np.concatenate([one[1][1:, e] for one in self.rollouts])
        actions, found, first = self.to_env(act), [], 0
        for last in [*(np.flatnonzero(ended) + 1), len(actions)]:
            if last > first:
                seed = kernels.episode_seed(self.config.seed, Purpose.ENV_SEED, e, len(found))
                found.append(Episode(seed, actions[first:last], obs[first:last - 1]))
            first = last
        return found


def without_wrappers(env: gym.Env) -> gym.Env:
    """`env` without the wrappers that gymnasium.make puts around every environment."""
    while isinstance(env, WRAPPERS):
        env = env.env
    return env


def replays_exactly(env: gym.Env, episodes: Sequence[Episode]) -> bool:
    """Play `episodes` again; whether every observation was the recorded one."""
    known = ObservationLayout(env.observation_space, env.action_space)
    for episode in episodes:
        env.reset(seed=episode.seed)
        for action, obs in zip(episode.actions, [*episode.obs, None]):
            seen = known.to_arrays(env.step(action)[0])
            if obs is not None and not all(
                    np.array_equal(x, was[0]) for x, was in zip(seen, leaf_arrays(obs[None]))):
                return False
    return True


def time_episodes(env: gym.Env, episodes: Sequence[Episode], same: bool) -> tuple[float, float]:
    """Mean seconds of one step and of one reset over `episodes`.

    Where they are not the `same` ones again, they end when they end: a step includes that reset.
    """
    def wary(action) -> None:
        if any(env.step(action)[2:4]):
            env.reset()

    clock, step, steps, resets = time.perf_counter, env.step if same else wary, 0.0, 0.0
    for episode in episodes:
        start = clock()
        env.reset(seed=episode.seed)
        begin = clock()
        for action in episode.actions:
            step(action)
        steps += clock() - begin
        resets += begin - start
    return steps / sum(len(episode.actions) for episode in episodes), resets / len(episodes)


def env_cost(ppo, recorder: Recorder, seconds: float) -> Cost:
    """The median cost of the recorded episodes, environment after environment, for `seconds`."""
    count = ppo.config.num_envs
    envs = [without_wrappers(env) for env in make_envs(ppo.source.factories)]
    end, same, costs = time.perf_counter() + seconds, replays_exactly(envs[0], recorder.episodes(0)), []
    while not costs or time.perf_counter() < end:
        e = len(costs) % count
        costs.append(time_episodes(envs[e], recorder.episodes(e), same))
    for env in envs:
        env.close()
    step, reset = np.median(costs, axis=0)
    return Cost(float(step), float(reset), same)


def vector_cost(ppo, recorder: Recorder, seconds: float, cores: int) -> Cost:
    """The same of a native vector environment, which steps on all `cores` and resets by itself."""
    env, (act, _, _, valid) = ppo.source.vector, recorder.rollouts[-1]
    act[~valid] = act[valid][0]  # no steps but resets, whose actions must be legal all the same
    stacked = ppo.policy.actions.stacked
    rows, costs, end = [stacked(recorder.to_env(row)) for row in act], [], 0.0
    env.reset(seed=ppo.config.seed)
    while not costs or time.perf_counter() < end:
        start = time.perf_counter()
        steps = step_vector(env, rows)
        end = end or time.perf_counter() + seconds
        costs.append((time.perf_counter() - start) * cores / steps)
    return Cost(float(np.median(costs)), 0.0, True)


def step_vector(env: VectorEnv, rows: Sequence[np.ndarray]) -> int:
    """Step a vector environment by `rows` of actions; how many steps these were, no resets."""
    mode, ends = autoreset_mode(env), [0]
    for row in rows:
        _, _, term, trunc, _ = env.step(row)
        if mode == AutoresetMode.SAME_STEP:
            continue
        ends.append(int((ended := term | trunc).sum()))
        if mode == AutoresetMode.DISABLED and ends[-1]:
            env.reset(options={"reset_mask": ended})
    return len(rows) * env.num_envs - sum(ends[:-1]) * (mode == AutoresetMode.NEXT_STEP)


def flops(policy: nn.Module, rows: int = 8) -> tuple[int, int]:
    """Exact FLOPs of one sample's forward pass, and of its forward and backward pass.

    Multiplications and additions of the products count one each; what is left out (activations,
    the loss, Adam) makes the limit higher than it is.
    """
    from torch.utils.flop_counter import FlopCounterMode
    store = policy.observer.layout.store
    obs = policy.observer.tensors(np.zeros((rows, *store.shape), store.dtype))
    with without_onednn(), torch.enable_grad(), FlopCounterMode(display=False) as counter:
        params, val = policy(obs)
        forward = counter.get_total_flops()
        gradients = torch.autograd.grad(params.sum() + val.sum(), trained_parameters(policy),
                                        allow_unused=True)
    del gradients
    return forward // rows, counter.get_total_flops() // rows


@contextlib.contextmanager
def without_onednn():
    """Without oneDNN, whose LSTM is one operation in which nobody counts products."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the switch asks for a GPU of Intel's
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def peak(device: str = "cpu") -> float:
    """FLOPs a second of the fastest fp32 matrix product; on the CPU, of one core."""
    on_cpu, best = torch.device(device).type == "cpu", 0.0
    for size in PEAK_SIZES if on_cpu else (8192,):
        a, out = torch.rand(size, size, device=device), torch.empty(size, size, device=device)
        end = time.perf_counter() + PEAK_SECONDS
        while time.perf_counter() < end:
            start = time.perf_counter()
            torch.mm(a, a, out=out)
            if not on_cpu:
                torch.cuda.synchronize()
            best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best
