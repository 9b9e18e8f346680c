"""Decides how many worker processes a run has."""

import logging
import os
from typing import Callable

from fastppo.config import Config, default_of
from fastppo.errors import ConfigError, Set
from fastppo.machine import kernels, limits

# Seconds, measured: bench/workers.py, bench/LOG.md.
START_SECONDS = 0.25  # until the workers have started
HANDOVER_SECONDS = 200e-6  # for the main process to wake the workers, and them to wake it

log = logging.getLogger("fastppo")


def can_start_workers() -> bool:
    """True if worker processes can be started: with the compiled extension, and not on Windows."""
    return kernels.COMPILED and os.name != "nt"


def worker_count(num_workers: int | str | None, num_envs: int, faster: Callable[[int], bool]
                 ) -> int:
    """The number of worker processes for `num_envs` environments; 0: only the main process.

    None gives one per core; "auto" gives the same, or 0 if `faster(workers)` is False. A number is
    limited by that of the environments, which the log says. Raises ConfigError if this machine
    cannot run workers.
    """
    if not can_start_workers():
        if num_workers and num_workers != "auto":
            raise ConfigError(f"num_workers={num_workers}, but worker processes need the compiled"
                              " extension, which is not available here",
                              ("install a C compiler, then run: pip install -e .",
                               Set(num_workers=0)))
        return 0
    if num_workers is None or num_workers == "auto":
        count = min(max(1, limits.usable_cores() // limits.ranks_here()), num_envs)
        return count if num_workers is None or faster(count) else 0
    if num_workers > num_envs:
        log.warning("num_workers=%d, but there are only %d environments: %d workers are started",
                    num_workers, num_envs, num_envs)
    return min(num_workers, num_envs)


def workers_are_faster(step_seconds: float, config: Config, workers: int) -> bool:
    """True if `workers` save more time than they cost, or if a setting asks for them.

    They save their share of the stepping. They cost their start and, in local acting, one handover
    per rollout; in central acting one per step of each half of the environments.
    """
    if needs_workers(config):
        return True
    rollouts = -(-config.total_steps // (config.num_envs * config.num_steps))
    handovers = rollouts if config.acting == "local" else rollouts * config.num_steps * 2
    saved = config.total_steps * step_seconds * (1 - 1 / max(1, workers))
    return saved > START_SECONDS + handovers * HANDOVER_SECONDS


def needs_workers(config: Config) -> str:
    """The first setting that asks for what only worker processes have; "" if none does."""
    if config.on_worker_failure == "restart":
        return "on_worker_failure"
    if config.step_timeout not in (0, default_of("step_timeout")):
        return "step_timeout"
    return ""
