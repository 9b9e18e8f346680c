"""Times stepping alone: Gymnasium's vector environments, make_vec, and rollouts of our workers.

    python bench/stepping.py --env LunarLander-v3 --envs 16 --rounds 7

In every round each takes the same number of steps with random actions, one after the other; the
workers' rollout draws its own actions. Prints the median microseconds of one step of all
environments with the spread, and the speed in multiples of SyncVectorEnv's. EnvPool is included
where it is installed. The bare loops are the lower bound for Gymnasium's environments on two cores:
two processes that share nothing, each with half of the environments, without wrappers or stored
observations.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

import fastppo
from fastppo.errors import ConfigError
from fastppo.vector.source import EnvPoolVector


def step_all(vec: gym.vector.VectorEnv, actions: np.ndarray) -> None:
    """Take the steps of `actions` [t e]."""
    for action in actions:
        vec.step(action)


def warm_up(ppo: fastppo.PPO, actions: np.ndarray) -> None:
    """Take as many steps with random actions in the trainer's workers, at one command."""
    vec = ppo.collector.vec
    vec.warmup(len(actions) - 1)  # workers ignore a command that equals the last one,
    vec.warmup(len(actions))      # so the two lengths differ


bare_envs: list[gym.Env] = []  # the environments of a bare loop, in its own process


def step_bare(name: str, actions: np.ndarray) -> None:
    """Step environments without wrappers through `actions` [t e], one after the other."""
    while len(bare_envs) < actions.shape[1]:
        bare_envs.append(gym.make(name).unwrapped)
        bare_envs[-1].reset()
    for row in actions:
        for env, action in zip(bare_envs, row):
            if any(env.step(action)[2:4]):
                env.reset()


def step_bare_halves(name: str, pools: list[ProcessPoolExecutor], actions: np.ndarray) -> None:
    """The same with half of the environments in each of two processes."""
    parts = np.array_split(actions, len(pools), axis=1)
    for done in [pool.submit(step_bare, name, part) for pool, part in zip(pools, parts)]:
        done.result()


def steppers(options: argparse.Namespace, stack: ExitStack) -> dict[str, Callable]:
    """Functions that take the steps of `actions` [t e], by name."""
    makers = [partial(gym.make, options.env)] * options.envs
    vectors = {"gymnasium sync": SyncVectorEnv(makers),
               "gymnasium async": AsyncVectorEnv(makers, shared_memory=True)}
    for workers in (0, 2):
        vectors[f"make_vec, {workers} workers"] = fastppo.make_vec(
            options.env, num_envs=options.envs, num_workers=workers)
    try:
        vectors["envpool"] = EnvPoolVector(options.env, options.envs, {})
    except ConfigError as error:
        print(error.what)
    for vec in vectors.values():
        stack.callback(vec.close)
        vec.reset(seed=1)
    pools = [stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
             for _ in range(2)]
    step_bare_halves(options.env, pools, np.zeros((2, options.envs), int))
    ppo = stack.enter_context(fastppo.PPO(
        options.env, num_envs=options.envs, num_workers=2, num_steps=options.steps + 1, seed=1,
        preset="none", acting="local"))
    return {name: partial(step_all, vec) for name, vec in vectors.items()} | {
        "rollouts, 2 workers": partial(warm_up, ppo),
        "bare loops, 2": partial(step_bare_halves, options.env, pools)}


def main() -> None:
    """Measure in turns, then print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="LunarLander-v3")
    parser.add_argument("--envs", type=int, default=16)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    space = gym.make(options.env).action_space
    space.seed(1)
    actions = np.array([[space.sample() for _ in range(options.envs)]
                        for _ in range(options.steps)])
    with ExitStack() as stack:
        runs = steppers(options, stack)
        times = {name: [] for name in runs}
        for _ in range(options.rounds):
            for name, run in runs.items():
                start = time.perf_counter()
                run(actions)
                share = 2 - 1 / options.steps if name.startswith("rollouts") else 1
                times[name].append((time.perf_counter() - start) / options.steps / share * 1e6)
    base = statistics.median(times["gymnasium sync"])
    for name, taken in times.items():
        middle = statistics.median(taken)
        print(f"{name:22} {middle:7.0f} us ({min(taken):.0f} to {max(taken):.0f})"
              f"   {base / middle:.2f} x")


if __name__ == "__main__":
    main()
