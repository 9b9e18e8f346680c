"""The weights, metrics and plan of a run, and whether its arrays are right."""

import csv

import numpy as np
import torch

from fastppo import reference
from fastppo.trainer.callbacks import rollout_collected
from fastppo.update.batches import flatten_rollout


def table(path) -> list[dict]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def weights(ppo):
    return torch.cat([param.detach().reshape(-1) for param in ppo.policy.parameters()])


def plan_array(rows) -> np.ndarray:
    """The plan of a network, i64 [l 12]; columns that a row lacks are 0."""
    return np.array([(*row, *[0] * (12 - len(row))) for row in rows], np.int64)


def iterations(ppo, count, left):
    """What `left(ppo, rollout)` finds after each of some iterations; a pending one is the first."""
    found = []
    for _ in range(count):
        rollout = ppo.rollout if ppo.pending else ppo.collect()
        rollout_collected(ppo, rollout)
        ppo.update(rollout)
        found.append(left(ppo, rollout))
    return found


def log_ratio(ppo, rollout):
    """log(pi / pi_acting) f32 [b] of a rollout's samples, as the first minibatch finds it."""
    batch = flatten_rollout(rollout, ppo.learner.flat.values.device)
    with torch.no_grad():
        return ppo.policy.evaluate_actions(batch.obs, batch.act)[0] - batch.logp


def assert_ratio_is_one(ppo, rollout):
    """|ratio - 1| < 1e-5 everywhere, and the update that follows says so too."""
    assert (log_ratio(ppo, rollout).exp() - 1).abs().max() < 1e-5
    stats = ppo.update(rollout)
    assert stats["losses/clipfrac"] == 0
    assert abs(stats["losses/approx_kl"]) < 1e-5 > abs(stats["losses/old_approx_kl"])


def assert_successors(ppo, rollout, seen):
    """nxt is the value of the true successor: final at a truncation, NaN where term."""
    nxt, val, near = rollout.nxt.numpy(), rollout.val.numpy(), dict(rtol=1e-5, atol=1e-5)
    cut, goes_on = seen.trunc & ~seen.term, ~(seen.term | seen.trunc)
    assert np.isnan(nxt[seen.term]).all()
    for final, value in zip(seen.fin[cut], nxt[cut], strict=True):
        np.testing.assert_allclose(value, ppo.policy.value(final), **near)
    np.testing.assert_array_equal(nxt[:-1][goes_on[:-1]], val[1:][goes_on[:-1]])
    behind = ppo.policy.value(seen.obs[-1])
    np.testing.assert_allclose(nxt[-1][goes_on[-1]], behind[goes_on[-1]], **near)


def assert_advantages(ppo, rollout):
    """adv and ret are those of the quadratic definition."""
    parts = (getattr(rollout, name).numpy() for name in ("rew", "val", "nxt", "term", "trunc"))
    adv = reference.gae(*parts, True, ppo.config.gamma, ppo.config.gae_lambda)
    np.testing.assert_allclose(rollout.adv, adv, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(rollout.ret, adv + rollout.val.numpy(), rtol=1e-5, atol=1e-5)
