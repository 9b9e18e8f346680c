"""Whether workers pay: what a step of the environment costs, beside what workers cost.

Results are the same bits for any number of workers, so measuring this changes speed alone.
"""

import math
import random
import sys
import threading
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Callable, Iterator

import gymnasium as gym
import numpy as np

from . import kernels
from .actions import Actions
from .config import Config
from .kernels import Purpose
from .observations import Observations

MOST_STEPS, MOST_SECONDS = 300, 0.05  # of measuring, whichever is first
ACTIONS = 64
SEEDING = threading.RLock()  # one thread at a time borrows the host's generators

# Seconds, measured: bench/workers.py, bench/LOG.md.
START = 0.25  # until the workers are up
WAKE = 200e-6  # for the workers and the main process to hand over to each other once
OWN = 3e-6  # our own work on a step, local acting


def step_seconds(env: gym.Env) -> float:
    """Seconds that a step of `env` takes under random actions, with its share of the resets.

    At most 300 steps or 50 ms, or two steps if they take longer. The process's shared generators
    are left as they were; infinite where the environment fails, which its run will tell better.
    """
    try:
        with shared_noise_kept():
            return _measured(env)
    except (Exception, SystemExit):  # an environment may raise anything
        return math.inf


def pays(step: float, config: Config, workers: int) -> bool:
    """Whether a run whose environment's step takes `step` seconds is faster with `workers`.

    What they save is their share of the stepping; what they cost is their start, and handing over:
    once a rollout where they act for themselves, once a step and group of environments elsewhere.
    """
    if workers < 2:
        return False
    local = config.acting == "local"
    rollouts = -(-config.total_steps // (config.num_envs * config.num_steps))
    rows = rollouts * config.num_envs * config.num_steps
    turns = 1 if local else config.num_steps * min(2, config.num_envs)
    saved = rows * (step + OWN * local) * (1 - 1 / workers)
    return saved > START + rollouts * turns * WAKE


def _measured(env: gym.Env) -> float:
    chosen = _chooser(env)
    obs, steps, seconds = env.reset(seed=0)[0], -1, 0.0
    while steps < MOST_STEPS and seconds < MOST_SECONDS:
        action, begun = chosen(obs, steps), perf_counter()
        obs, _, term, trunc, _ = env.step(action)
        steps += 1
        if term or trunc:
            obs, _ = env.reset(seed=steps)
        if steps:  # the first one may load or compile what the others only use
            seconds += perf_counter() - begun
    return seconds / steps


def _chooser(env: gym.Env) -> Callable[[Any, int], Any]:
    """A function from an observation and the number of a step to a random legal action."""
    acts, seen = Actions(env.action_space), Observations(env.observation_space, env.action_space)
    u, z = (np.empty((ACTIONS, acts.size), np.float32) for _ in "uz")
    kernels.uniform(0, Purpose.WARMUP, 0, 0, u)
    kernels.normal(0, Purpose.WARMUP, 0, 1, z)
    to_env = acts.to_env()
    if seen.mask is None:
        actions = to_env(acts.random(u, z))
        return lambda obs, step: actions[step % ACTIONS]

    def legal(obs, step: int):
        row, mask = slice(step % ACTIONS, step % ACTIONS + 1), seen.legal(seen.rows([obs]))
        return to_env(acts.random(u[row], z[row], mask))[0]
    return legal


@contextmanager
def shared_noise_kept() -> Iterator[None]:
    """Put back the generators that all of a process shares, torch's too if it is there."""
    torch = sys.modules.get("torch")
    with SEEDING:
        before = random.getstate(), np.random.get_state(), torch and torch.get_rng_state()
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            if torch:
                torch.set_rng_state(before[2])
