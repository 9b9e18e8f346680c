"""Computes the rewards of advantages from the rewards of environments.

    raw  ->  times reward_scale  ->  sign (clip_rewards)  ->  over the std of returns (norm_rewards)
"""

import logging

import numpy as np

from fastppo.config import Config
from fastppo.machine import kernels
from fastppo.machine.shared_memory import Arena

EPSILON = 1e-8  # added to variances

log = logging.getLogger("fastppo")


class ReturnScaling:
    """Scales rewards by the running standard deviation of the discounted return."""

    def __init__(self, envs: int):
        self.state = np.zeros(envs), np.zeros(1), np.zeros(1), np.zeros(1)  # carry count mean m2
        self.before = -1, self.state  # the last iteration, and the state before it
        self.warned = False  # that most rewards are at the limit

    def scale(self, iteration: int, rew: np.ndarray, ended: np.ndarray, valid: np.ndarray,
              gamma: float) -> float:
        """Adds a rollout's rewards f32 [t e] to the moments; returns 1 / sqrt(variance + 1e-8).

        An iteration given again, after an interrupt, is added once.
        """
        if self.before[0] != iteration:
            self.before = iteration, self.state
        carry, count, mean, m2 = state = tuple(x.copy() for x in self.before[1])
        out = np.empty(rew.shape)
        kernels.discounted(np.where(valid, rew, np.float32(0)), ended, gamma, carry, out)
        kernels.merge_moments(out.T[valid.T].reshape(-1, 1), count, mean, m2)
        self.state = state
        return float(1 / np.sqrt(m2[0] / count[0] + EPSILON))


def fill_rewards(arena: Arena, config: Config, returns: ReturnScaling, iteration: int) -> None:
    """Fills rew [t e] of a rollout from its raw rewards.

    Warns once if more than half of the normalised ones are at their limit.
    """
    raw, rew, term, trunc, valid = (arena[n] for n in ("raw", "rew", "term", "trunc", "valid"))
    rew[:] = raw * np.float32(config.reward_scale)
    if config.clip_rewards:
        np.sign(rew, out=rew)
    if config.norm_rewards:
        rew *= np.float32(returns.scale(iteration, rew, term | trunc, valid, config.gamma))
        np.clip(rew, -config.reward_limit, config.reward_limit, out=rew)
        limited = valid & (abs(rew) == np.float32(config.reward_limit))
        if not returns.warned and limited.sum() > valid.sum() / 2:
            returns.warned = True
            log.warning("%.0f %% of the normalised rewards are at reward_limit=%g, and do not"
                        " differ: rewards are large beside the spread of their discounted sums\n"
                        "  fix: norm_rewards=False", 100 * limited.sum() / valid.sum(),
                        config.reward_limit)
