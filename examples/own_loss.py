"""Your own loss (a function), optimizer (a torch.optim class) and schedule (a function)."""

from functools import partial

import torch

from fastppo import PPO
from fastppo.learner import value_loss


def penalty_loss(output, batch, coefficients):
    """(loss, statistics to log): a penalty on the squared log ratio instead of clipping."""
    log_ratio = output.logp - batch.logp
    policy = -(log_ratio.exp() * batch.adv).mean()
    penalty = log_ratio.square().mean()
    value = value_loss(output.val, batch, coefficients.clip_range_vf)
    loss = policy + penalty / coefficients.clip_range + coefficients.value_coef * value
    return loss, {"penalty": penalty}


with PPO("CartPole-v1", seed=1, total_steps=40_000, progress="lines", loss=penalty_loss,
         optimizer=partial(torch.optim.AdamW, weight_decay=1e-3),
         lr=lambda remaining: 2e-3 * remaining**0.5) as ppo:
    ppo.learn()
    print(ppo.evaluate(20))
