"""Measures the overhead of workers: their start, and their synchronisation per rollout or step.

    python bench/workers.py --rounds 3

Uses an environment that does nothing, without workers and with two, interleaved. The constants of
fastppo/trainer/resolve.py are rounded from this.
"""

import argparse
import statistics
import time

import gymnasium as gym
import numpy as np

from fastppo import PPO

SIZES = (2, 1), (16, 1), (16, 32), (16, 128)  # environments, steps


class Free(gym.Env):
    """Returns the same observation without any work."""

    observation_space = gym.spaces.Box(-1, 1, (8,), np.float32)
    action_space = gym.spaces.Discrete(4)
    obs = np.zeros(8, np.float32)

    def reset(self, *, seed=None, options=None):
        """Returns the observation."""
        return self.obs, {}

    def step(self, action):
        """Returns the observation and no reward."""
        return self.obs, 0.0, False, False, {}


def measured(acting: str, envs: int, steps: int, workers: int) -> tuple[float, float]:
    """(seconds until the first rollout is complete, median seconds of the rollouts after it)."""
    start, times = time.perf_counter(), []
    with PPO(Free, preset="none", seed=1, num_envs=envs, num_steps=steps, num_workers=workers,
             num_minibatches=1, norm_obs=False, norm_rewards=False, acting=acting) as ppo:
        ppo.collect()
        begun = time.perf_counter() - start
        for _ in range(39 if envs * steps < 600 else 11):
            before = time.perf_counter()
            ppo.collect()
            times.append(time.perf_counter() - before)
    return begun, statistics.median(times)


def main() -> None:
    """Print a row for each way of acting and size: medians of the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    rounds = range(parser.parse_args().rounds)
    measured("local", 2, 1, 0)  # loads the modules
    print("acting   envs steps   start 0, 2 (ms)   rollout 0, 2 (us)")
    for acting in ("local", "central"):
        for envs, steps in SIZES:
            found = [[measured(acting, envs, steps, workers) for workers in (0, 2)]
                     for _ in rounds]
            (start, rollout), (start2, rollout2) = np.median(found, axis=0)
            print(f"{acting:8} {envs:4} {steps:5}   {start * 1e3:7.0f} {start2 * 1e3:7.0f}"
                  f"   {rollout * 1e6:8.0f} {rollout2 * 1e6:8.0f}")


if __name__ == "__main__":
    main()
