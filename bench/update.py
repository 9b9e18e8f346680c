"""Times one minibatch of the update: the compiled learner, torch's, and the limit of this core.

    python bench/update.py --sizes 64 256 512 1024 --hidden 64 64 --rounds 5

Both learners run the epochs of an update over the same samples in turns, on one thread. Prints the
median microseconds per minibatch of each with the spread, their ratio, and the share of the limit:
the networks' exact FLOPs over the fp32 GEMM peak of one core, measured between the rounds. Quote
only the ratios: absolute figures depend on the machine and its load.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from fastppo import Config
from fastppo.compiled.learner import CompiledLearner
from fastppo.learner import Batch, Learner
from fastppo.networks.encoders import ActorCritic, DenseEncoder
from fastppo.policy import Policy
from fastppo.update.flat_parameters import FlatParameters
from fastppo.update.schedules import coefficients_at


def learner_of(kind: type[Learner], options: argparse.Namespace, count: int) -> Learner:
    """A learner with `count` minibatches per epoch, always with the same weights."""
    generator = torch.Generator().manual_seed(1)
    bodies = [DenseEncoder(options.inputs, options.hidden, options.activation, generator)
              for _ in range(1 if options.shared else 2)]
    net = ActorCritic(bodies[0], bodies[-1], options.actions, generator)
    space = Discrete(options.actions)
    if options.box:
        space = Box(-1, 1, (options.actions,), np.float32)
    policy = Policy(Box(-np.inf, np.inf, (options.inputs,), np.float32), space, net)
    config = Config(seed=1, num_minibatches=count, clip_range_vf=None, entropy_coef=0.01)
    learner = kind(policy, config, FlatParameters(policy))
    learner.optimizer.rates = 1e-6, 1e-6
    return learner


def batch_of(policy: Policy, options: argparse.Namespace, rows: int) -> Batch:
    """Random samples in the form that a rollout records."""
    obs, noise = torch.randn(rows, options.inputs), torch.rand(rows, policy.head.size)
    with torch.no_grad():
        params, val = policy(obs)
        act, logp = policy.head.sample(params, noise if options.box else noise[:, :1])
    adv = torch.randn(rows)
    return Batch(obs, act, logp, val, adv, val + adv)


def flops_of(plan: np.ndarray) -> int:
    """Exact multiplications and additions of forward and backward for one sample."""
    products = plan[:, 2] * plan[:, 3]
    return int(2 * (2 * products.sum() + products[plan[:, 0] > 0].sum()))


def seconds(run: Callable[[], object], repeats: int = 1) -> float:
    """The mean wall time of one call of `run`, in seconds."""
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats


def measure(options: argparse.Namespace, size: int) -> tuple[list[float], list[float], float]:
    """Microseconds per minibatch: (each round with the kernel, each with torch, the limit)."""
    count = max(1, options.rows // size)
    learners = [learner_of(kind, options, count) for kind in (CompiledLearner, Learner)]
    batch, order = batch_of(learners[0].policy, options, count * size), torch.randperm(count * size)
    coefs = coefficients_at(learners[0].config, 1.0)
    flops, a, times, peak = flops_of(learners[0].plan.plan), torch.randn(512, 512), ([], []), 0.0
    for turn in range(options.rounds + 1):
        peak = max(peak, 2 * 512**3 / seconds(lambda: a @ a, 5))
        for learner, of_learner in zip(learners, times, strict=True):
            spent = seconds(partial(learner._epoch, batch, order, coefs), options.passes)
            if turn:  # the first round is warm-up
                of_learner.append(spent / count * 1e6)
    return *times, flops * size / peak * 1e6


def main() -> None:
    """Print one line per minibatch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 256, 512, 1024])
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--activation", default="tanh")
    parser.add_argument("--inputs", type=int, default=8)
    parser.add_argument("--actions", type=int, default=4)
    parser.add_argument("--box", action="store_true", help="a Gaussian head, else a categorical")
    parser.add_argument("--shared", action="store_true", help="actor and critic share their trunk")
    parser.add_argument("--rows", type=int, default=2048, help="samples of one epoch")
    parser.add_argument("--passes", type=int, default=10, help="epochs of one update")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    print("samples  kernel us (spread)     torch us (spread)      torch/kernel  limit us  share")
    for size in options.sizes:
        kernel, torchs, limit = measure(options, size)
        mine, theirs = statistics.median(kernel), statistics.median(torchs)
        print(f"{size:7}  {mine:8.1f} ({min(kernel):.1f}-{max(kernel):.1f})".ljust(32)
              + f"{theirs:8.1f} ({min(torchs):.1f}-{max(torchs):.1f})".ljust(23)
              + f"{theirs / mine:12.1f} {limit:9.1f} {limit / mine:6.2f}", flush=True)


if __name__ == "__main__":
    main()
