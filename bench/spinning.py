"""Measures rollouts with workers that spin or sleep while they wait.

    python bench/spinning.py --rounds 7

Rollouts (`PPO.collect` without the update) with local and central acting, by workers that sleep
without spinning, that spin as workers/protocol.py lets them, and that all spin for SPIN_NS whatever
the number of cores. Interleaved; microseconds per step, medians and lowest to highest.
"""

import argparse
import statistics
import time
from unittest import mock

from fastppo import PPO
from fastppo.machine.limits import usable_cores
from fastppo.workers import protocol

ENVS, STEPS = 16, 128
KINDS = {"sleeping": lambda busy, idle_spin: (0, 0), "as it is": protocol.spin_times,
         "spinning": lambda busy, idle_spin: (protocol.SPIN_NS, idle_spin)}


def seconds(env: str, acting: str, workers: int, kind: str) -> float:
    """The median time of some rollouts."""
    times = []
    with mock.patch.object(protocol, "spin_times", KINDS[kind]), PPO(
            env, preset="none", seed=1, num_envs=ENVS, num_steps=STEPS, num_workers=workers,
            norm_obs=False, acting=acting) as ppo:
        ppo.collect()
        for _ in range(7):
            before = time.perf_counter()
            ppo.collect()
            times.append(time.perf_counter() - before)
    return statistics.median(times)


def main() -> None:
    """Print a row for each way of acting and number of workers."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 3, 4])
    args = parser.parse_args()
    print(f"{args.env}, {usable_cores()} cores, {ENVS} environments x {STEPS}")
    for acting in ("local", "central"):
        for workers in args.workers:
            found = {kind: [] for kind in KINDS}
            for _ in range(args.rounds):
                for kind, times in found.items():
                    times.append(seconds(args.env, acting, workers, kind) / (ENVS * STEPS) * 1e6)
            cells = [f"{kind} {statistics.median(times):6.1f} ({min(times):.1f} to"
                     f" {max(times):.1f})" for kind, times in found.items()]
            print(f"{acting:8} {workers} workers: {'   '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
