"""Changes of the samples before each epoch: functions of one signature.

    transform(rollout, batch, iteration, epoch) -> batch

They leave the rollout as it is, so that an interrupted update can be repeated.
"""

import functools
from typing import Callable

import numpy as np
import torch

from fastppo.collect import Rollout
from fastppo.config import Config
from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose
from fastppo.networks.popart import PopArt
from fastppo.policy import Policy
from fastppo.spaces.leaves import tree_map
from fastppo.stepping.rewards import values_of_next_turns
from fastppo.update.batches import Batch, normalise_advantages

EpochTransform = Callable[[Rollout, Batch, int, int], Batch]


def make_epoch_transforms(config: Config, policy: Policy) -> list[EpochTransform]:
    """The transforms of a Config, in order; none by default."""
    found: list[EpochTransform] = []
    if isinstance(policy.net, PopArt):
        found.append(functools.partial(_update_popart, policy.net))
    if config.recompute_advantages:
        found.append(functools.partial(_recompute_advantages, config, policy))
    if config.norm_advantages == "rollout":
        found.append(_normalise_advantages)
    if config.rpo_alpha:
        found.append(functools.partial(_move_actions, config))
    return found


def _update_popart(net: PopArt, rollout: Rollout, batch: Batch, iteration: int,
                   epoch: int) -> Batch:
    """The batch with recorded values converted; the first epoch merges its returns into PopArt."""
    if epoch == 0:
        net.learn(batch.ret)
    return batch._replace(val=net.convert_recorded(batch.val))


@torch.no_grad()
def _recompute_advantages(config: Config, policy: Policy, rollout: Rollout, batch: Batch,
                          iteration: int, epoch: int) -> Batch:
    """The batch with advantages and returns from the values of the current critic.

    The value after a truncation stays as recorded (in PopArt's current units), because that
    observation is not stored; so does batch.val, around which values are clipped.
    Source: Andrychowicz 2021, arXiv:2006.05990, section 3.5.
    """
    if epoch == 0:  # the rollout's values are the current critic's
        return batch
    steps, envs = rollout.rew.shape
    rows = max(1, steps * envs // (config.num_minibatches * config.num_microbatches))
    val = []
    for start in range(0, (steps + 1) * envs, rows):
        obs = tree_map(lambda x, start=start: x.flatten(0, 1)[start:start + rows].to(
            batch.adv.device), rollout.obs)
        val.append(policy(obs)[1])
    val = torch.cat(val).cpu().numpy().reshape(steps + 1, envs)
    rew, nxt, term, trunc, valid = (getattr(rollout, name).numpy() for name in
                                    ("rew", "nxt", "term", "trunc", "valid"))
    if isinstance(policy.net, PopArt):
        nxt = policy.net.convert_recorded(rollout.nxt).numpy()
    after, adv = values_of_next_turns(val[1:], rollout.acting.numpy()), np.empty_like(rew)
    nxt = np.where(term | trunc | ~valid, nxt, after)
    kernels.gae(rew, val[:-1], nxt, term, trunc, valid, config.gamma, config.gae_lambda, adv)
    rows = [torch.from_numpy(x[valid]).to(batch.adv.device) for x in (adv, adv + val[:-1])]
    return batch._replace(adv=rows[0], ret=rows[1])


def _normalise_advantages(rollout: Rollout, batch: Batch, iteration: int, epoch: int) -> Batch:
    """The batch with mean 0 and standard deviation 1 of all its advantages."""
    return batch._replace(adv=normalise_advantages(batch.adv))


def _move_actions(config: Config, rollout: Rollout, batch: Batch, iteration: int,
                  epoch: int) -> Batch:
    """The batch with uniform noise from -rpo_alpha to rpo_alpha added to its actions.

    For a density of (act - mean) this equals noise of the other sign on the mean. Each sample has
    its own noise in each epoch. Source: Rahman and Xue 2022, arXiv:2212.07536.
    """
    noise = np.empty(batch.act.shape, np.float32)
    kernels.uniform(config.seed, Purpose.RPO, 0, iteration * config.epochs + epoch, noise)
    away = torch.from_numpy(noise).to(batch.act.device)
    return batch._replace(act=batch.act - config.rpo_alpha * (2.0 * away - 1.0))
