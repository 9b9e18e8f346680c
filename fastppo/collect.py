"""A rollout: the arrays of T steps of E environments, who fills them, and what follows from them.

    collect: obs act logp val raw term trunc [t e]  ->  nxt  ->  rew  ->  adv, ret
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import kernels
from .arena import Arena
from .config import Config
from .policy import EPSILON, Policy

WARMUP_STEPS = 128  # longest random rollout from which observation moments start


class Rollout(NamedTuple):
    """The record of one iteration: tensors [t e ...] in shared memory, good until the next one."""

    obs: Tensor  # [t+1 e ...] seen before acting
    act: Tensor  # i64 [t e] or f32 [t e a], unclipped
    logp: Tensor  # f32 [t e] of act under the policy that acted
    val: Tensor  # f32 [t e] under the policy that acted
    raw: Tensor  # f32 [t e] reward as the environment gave it
    rew: Tensor  # f32 [t e] reward that advantages are computed from
    term: Tensor  # bool [t e]
    trunc: Tensor  # bool [t e]
    valid: Tensor  # bool [t e] false for rows that are no step
    nxt: Tensor  # f32 [t e] value of the true successor; NaN where term
    adv: Tensor  # f32 [t e]
    ret: Tensor  # f32 [t e] adv + val, the critic's target


class Returns:
    """Reward scaling: the running moments of the discounted return, and each environment's own."""

    def __init__(self, envs: int):
        self.state = np.zeros(envs), np.zeros(1), np.zeros(1), np.zeros(1)  # carry count mean m2
        self.start = -1, self.state

    def scale(self, iteration: int, rew: np.ndarray, ended: np.ndarray, valid: np.ndarray,
              gamma: float) -> float:
        """Take in a rollout's rewards f32 [t e]; returns the factor 1 / sqrt(var + 1e-8).

        The same iteration given again (after an interrupt) is taken in once.
        """
        if self.start[0] != iteration:
            self.start = iteration, self.state
        carry, count, mean, m2 = state = tuple(x.copy() for x in self.start[1])
        out = np.empty(rew.shape)
        kernels.discounted(np.where(valid, rew, np.float32(0)), ended, gamma, carry, out)
        kernels.merge_moments(out.T[valid.T].reshape(-1, 1), count, mean, m2)
        self.state = state
        return float(1 / np.sqrt(m2[0] / count[0] + EPSILON))


class Collector:
    """The environments of a run with the arrays they fill; `collect` is one iteration of them."""

    def __init__(self, arena: Arena, vec, policy: Policy, config: Config):
        self.arena, self.vec, self.policy, self.config = arena, vec, policy, config
        self.returns, self.begun, self.prepared = Returns(config.num_envs), False, -1

    def collect(self, iteration: int) -> Rollout:
        """The rollout of `iteration`; asked for again after an interrupt, the same, finished."""
        if not self.begun:
            self._begin()
        if self.prepared != iteration:
            prepare(self.arena)
            self.prepared = iteration
        self.vec.rollout(iteration)
        return finish(self.arena, self.config, self.returns, iteration)

    def _begin(self) -> None:
        """Set the observation moments from a random rollout, then start every environment."""
        if self.policy.norm_obs and not self.policy.count.item():
            steps = min(self.config.num_steps, WARMUP_STEPS)
            self.vec.warmup(steps)
            obs = self.arena["obs"][:steps]
            self.policy.learn_moments(obs.reshape(-1, *obs.shape[2:]))
        self.vec.begin()
        self.begun = True


def prepare(arena: Arena) -> None:
    """Clear what a rollout only writes where an episode ends, and poison what it must write."""
    for name, value in (("term", False), ("trunc", False), ("valid", True), ("length", 0),
                        ("total", np.nan), ("nxt", np.nan), ("val", np.nan), ("logp", np.nan)):
        arena[name].fill(value)


def finish(arena: Arena, config: Config, returns: Returns, iteration: int) -> Rollout:
    """All that follows from what the environments and the policy wrote: nxt, rew, adv, ret."""
    val, nxt, raw, rew, term, trunc, valid, adv = (
        arena[name] for name in ("val", "nxt", "raw", "rew", "term", "trunc", "valid", "adv"))
    ended = term | trunc
    nxt[:-1] = np.where((ended | ~valid)[:-1], nxt[:-1], val[1:])
    rew[:] = raw * np.float32(config.reward_scale)
    if config.clip_rewards:
        np.sign(rew, out=rew)
    if config.norm_rewards:
        rew *= np.float32(returns.scale(iteration, rew, ended, valid, config.gamma))
        np.clip(rew, -config.reward_limit, config.reward_limit, out=rew)
    kernels.gae(rew, val, nxt, term, trunc, config.gamma, config.gae_lambda, adv)
    np.add(adv, val, out=arena["ret"])
    return Rollout(*(torch.from_numpy(arena[name]) for name in Rollout._fields))
