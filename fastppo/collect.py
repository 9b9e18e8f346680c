"""The rollout buffer: the arrays of T steps of E environments, and how they are filled.

    collect: obs act logp val raw term trunc [t e]  ->  nxt  ->  rew  ->  adv, ret
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastppo.config import Config
from fastppo.errors import ConfigError, Omit
from fastppo.machine import kernels
from fastppo.machine.shared_memory import Arena
from fastppo.networks.frame_stacks import stacked_observations
from fastppo.policy import Policy
from fastppo.spaces.leaves import leaf_arrays, tree_map
from fastppo.spaces.observations import ObservationLayout
from fastppo.stepping.environments import ResetOptions
from fastppo.stepping.replay import EnvSnapshots
from fastppo.stepping.rewards import ReturnScaling, fill_rewards, settle_turns

WARMUP_STEPS = 128  # longest random rollout from which observation moments start


class Rollout(NamedTuple):
    """The record of one iteration: tensors [t e ...], good until the next one.

    They are in shared memory, but observations may be on a device, and a simulator's actions, too.
    """

    obs: Any  # [t+1 e ...] seen before acting; a tensor, a structure of tensors or FrameStacks
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
    acting: Tensor  # bool [t+1 e] false for an agent of a game that waits for its turn or has ended
    state: Tensor  # f32 [t+1 e s] memory before obs is seen; s is 0 without one


class Progress(NamedTuple):
    """The progress of a run; replaced whole, so that an interrupt never sees half of it."""

    iteration: int = 0  # rollouts collected
    step: int = 0  # valid rows in them
    begin: int = 0  # step at which the last rollout began


class Collector:
    """The environments of a run, `vec`, and the rollout that they fill, the same tensors always."""

    vec: Any  # a Serial, or what has its methods
    past: Any = None  # games.past.PastSelves, if they are opponents

    def __init__(self, arena: Arena, policy: Policy, config: Config, snapshots: EnvSnapshots):
        self.arena, self.policy, self.config = arena, policy, config
        self.snapshots, self.progress = snapshots, Progress()
        self.rollout = as_rollout(arena, policy.observer.layout)
        self.started, self.prepared = False, -1
        self.sent: ResetOptions = ()  # what `vec` knows

    def collect(self, options: Any = None, total: int = 0) -> Rollout:
        """The next rollout; after an interrupt, the rest of the same one.

        Episodes that begin in it are reset with the reset_options `options`, of which a function
        gets the progress to step `total`.
        """
        iteration, step, _ = self.progress
        if self.prepared != iteration and (options, self.snapshots.log.state.options) != (None, ()):
            self._use_options(options, min(step / (total or 1), 1.0))
        observer = self.policy.observer
        if not self.started and observer.norm and not observer.count.item():
            steps = min(self.config.num_steps, WARMUP_STEPS)  # moments from a random rollout
            self.vec.warmup(steps)
            valid, games = self.rollout.valid[:steps], self.config.agents > 1
            observer.learn_from(tree_map(lambda x: x[:steps][valid] if games else
                                         x[:steps].flatten(0, 1), self.rollout.obs))
        if not self.started:
            self.snapshots.begin(self.vec)
            self.started = True
        if self.prepared != iteration:
            self.snapshots.last = self.snapshots.now(self.progress)
            prepare_rollout(self.arena)
            if self.past:
                self.past.begin(iteration, self.policy)
            self.prepared = iteration
        self.vec.rollout(iteration)
        self.snapshots.log.record(iteration * self.config.num_steps)
        finish_rollout(self.arena, self.config, self.snapshots.returns, iteration)
        if self.past:
            self.past.rate(iteration)
        self.progress = Progress(iteration + 1, step + int(self.arena["valid"].sum()), step)
        return self.rollout

    def restore(self) -> None:
        """Makes the next `collect` begin in new environments; a rollout begins again."""
        if self.started:
            self.snapshots.restore(self.progress)
        self.started, self.prepared, self.sent = False, -1, ()

    def _use_options(self, options: Any, progress: float) -> None:
        if not hasattr(self.vec, "use_options"):
            raise ConfigError("there are reset_options, but a vector environment resets its"
                              " environments itself", Omit("reset_options"))
        log = self.snapshots.log
        log.set_options(options, progress)
        if self.sent is not log.state.options:
            self.vec.use_options(log.state.options)
            self.sent = log.state.options


def prepare_rollout(arena: Arena) -> None:
    """Clears what is written only where an episode ends; poisons (NaN) what the rest write."""
    for name, value in (("term", False), ("trunc", False), ("valid", True), ("length", 0),
                        ("total", np.nan), ("nxt", np.nan), ("val", np.nan), ("logp", np.nan)):
        arena[name].fill(value)


def finish_rollout(arena: Arena, config: Config, returns: ReturnScaling, iteration: int) -> None:
    """Computes nxt, rew, adv and ret from what the environments and the policy wrote."""
    val, nxt, rew, term, trunc, valid, adv = (
        arena[name] for name in ("val", "nxt", "rew", "term", "trunc", "valid", "adv"))
    if config.agents > 1:
        settle_turns(arena)
    else:
        nxt[:-1] = np.where((term | trunc | ~valid)[:-1], nxt[:-1], val[1:])
    fill_rewards(arena, config, returns, iteration)
    kernels.gae(rew, val, nxt, term, trunc, valid, config.gamma, config.gae_lambda, adv)
    np.add(adv, val, out=arena["ret"])


def as_rollout(arena: Arena, seen: ObservationLayout) -> Rollout:
    """The arena's arrays as tensors, observations in the structure of their space."""
    obs = stacked_observations(arena) if len(arena["frames"]) else seen.structure(
        [torch.from_numpy(leaf) for leaf in leaf_arrays(arena["obs"])])
    return Rollout(obs, *(torch.from_numpy(arena[name]) for name in Rollout._fields[1:]))
