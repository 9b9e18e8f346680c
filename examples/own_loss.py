"""Your own loss, optimizer and schedule: a function, a class of torch.optim, another function."""

from functools import partial

import torch

from fastppo import PPO
from fastppo.learner import value_loss


def smooth(fresh, batch, now):
    """A penalty on the squared log ratio instead of clipping; (loss, what is logged)."""
    log_ratio = fresh.logp - batch.logp
    gain = -(log_ratio.exp() * batch.adv).mean()
    penalty = log_ratio.square().mean()
    error = value_loss(fresh.val, batch, now.clip_range_vf)
    return gain + penalty / now.clip_range + now.value_coef * error, {"penalty": penalty}


with PPO("CartPole-v1", seed=1, total_steps=40_000, progress="lines", loss=smooth,
         optimizer=partial(torch.optim.AdamW, weight_decay=1e-3),
         lr=lambda remaining: 2e-3 * remaining**0.5) as ppo:
    ppo.learn()
    print(ppo.evaluate(20))
