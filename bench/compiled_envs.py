"""Training steps per second on compiled environments: python bench/compiled_envs.py [ROUNDS]

Settings are measured in turns, and the median of the rounds is printed with its range. Beside them
Gymnasium's own CartPole with the same sizes. Needs an idle machine.

    python bench/compiled_envs.py solve      seconds until an evaluation of 20 episodes of CartPole
                                             reaches 475, from the constructor on, for 20 seeds
    python bench/compiled_envs.py pair [ROUNDS]   one run with two workers, and two runs in one
                                             process each, at the same time, whose speeds are added
"""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from examples.compiled.cartpole import CartPole  # noqa: E402
from fastppo import PPO  # noqa: E402

SECONDS = 3.0  # of one measurement
# name -> (environment, environments, steps of a rollout, minibatch, epochs, units of the layers)
CASES = {
    "compiled, 1,024 environments": (CartPole, 1024, 32, 1024, 4, (64, 64)),
    "compiled, 64 environments": (CartPole, 64, 64, 1024, 4, (64, 64)),
    "compiled, 16 environments": (CartPole, 16, 256, 1024, 4, (64, 64)),
    "compiled, one epoch of a layer of 32": (CartPole, 1024, 32, 1024, 1, (32,)),
    "its VectorEnv, 1,024 environments": (CartPole.vector, 1024, 32, 1024, 4, (64, 64)),
    "Gymnasium's, 16 environments": ("CartPole-v1", 16, 256, 1024, 4, (64, 64)),
}


def speed(env, envs, steps, minibatch, epochs, hidden, workers):
    """(steps per second, microseconds of collecting, of the update) of a trainer."""
    given = env(envs) if env == CartPole.vector else env
    with PPO(given, preset="none", seed=1, num_envs=envs, num_steps=steps, epochs=epochs,
             num_minibatches=envs * steps // minibatch, hidden_sizes=hidden, norm_obs=False,
             num_workers=workers, total_steps=10**9) as ppo:
        for _ in range(3):
            ppo.update(ppo.collect())
        taken, spent = 0, np.zeros(2)
        while spent.sum() < SECONDS:
            begin = time.perf_counter()
            rollout = ppo.collect()
            between = time.perf_counter()
            ppo.update(rollout)
            spent += between - begin, time.perf_counter() - between
            taken += envs * steps
        return taken / spent.sum(), *(1e6 * spent / taken)


def seconds_to_solve(env, seed):
    """(seconds, steps) until the mean return of 20 evaluated episodes is 475, or infinity."""
    begin = time.perf_counter()
    with PPO(env, preset="none", seed=seed, num_workers=0, num_envs=32, num_steps=64, epochs=10,
             num_minibatches=8, lr=2e-3, total_steps=300_000) as ppo:
        while ppo.step < ppo.config.total_steps:
            ppo.update(ppo.collect())
            # The first evaluations would fail, and take as long as the training between two.
            if ppo.progress.iteration >= 6 and ppo.progress.iteration % 3 == 0 and \
                    ppo.evaluate(20).mean >= 475:
                return time.perf_counter() - begin, ppo.step
    return np.inf, ppo.step


def print_solved():
    """Prints how long CartPole takes, compiled and Gymnasium's, seed by seed in turns."""
    envs = {"compiled": CartPole, "Gymnasium's": "CartPole-v1"}
    CartPole()  # compiled before the clock starts
    found = {name: [] for name in envs}
    for seed in range(20):
        for name, env in envs.items():
            found[name].append(seconds_to_solve(env, seed))
    for name, times in found.items():
        seconds, steps = np.median(times, 0)
        print(f"{name:12} {seconds:.2f} s ({min(times)[0]:.2f} to {max(times)[0]:.2f}),"
              f" {steps:,.0f} steps")


def print_speeds(rounds):
    """Prints the speeds of all CASES, measured in turns."""
    found = {}
    for _ in range(rounds):
        for name, case in CASES.items():
            for workers in (0, 2) if case[0] != CartPole.vector else (0,):
                found.setdefault((name, workers), []).append(speed(*case, workers))
    for (name, workers), times in found.items():
        (rate, collect, update), rates = np.median(times, 0), [one[0] for one in times]
        print(f"{name:40} {workers} workers  {rate:>9,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"
              f"   collect {collect:.2f} us, update {update:.2f} us", flush=True)


def print_pairs(rounds):
    """Prints the speed of one run on two cores beside the sum of two runs on one core each."""
    first, *_, vector, _ = CASES.values()
    pairs = {"two runs": first, "two runs of its VectorEnv": vector}
    found = {name: [] for name in ("one run, two workers", *pairs)}
    with ProcessPoolExecutor(2) as pool:
        for _ in range(rounds):
            found["one run, two workers"].append(speed(*first, 2)[0])
            for name, case in pairs.items():
                both = [pool.submit(speed, *case, 0) for _ in range(2)]
                found[name].append(sum(one.result()[0] for one in both))
    for name, rates in found.items():
        print(f"{name:30} {np.median(rates):>9,.0f} ({min(rates):,.0f} to {max(rates):,.0f})")


if __name__ == "__main__":  # and not in a process of the pool
    what, *rest = sys.argv[1:] or ["speeds"]
    if what == "solve":
        print_solved()
    elif what == "pair":
        print_pairs(int(rest[0]) if rest else 3)
    else:
        print_speeds(3 if what == "speeds" else int(what))
