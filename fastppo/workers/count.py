"""Decides how many worker processes a run has."""

import os
from typing import Callable

from fastppo.config import Config
from fastppo.errors import ConfigError
from fastppo.machine import kernels
from fastppo.machine.limits import usable_cores

# Seconds, measured: bench/workers.py, bench/LOG.md.
START = 0.25  # until the workers are up
WAKE = 200e-6  # for the workers and the main process to hand over to each other once
OWN = 3e-6  # our own work on a step, local acting


def worker_count(asked: int | str | None, envs: int, pays: Callable[[int], bool]) -> int:
    """How many workers step `envs` environments where `asked` are asked for; None: one a core.

    0 is the main process; "auto" that or one a core, as `pays(workers)` says. Raises ConfigError
    where this machine cannot have any.
    """
    if asked == "auto":
        most = worker_count(None, envs, pays)
        return most if pays(most) else 0
    if not kernels.COMPILED or os.name == "nt":
        if asked:
            raise ConfigError("worker processes need the compiled extension, which is not here",
                              "install a C compiler, then pip install -e . ; or --num_workers=0")
        return 0
    return min(usable_cores() if asked is None else asked, envs)


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
