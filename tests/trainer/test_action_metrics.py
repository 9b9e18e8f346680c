"""Metrics of actions: shares, means and standard deviations, histograms, and bits untouched."""

from functools import partial

import numpy as np
import pytest
import torch
from asked_of_runs import weights
from envs_for_tests import Chance
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from fastppo.trainer import metrics as actions
from fastppo.trainer.metrics import action_histograms, action_metrics

TWO = Box(-1, 1, (2,), np.float32)
MIXED = Dict(a=Box(-1, 1, (2,), np.float32), b=Discrete(3), c=MultiBinary(2))


def learnt(trainer, space, iterations=1, **settings):
    """A trainer on actions of a space after some iterations, and the metrics of its actions."""
    seen, ppo = [], trainer(partial(Chance, act_space=space), **settings)
    ppo.learn(32 * iterations, callbacks=lambda ppo, stats: seen.append(
        {name: value for name, value in stats.items() if name.startswith("actions/")}))
    return ppo, seen[-1]


# choices

def test_the_shares_of_all_actions_are_those_of_the_rollout(trainer):
    ppo, found = learnt(trainer, Discrete(3, start=-1))
    counts = np.bincount(ppo.rollout.act.reshape(-1).numpy(), minlength=3)
    assert found == {f"actions/share_{i}": n / 32 for i, n in enumerate(counts)}
    assert sum(found.values()) == pytest.approx(1) and len(found) == 3


def test_every_part_of_several_choices_has_its_own_shares(trainer):
    ppo, found = learnt(trainer, MultiDiscrete([2, 3]))
    assert [*found] == [f"actions/share_{name}" for name in ("0_0", "0_1", "1_0", "1_1", "1_2")]
    second = (ppo.rollout.act[..., 1] == 2).double().mean().item()
    assert found["actions/share_1_2"] == second
    assert found["actions/share_0_0"] + found["actions/share_0_1"] == pytest.approx(1)


@pytest.mark.parametrize("space, last", [(Discrete(21), "19"), (MultiDiscrete([15] * 3), "1_4"),
                                         (MultiBinary(30), "9_1")])
def test_of_many_choices_the_first_twenty_have_a_share(trainer, space, last):
    _, found = learnt(trainer, space)
    assert len(found) == 20 and [*found][-1] == f"actions/share_{last}"


def test_rows_that_are_no_steps_do_not_count(trainer):
    ppo, _ = learnt(trainer, Discrete(3))
    ppo.rollout.act[2:], ppo.rollout.valid[2:] = 99, False
    assert sum(action_metrics(ppo).values()) == pytest.approx(1)
    ppo.rollout.valid[:] = False
    assert action_metrics(ppo) == {}
    assert action_histograms(ppo.policy.act_space, ppo.rollout) == {}


# numbers

def test_numbers_have_mean_and_std_of_what_the_policy_chose_and_of_the_policy(trainer):
    ppo, found = learnt(trainer, TWO, log_std_init=1.0)
    act = ppo.rollout.act.reshape(-1, 2).double().numpy()
    assert np.abs(act).max() > 1  # before it is clipped
    assert [*found] == [f"actions/{name}" for name in (
        "mean_0", "mean_1", "std_0", "std_1", "policy_std", "policy_std_0", "policy_std_1")]
    assert [found[f"actions/mean_{c}"] for c in (0, 1)] == pytest.approx(act.mean(0))
    assert [found[f"actions/std_{c}"] for c in (0, 1)] == pytest.approx(act.std(0))
    stds = ppo.policy.head.log_std.exp().tolist()
    assert [found[f"actions/policy_std_{c}"] for c in (0, 1)] == pytest.approx(stds)
    assert found["actions/policy_std"] == pytest.approx(np.mean(stds)) != np.exp(1.0)


def test_of_many_numbers_the_first_twenty_have_values_and_all_are_in_the_mean(trainer):
    ppo, found = learnt(trainer, Box(-1, 1, (5, 5), np.float32))
    assert len(found) == 61 and "actions/std_19" in found and "actions/std_20" not in found
    assert found["actions/policy_std"] == pytest.approx(
        ppo.policy.head.log_std.exp().mean().item())


@pytest.mark.parametrize("settings", [
    dict(distribution="state_gaussian", log_std_init=-1.0), dict(sde=True),
    dict(distribution="state_gaussian", rnn="gru", rnn_size=4), dict(distribution="beta")])
def test_a_std_that_depends_on_the_state_is_a_mean_over_the_rollout(trainer, settings):
    ppo, found = learnt(trainer, TWO, **settings)
    policy, rollout = ppo.policy, ppo.rollout
    with torch.no_grad():
        obs, state = (x[:8].reshape(32, -1) for x in (rollout.obs, rollout.state))
        params = policy.step(policy.observer.tensors(obs.numpy()), state)[0]
        if settings.get("distribution") == "beta":
            stds = torch.distributions.Beta(*policy.head._shapes(params)).stddev
        else:
            stds = policy.head.normal(params)[1]
    assert [found[f"actions/policy_std_{c}"] for c in (0, 1)] == pytest.approx(
        stds.mean(0).tolist(), rel=1e-5)
    assert stds.std(0).max() > 0


def test_a_mixture_of_choices_and_numbers_has_the_metrics_of_both(trainer):
    ppo, found = learnt(trainer, MIXED)
    assert {"actions/mean_0", "actions/share_2_2", "actions/share_4_1", "actions/policy_std_1"
            } <= {*found}
    assert len(found) == 2 + 2 + 3 + 3 + 4
    assert [found[f"actions/policy_std_{c}"] for c in (0, 1)] == pytest.approx(
        ppo.policy.head.parts[0].log_std.exp().tolist())


class Own(torch.nn.Module):
    """Returns a distribution of its own, and draws random numbers for it."""

    law = torch.distributions.Normal

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.all = torch.nn.Linear(1, 5)

    def forward(self, obs):
        mean, raw, value = (self.all(obs) + 0.01 * torch.randn(5)).split([2, 2, 1], -1)
        return self.law(mean, raw.exp() + 0.1), value[:, 0]


class Squashed(Own):
    """A law whose standard deviation torch does not know."""

    def law(self, mean, std):
        return torch.distributions.TransformedDistribution(
            torch.distributions.Normal(mean, std), torch.distributions.TanhTransform())


def test_a_distribution_of_the_users_has_its_own_std_if_it_knows_it(trainer):
    found = learnt(trainer, TWO, model=Own)[1]
    assert found["actions/policy_std"] > 0.1 and "actions/policy_std_1" in found
    found = learnt(trainer, TWO, model=Squashed)[1]
    assert "actions/std_1" in found and "actions/policy_std" not in found


@pytest.mark.parametrize("settings", [dict(model=Own), dict(distribution="state_gaussian"), {}])
def test_the_metrics_change_no_bit(trainer, settings):
    torch.manual_seed(0)
    with_them, _ = learnt(trainer, TWO, iterations=3, total_steps=96, **settings)
    torch.manual_seed(0)
    alone = trainer(partial(Chance, act_space=TWO), total_steps=96, **settings)
    while alone.step < 96:  # a loop of one's own has no metrics of actions
        alone.update(alone.collect())
    assert torch.equal(weights(with_them), weights(alone))


# histograms

def test_a_histogram_counts_every_choice_in_a_bin_of_its_own(trainer):
    ppo, _ = learnt(trainer, Tuple([Discrete(3), TWO]))
    found = action_histograms(ppo.policy.act_space, ppo.rollout)
    assert [*found] == [f"actions/histogram_{c}" for c in range(3)]
    counts, edges = found["actions/histogram_0"]
    assert edges.tolist() == [-0.5, 0.5, 1.5, 2.5]
    act = ppo.rollout.act.reshape(-1, 3).numpy()
    assert counts.tolist() == np.bincount(act[:, 0].astype(int), minlength=3).tolist()
    counts, edges = found["actions/histogram_2"]
    assert (counts.sum(), len(counts)) == (32, 40)
    assert (edges[0], edges[-1]) == pytest.approx((act[:, 2].min(), act[:, 2].max()))


def test_of_a_long_rollout_whole_steps_are_left_out(trainer, monkeypatch):
    monkeypatch.setattr(actions, "HISTOGRAM_ROWS", 12)
    ppo, _ = learnt(trainer, Discrete(4))
    ppo.rollout.act[:] = torch.arange(4)  # each environment has its own
    (counts, _), = action_histograms(ppo.policy.act_space, ppo.rollout).values()
    assert counts.tolist() == [3, 3, 3, 3]  # steps 0, 3 and 6 of 8
