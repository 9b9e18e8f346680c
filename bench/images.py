"""Times one minibatch of torch's update on images, of this checkout and of others, in turns.

    python bench/images.py --models cnn impala --rounds 5 --against ../before

Each measurement is a process of its own: it makes random samples [4 84 84] once, then runs epochs.
Prints medians per minibatch: wall time, CPU time of the process (other programs change it least),
the part of it in the kernel, and page faults. `--kept` keeps freed memory, as the command does.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = str(Path(__file__).parents[1])


def measure(options: argparse.Namespace) -> list[list[float]]:
    """(wall, CPU, kernel milliseconds, page faults) per minibatch, for each epoch but the first."""
    import numpy as np
    import torch
    from gymnasium.spaces import Box, Discrete

    from fastppo import Config
    from fastppo.learner import Batch, Learner
    from fastppo.trainer.policy_and_learner import build_policy
    from fastppo.update.flat_parameters import FlatParameters
    from fastppo.update.schedules import coefficients_at
    if options.kept:
        from fastppo.machine.limits import keep_freed_memory
        keep_freed_memory()
    torch.set_num_threads(options.threads)
    count, more = options.rows // options.size, {}
    if options.precision:
        more = {"precision": options.precision}
    config = Config(seed=1, model=options.models[0], shared_critic=True, norm_rewards=False,
                    learner="torch", acting="central", torch_threads=1, num_minibatches=count,
                    entropy_coef=0.01, **more)
    policy = build_policy(Box(0, 255, (4, 84, 84), np.uint8), Discrete(6), config)
    learner = Learner(policy, config, FlatParameters(policy))
    learner.optimizer.rates = 1e-6, 1e-6
    obs = torch.randint(0, 256, (options.rows, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        params, val = policy(obs)
        act, logp = policy.head.sample(params, torch.rand(options.rows, 1))
    adv = torch.randn(options.rows)
    batch, order = Batch(obs, act, logp, val, adv, val + adv), torch.randperm(options.rows)
    found, coefs = [], coefficients_at(config, 1.0)
    for _ in range(options.epochs + 1):
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        learner._epoch(batch, order, coefs)
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        user, kernel = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
        faults = after.ru_minflt - before.ru_minflt
        found.append([x / count for x in (wall * 1e3, (user + kernel) * 1e3, kernel * 1e3, faults)])
    return found[1:]


def in_process(checkout: str, model: str, options: argparse.Namespace) -> list[list[float]]:
    """`measure` with the package of a checkout, in a process of its own."""
    words = [sys.executable, __file__, "--worker", f"--models={model}",
             *(f"--{name}={getattr(options, name)}" for name in ("threads", "rows", "size",
                                                                 "epochs")),
             *["--kept"] * (options.kept and checkout == HERE),
             *[f"--precision={options.precision}"] * (checkout == HERE)]
    done = subprocess.run(words, env={**os.environ, "PYTHONPATH": checkout}, check=True,
                          stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def main() -> None:
    """Print one line per model and checkout."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["cnn"])
    parser.add_argument("--against", nargs="*", default=[], help="folders of other checkouts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=1024, help="samples of one epoch")
    parser.add_argument("--size", type=int, default=256, help="samples of a minibatch")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="", help="of this checkout: fp32 or bf16")
    parser.add_argument("--kept", action="store_true", help="this checkout keeps freed memory")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measure(options)))
        return
    places = [*map(os.path.abspath, options.against), HERE]
    for model in options.models:
        found = {place: [] for place in places}
        for _ in range(options.rounds):
            for place in places:
                found[place] += in_process(place, model, options)
        for place in places:
            wall, cpu, kernel, faults = map(statistics.median, zip(*found[place]))
            best = min(row[1] for row in found[place])
            print(f"{model:8} {Path(place).name:12} wall {wall:8.1f} ms   CPU {cpu:8.1f} ms (least"
                  f" {best:.1f})   kernel {kernel:6.1f} ms   faults {faults:8,.0f}", flush=True)


if __name__ == "__main__":
    main()
