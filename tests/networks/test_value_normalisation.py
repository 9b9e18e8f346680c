"""PopArt around networks of the user's, whose critics can or cannot keep their values."""

from functools import partial

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box

from fastppo import learner

LEARNER = "torch"
BOX = partial(Chance, Box(-9, 9, (3,), np.float32), Box(-1, 1, (2,), np.float32))


class Small(torch.nn.Module):
    """A network whose value is the output of a linear layer of that name, or one without a bias."""

    def __init__(self, obs_space, act_space, name="critic", bias=True):
        super().__init__()
        self.actor, self.name = torch.nn.Linear(3, 2), name
        self.add_module(name, torch.nn.Linear(3, 1, bias))

    def forward(self, obs):
        """(action parameters, value)."""
        return self.actor(obs), getattr(self, self.name)(obs)[:, 0]


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("critic", [{}, {"bias": False}, {"name": "baseline"}], ids=str)
def test_recorded_values_have_the_scale_of_the_values_they_are_compared_with(
        trainer, monkeypatch, critic, epochs):
    ppo = trainer(BOX, model=partial(Small, **critic), norm_values=True, reward_scale=50.0,
                  lr=1e-12, clip_range_vf=0.2, epochs=epochs)
    seen, real = [], learner.total_loss

    def watching(fresh, batch, now):
        seen.append((fresh.val.detach(), batch.val))
        return real(fresh, batch, now)

    monkeypatch.setattr(learner, "total_loss", watching)
    for _ in range(3):
        ppo.update(ppo.collect())
    assert len(seen) == 3 * epochs and ppo.policy.net.spread > 10
    for fresh, recorded in seen:  # the weights do not change: neither do the values
        torch.testing.assert_close(fresh, recorded, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("critic", "kept"), [
    ({}, True), ({"bias": False}, False), ({"name": "baseline"}, False)], ids=str)
def test_only_a_critic_with_a_bias_keeps_its_values(trainer, critic, kept):
    ppo = trainer(BOX, model=partial(Small, **critic), norm_values=True, reward_scale=50.0)
    rollout, net = ppo.collect(), ppo.policy.net
    obs = rollout.obs[:-1].flatten(0, 1)
    net.learn(rollout.ret.flatten())
    with torch.no_grad():
        before = ppo.policy(obs)[1]
        net.learn(3 * rollout.ret.flatten())
        after = ppo.policy(obs)[1]
    assert torch.allclose(before, after, rtol=1e-3, atol=1e-3) == kept
    torch.testing.assert_close(net.convert_recorded(before), after, rtol=1e-3, atol=1e-3)
