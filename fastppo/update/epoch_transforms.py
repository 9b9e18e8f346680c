"""What becomes of the samples before each pass over them: functions of one signature.

    change(rollout, batch, iteration, epoch) -> batch

The rollout and what it recorded stay as they are, so that an interrupted update can be done again.
"""

import functools
from typing import Callable

import numpy as np
import torch
from gymnasium.spaces import Box

from fastppo.collect import Rollout
from fastppo.config import Config
from fastppo.envs.spaces import tree_map
from fastppo.errors import ConfigError
from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose
from fastppo.networks.heads import Gaussian
from fastppo.networks.user_distribution import DistributionHead
from fastppo.networks.value_normalisation import PopArt
from fastppo.policy import Policy
from fastppo.settings.fixes import flag
from fastppo.update.batches import Batch, normalise_advantages

EpochTransform = Callable[[Rollout, Batch, int, int], Batch]


def make_epoch_transforms(config: Config, policy: Policy) -> list[EpochTransform]:
    """The changes a Config asks for, in order; none by default."""
    found: list[EpochTransform] = []
    if isinstance(policy.net, PopArt):
        found.append(functools.partial(_values_learnt, policy.net))
    if config.recompute_advantages and policy.memory:
        raise ConfigError("--recompute_advantages=True is not for networks with memory, whose"
                          " values depend on all steps before", "--recompute_advantages=False")
    if config.recompute_advantages:
        found.append(functools.partial(_recomputed, config, policy))
    if config.norm_advantages == "rollout":
        found.append(_normalised)
    if config.rpo_alpha:
        if type(policy.head) is not Gaussian:
            raise ConfigError("--rpo_alpha moves the mean of one Box of normally distributed"
                              " actions, with a std free of the state, which"
                              f" {_other(config, policy)} has not", "--rpo_alpha=0")
        found.append(functools.partial(_robust, config))
    return found


def _other(config: Config, policy: Policy) -> str:
    """Because of what the actions are not those of a plain Gaussian."""
    if not isinstance(policy.act_space, Box):
        return f"the space {policy.act_space}"
    if isinstance(policy.head, DistributionHead):
        return "the distribution that the model returns"
    return "--sde" if config.sde else flag("distribution", config.distribution)


def _values_learnt(net: PopArt, rollout: Rollout, batch: Batch, iteration: int,
                   epoch: int) -> Batch:
    """The batch with recorded values converted; the first epoch merges its returns into PopArt."""
    if epoch == 0:
        net.learn(batch.ret)
    return batch._replace(val=net.convert_recorded(batch.val))


@torch.no_grad()
def _recomputed(config: Config, policy: Policy, rollout: Rollout, batch: Batch, iteration: int,
                epoch: int) -> Batch:
    """The batch with advantages and returns of the values that the network has now.

    The value after a truncation stays as recorded, for its observation is gone (but for its units);
    so does batch.val, around which values are clipped.
    Source: Andrychowicz 2021, arXiv:2006.05990, section 3.5.
    """
    if epoch == 0:  # the network is still the one that acted
        return batch
    steps, envs = rollout.rew.shape
    rows = max(1, steps * envs // (config.num_minibatches * config.num_microbatches))
    starts = range(0, (steps + 1) * envs, rows)
    val = torch.cat([policy(tree_map(
        lambda x, at=at: x.flatten(0, 1)[at:at + rows].to(batch.adv.device), rollout.obs))[1]
        for at in starts])
    val = val.cpu().numpy().reshape(steps + 1, envs)
    rew, nxt, term, trunc, valid = (getattr(rollout, name).numpy() for name in
                                    ("rew", "nxt", "term", "trunc", "valid"))
    if isinstance(policy.net, PopArt):
        nxt = policy.net.convert_recorded(rollout.nxt).numpy()
    nxt, adv = np.where(term | trunc | ~valid, nxt, val[1:]), np.empty_like(rew)
    kernels.gae(rew, val[:-1], nxt, term, trunc, config.gamma, config.gae_lambda, adv)
    rows = [torch.from_numpy(x[valid]).to(batch.adv.device) for x in (adv, adv + val[:-1])]
    return batch._replace(adv=rows[0], ret=rows[1])


def _normalised(rollout: Rollout, batch: Batch, iteration: int, epoch: int) -> Batch:
    """The batch with all its advantages brought to mean 0 and std 1."""
    return batch._replace(adv=normalise_advantages(batch.adv))


def _robust(config: Config, rollout: Rollout, batch: Batch, iteration: int, epoch: int) -> Batch:
    """The batch judged as if the mean of every action lay up to rpo_alpha beside where it lies.

    For a density of (act - mean) that is the action moved the other way. The noise is a sample's
    own, uniform, another one in every epoch. Source: Rahman and Xue 2022, arXiv:2212.07536.
    """
    noise = np.empty(batch.act.shape, np.float32)
    kernels.uniform(config.seed, Purpose.ROBUST, 0, iteration * config.epochs + epoch, noise)
    away = torch.from_numpy(noise).to(batch.act.device)
    return batch._replace(act=batch.act - config.rpo_alpha * (2.0 * away - 1.0))
