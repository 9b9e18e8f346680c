"""A rollout: the arrays of T steps of E environments, who fills them, and what follows from them.

    collect: obs act logp val raw term trunc [t e]  ->  nxt  ->  rew  ->  adv, ret
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastppo.config import Config
from fastppo.envs.observations import ObservationLayout
from fastppo.envs.spaces import leaf_arrays
from fastppo.machine import kernels
from fastppo.machine.arena import Arena
from fastppo.policy import Policy
from fastppo.stepping.rewards import ReturnScaling, fill_rewards

WARMUP_STEPS = 128  # longest random rollout from which observation moments start


class Rollout(NamedTuple):
    """The record of one iteration: tensors [t e ...] in shared memory, good until the next one."""

    obs: Any  # [t+1 e ...] seen before acting; of a Dict or Tuple space such a structure of tensors
    act: Tensor  # i64 [t e] or [t e k], f32 [t e a], as the policy chose it
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
    state: Tensor  # f32 [t+1 e s] memory before obs is seen; s is 0 without one


class Collector:
    """The environments of a run with the arrays they fill; `collect` is one iteration of them."""

    def __init__(self, arena: Arena, vec, policy: Policy, config: Config):
        self.arena, self.vec, self.policy, self.config = arena, vec, policy, config
        self.returns, self.begun, self.prepared = ReturnScaling(config.num_envs), False, -1

    def collect(self, iteration: int) -> Rollout:
        """The rollout of `iteration`; asked for again after an interrupt, the same, finished."""
        if not self.begun:
            self._begin()
        if self.prepared != iteration:
            prepare_rollout(self.arena)
            self.prepared = iteration
        self.vec.rollout(iteration)
        finish_rollout(self.arena, self.config, self.returns, iteration)
        return as_rollout(self.arena, self.policy.observer.layout)

    def _begin(self) -> None:
        """Set the observation moments from a random rollout, then start every environment."""
        if self.policy.observer.norm and not self.policy.observer.count.item():
            steps = min(self.config.num_steps, WARMUP_STEPS)
            self.vec.warmup(steps)
            self.policy.observer.learn([x.reshape(-1, *x.shape[2:]) for x in leaf_arrays(
                self.arena["obs"][:steps])])
        self.vec.begin()
        self.begun = True


def prepare_rollout(arena: Arena) -> None:
    """Clear what a rollout only writes where an episode ends, and poison what it must write."""
    for name, value in (("term", False), ("trunc", False), ("valid", True), ("length", 0),
                        ("total", np.nan), ("nxt", np.nan), ("val", np.nan), ("logp", np.nan)):
        arena[name].fill(value)


def finish_rollout(arena: Arena, config: Config, returns: ReturnScaling, iteration: int) -> None:
    """All that follows from what the environments and the policy wrote: nxt, rew, adv, ret."""
    val, nxt, rew, term, trunc, valid, adv = (
        arena[name] for name in ("val", "nxt", "rew", "term", "trunc", "valid", "adv"))
    nxt[:-1] = np.where((term | trunc | ~valid)[:-1], nxt[:-1], val[1:])
    fill_rewards(arena, config, returns, iteration)
    kernels.gae(rew, val, nxt, term, trunc, config.gamma, config.gae_lambda, adv)
    np.add(adv, val, out=arena["ret"])


def as_rollout(arena: Arena, seen: ObservationLayout) -> Rollout:
    """The arena's arrays as tensors, observations in the structure of their space."""
    obs = seen.structure(list(map(torch.from_numpy, leaf_arrays(arena["obs"]))))
    return Rollout(obs, *(torch.from_numpy(arena[name]) for name in Rollout._fields[1:]))
