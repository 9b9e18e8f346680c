"""Measures how training scales with the number of environments and of workers.

    python bench/scaling.py --env LunarLander-v3 --envs 8 16 32 64 128 256 512 1024
    python bench/scaling.py --env LunarLander-v3 --workers 1 2

All trainers exist at the same time and run one iteration of 8,192 steps each in turns (16
environments where the workers vary, 2 workers where the environments do). Prints the median steps
per second of collecting and of the whole iteration with the spread, and the ratio to the line
before.
"""

import argparse
import statistics
import time
from contextlib import ExitStack

from fastppo import PPO

ROWS = 8_192


def trainer(options: argparse.Namespace, envs: int, workers: int) -> PPO:
    """One of the trainers, after its first iteration."""
    ppo = PPO(options.env, num_envs=envs, num_steps=ROWS // envs, num_workers=workers, seed=1,
              preset="none", norm_obs=False, norm_rewards=False, num_minibatches=8, epochs=4,
              total_steps=10**9)
    ppo.update(ppo.collect())
    return ppo


def iteration(ppo: PPO) -> tuple[float, float]:
    """Steps per second of collecting, and of collecting and the update on it."""
    start = time.perf_counter()
    rollout = ppo.collect()
    collected = time.perf_counter()
    ppo.update(rollout)
    return ROWS / (collected - start), ROWS / (time.perf_counter() - start)


def line(name: str, rates: list[tuple[float, float]], before: list | None) -> str:
    """One line of the table."""
    cells = [f"{name:16}"]
    for values, previous in zip(zip(*rates), zip(*before) if before else (None, None)):
        middle = statistics.median(values)
        ratio = f"{middle / statistics.median(previous):5.2f} x" if previous else " " * 7
        cells.append(f"{middle:9,.0f} ({min(values):,.0f} to {max(values):,.0f}) {ratio}")
    return "   ".join(cells)


def main() -> None:
    """Measure in turns, then print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", default="LunarLander-v3")
    parser.add_argument("--envs", type=int, nargs="+", default=[16])
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    sizes = [(envs, workers) for workers in options.workers for envs in options.envs]
    with ExitStack() as stack:
        trainers = [stack.enter_context(trainer(options, *size)) for size in sizes]
        rates = [[] for _ in sizes]
        for _ in range(options.rounds):
            for ppo, values in zip(trainers, rates):
                values.append(iteration(ppo))
    print(f"{options.env}: steps per second of collecting, and of training")
    for i, (envs, workers) in enumerate(sizes):
        print(line(f"{envs} envs, {workers} w", rates[i], rates[i - 1] if i else None))


if __name__ == "__main__":
    main()
