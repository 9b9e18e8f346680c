"""Computes the rewards of advantages from the rewards of environments.

    raw  ->  times reward_scale  ->  sign (clip_rewards)  ->  over the std of returns (norm_rewards)
         ->  minus what makes values begin near 0 (center_rewards)

In games whose agents act one after the other, rewards and the end of an agent may come in a step in
which another one acts. They are recorded there, all of a turn at once, and become those of the
agent's last turn:

    step     0    1    2    3         player 0 has its turns in steps 0 and 2, player 1 in 1 and 3
    raw[0]   0   +1    0   -5    ->   raw[0] of its turns: +1 and -5
"""

import logging

import numpy as np

from fastppo.config import Config
from fastppo.machine import kernels
from fastppo.machine.shared_memory import Arena

EPSILON = 1e-8  # added to variances

log = logging.getLogger("fastppo")


class ReturnScaling:
    """Scales rewards by the running standard deviation of the discounted return.

    The last array of its `state` is the value that the first rollout has on average.
    """

    def __init__(self, envs: int):
        self.state = np.zeros(envs), *np.zeros((4, 1))  # carry count mean m2 value
        self.before = -1, self.state  # the last iteration, and the state before it
        self.warned = False  # that most rewards are at the limit

    def scale(self, iteration: int, rew: np.ndarray, ended: np.ndarray, valid: np.ndarray,
              gamma: float) -> float:
        """Adds a rollout's rewards f32 [t e] to the moments; returns 1 / sqrt(variance + 1e-8).

        An iteration given again, after an interrupt, is added once.
        """
        if self.before[0] != iteration:
            self.before = iteration, self.state
        carry, count, mean, m2, _ = state = tuple(x.copy() for x in self.before[1])
        out = np.empty(rew.shape)
        kernels.discounted(rew, ended, valid, gamma, carry, out)
        kernels.merge_moments(out.T[valid.T].reshape(-1, 1), count, mean, m2)
        self.state = state
        return float(1 / np.sqrt(m2[0] / count[0] + EPSILON))

    def center(self, iteration: int, rew: np.ndarray, term: np.ndarray, valid: np.ndarray,
               gamma: float) -> np.ndarray:
        """The part of rewards f32 [t e] that raises all values by v: (1 - gamma) v, v where `term`.

        v is the value, the same in all states, that fits the first rollout. Sources: Naik 2024,
        arXiv:2405.09999, without ends; Ng 1999, with them.
        """
        left = 1.0 - gamma * ~term
        if iteration == 0:
            value = rew[valid].sum() / (left[valid].sum() or np.inf)
            self.state = *self.state[:-1], np.full(1, value)
        return (self.state[-1] * left).astype(np.float32)


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
    if config.center_rewards:
        rew -= returns.center(iteration, rew, term, valid, config.gamma)


def settle_turns(arena: Arena) -> None:
    """Gives each turn of a rollout what its agent gets until the next one, and fills nxt.

    Where `acting` is false is no turn. A turn whose outcome is open at the end of the rollout
    becomes invalid; its value is that to which the turn before leads. Again, it changes nothing.
    """
    raw, term, trunc, valid, val, nxt, acting = (
        arena[name] for name in ("raw", "term", "trunc", "valid", "val", "nxt", "acting"))
    turns, steps, envs = acting[:-1], np.arange(len(raw))[:, None], np.arange(raw.shape[1])
    last = np.maximum.accumulate(np.where(turns, steps, -1))  # turn of the row until each step
    t, e = np.nonzero(~turns & (last >= 0) & (term | trunc | (raw != 0)))
    for x in (raw, term, trunc, nxt):
        x[last[t, e], e] = x[t, e]
    ended = term | trunc
    is_open = ~acting[-1] & ~ended[last[-1], envs]
    valid[last[-1, is_open], envs[is_open]] = False
    nxt[:] = np.where(ended | ~valid, nxt, values_of_next_turns(
        np.vstack([val[1:], nxt[-1:]]), acting))


def values_of_next_turns(after: np.ndarray, acting: np.ndarray) -> np.ndarray:
    """The values [t e] of the rows' next turns, of values `after` [t e] each step.

    `acting` [t+1 e] is true where a row has a turn. Without a next turn it is that of the end.
    """
    steps = np.where(acting[1:], np.arange(len(after))[:, None], len(after) - 1)
    return np.take_along_axis(after, np.minimum.accumulate(steps[::-1])[::-1], 0)
