"""Options of the update, each against a formula of its own: losses, passes, values, optimizers."""

import functools
import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from envs_for_tests import Chance, Counting, interrupted
from gymnasium.spaces import Box, Discrete
from torch import nn
from torch.utils.checkpoint import checkpoint

from fastppo import PPO, learner, load, reference
from fastppo.errors import ConfigError, Error, ModelError, fix_text
from fastppo.learner import Learner, policy_loss, total_loss
from fastppo.machine import kernels
from fastppo.networks.popart import PopArt
from fastppo.update import epoch_transforms
from fastppo.update.batches import PolicyOutput, flatten_rollout
from fastppo.update.epoch_transforms import make_epoch_transforms
from fastppo.update.flat_parameters import trained_parameters

LEARNER = "torch"  # the definition; test_update.py holds the compiled one to it
BOX = partial(Chance, Box(-9, 9, (3,), np.float32), Box(-1, 1, (2,), np.float32))
SGD = torch.optim.SGD


def weights(ppo):
    return ppo.learner.flat.values.clone()


def updated(ppo, iterations=2):
    """The weights after some iterations, and the losses of the last."""
    for _ in range(iterations):
        stats = ppo.update(ppo.collect())
    return weights(ppo), stats


def watched(monkeypatch, also=lambda: None):
    """The list into which each minibatch goes from now on, with what `also` returns then."""
    seen, real = [], learner.total_loss

    def watching(fresh, batch, now):
        seen.append((batch, also()))
        return real(fresh, batch, now)

    monkeypatch.setattr(learner, "total_loss", watching)
    return seen


# Dual clip


@pytest.mark.parametrize("ratio", [0.1, 0.9, 1.1, 2.9, 3.1, 20.0])
@pytest.mark.parametrize("adv", [-2.0, 2.0])
def test_dual_clip_bounds_the_loss_of_a_negative_advantage_and_nothing_else(ratio, adv):
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    loss = policy_loss(log_ratio, torch.tensor([adv]), 0.2, 3.0)
    loss.backward()
    ours = min(ratio * adv, min(max(ratio, 0.8), 1.2) * adv)
    assert loss.item() == pytest.approx(-(max(ours, 3.0 * adv) if adv < 0 else ours), rel=1e-6)
    if adv < 0 and ratio > 3:
        assert log_ratio.grad.item() == 0


# The loss


def square(fresh, batch, now):
    """A loss of one's own."""
    return (fresh.logp - batch.logp).square().mean() + fresh.val.square().mean(), {
        "mine": fresh.val.square().mean(), "number": 2.5}


def test_a_function_for_the_loss_is_minimised_and_its_statistics_are_shown(trainer):
    ppo = trainer(BOX, loss=square, lr=0.02, epochs=20, learner="auto")
    assert ppo.config.learner == "torch"
    first, last = (updated(ppo, 1)[1], updated(ppo, 3)[1])
    assert first["losses/number"] == 2.5
    assert {"losses/mine", "losses/approx_kl", "losses/entropy", "losses/clipfrac",
            "losses/grad_norm", "losses/epochs"} <= set(first)
    assert "losses/policy_loss" not in first
    assert last["losses/mine"] < 0.5 * first["losses/mine"]


def test_a_loss_given_and_one_overridden_equal_the_built_in_one_where_they_are_it(trainer):
    class Same(Learner):
        def loss(self, fresh, batch, now):
            return total_loss(fresh, batch, now)

    settings = dict(num_minibatches=2, epochs=2, clip_range_vf=0.1)
    want = updated(trainer(BOX, **settings))
    for loss in (lambda *given: total_loss(*given), Same):
        got = updated(trainer(BOX, loss=loss, **settings))
        assert torch.equal(got[0], want[0]) and got[1] == want[1]


def test_a_subclass_may_say_what_the_policy_says(trainer):
    class Bold(Learner):
        def evaluate_actions(self, batch):
            fresh = super().evaluate_actions(batch)
            return PolicyOutput(fresh.logp, 2 * fresh.ent, fresh.val)

    settings = dict(entropy_coef=0.1, value_coef=0.5)
    plain, bold = (updated(trainer(BOX, loss=loss, **settings), 1)[1] for loss in ("ppo", Bold))
    assert bold["losses/entropy"] == pytest.approx(2 * plain["losses/entropy"])
    assert isinstance(trainer(BOX, loss=Bold).learner, Bold)


class Checkpointed(nn.Module):
    """A model whose first layer gets its gradients by a backward within the backward."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 4)

    def forward(self, obs):
        grad = torch.is_grad_enabled()
        out = self.last(checkpoint(self.first, obs.clone().requires_grad_(), use_reentrant=True)
                        if grad else self.first(obs))
        return out[:, :3], out[:, 3]


def test_gradients_beside_those_of_the_loss_are_not_lost(trainer):
    weight = torch.ones((), requires_grad=True)
    ppo = trainer(partial(Chance, Box(-9, 9, (3,), np.float32), Discrete(3)), model=Checkpointed,
                  loss=lambda *given: (total_loss(*given)[0] + weight ** 2, {}))
    for drops in (False, True):
        before = ppo.policy.net.first.weight.detach().clone()
        if drops:
            ppo.policy.zero_grad()
        ppo.update(ppo.collect())
        assert weight.grad is not None and (ppo.policy.net.first.weight != before).any()


def test_statistics_of_a_loss_are_added_by_name_over_microbatches(trainer):
    calls = []

    def loss(*given):
        calls.append({"one": 1.0, "two": 2.0})
        names = sorted(calls[-1], reverse=len(calls) % 2 == 0)
        return total_loss(*given)[0], {name: calls[-1][name] for name in names}
    ppo = trainer(BOX, loss=loss, num_microbatches=2)
    stats = ppo.update(ppo.collect())
    assert (stats["losses/one"], stats["losses/two"]) == (1.0, 2.0)


def test_a_loss_is_given_samples_coefficients_and_what_is_fresh(trainer):
    shapes = []

    def loss(fresh, batch, now):
        assert fresh._fields == ("logp", "ent", "val")
        assert batch._fields == ("obs", "act", "logp", "val", "adv", "ret",
                                 "sequences")
        shapes.append({x.shape for x in (*fresh, *batch[2:6])})
        assert now.clip_range == 0.3 and now.entropy_coef == 0.05
        assert not any(x.requires_grad for x in batch[:6]) and fresh.val.requires_grad
        return total_loss(fresh, batch, now)

    updated(trainer(BOX, loss=loss, clip_range=0.3, entropy_coef=0.05), 1)
    assert shapes == [{(32,)}]


@pytest.mark.parametrize("made, said", [
    (lambda fresh, batch, now: fresh.val.mean(), "iteration over a 0-d tensor"),
    (lambda fresh, batch, now: (fresh.val, {}), "only for scalar outputs"),
    (lambda fresh, batch, now: (batch.val.mean(), {}), "does not require grad"),
    (lambda fresh, batch, now: (1.0, {}), "does not require grad"),
    (lambda fresh, batch, now: (fresh.val.mean(), None), "no attribute 'keys'"),
    (lambda fresh, batch, now: (fresh.val.mean(), {"mine": fresh.val}),
     "is invalid for input of size 32"),
    (lambda fresh, batch, now: (fresh.val.mean(), {"mine": "high"}), "str")])
def test_a_loss_that_is_none_is_its_own_error_and_nothing_has_changed(trainer, made, said):
    ppo = trainer(BOX, loss=made)
    before = weights(ppo)
    with pytest.raises((TypeError, RuntimeError, AttributeError), match=said):
        ppo.update(ppo.collect())
    assert torch.equal(weights(ppo), before)


def test_a_loss_that_goes_wrong_later_is_its_own_error_and_nothing_has_changed(trainer):
    count = itertools.count()
    ppo = trainer(BOX, num_minibatches=4, loss=lambda fresh, batch, now: (
        fresh.val.mean(), {}) if next(count) < 3 else fresh.val)
    before = weights(ppo)
    with pytest.raises(ValueError, match="too many values to unpack"):
        ppo.update(ppo.collect())
    assert torch.equal(weights(ppo), before)


@pytest.mark.parametrize("loss", [lambda fresh, batch: (fresh.val.mean(), {}),
                                  lambda fresh, batch, now, *, scale: (fresh.val.mean(), {})])
def test_a_loss_of_another_signature_is_pythons_error(trainer, loss):
    ppo = trainer(BOX, loss=loss)
    with pytest.raises(TypeError, match="positional argument|keyword-only argument"):
        ppo.update(ppo.collect())


class Short(Learner):
    def loss(self, fresh):
        return fresh.val.mean(), {}


class Alone(Learner):
    def __init__(self):
        pass


@pytest.mark.parametrize(("loss", "said"), [
    (Short, r"Short.loss\(\) takes 2 positional arguments"),
    (Alone, r"Alone.__init__\(\) takes 1 positional argument"),
    (type("Nosy", (Learner,), {"evaluate_actions": lambda self: None}), r"positional argument")])
def test_a_learner_of_other_signatures_is_pythons_error(trainer, loss, said):
    with pytest.raises(TypeError, match=said):
        ppo = trainer(BOX, loss=loss)
        ppo.update(ppo.collect())


@pytest.mark.parametrize("name", ["entropy", "approx_kl", "old_approx_kl", "clipfrac", "grad_norm",
                                  "epochs", "explained_variance"])
def test_a_statistic_has_a_name_of_its_own(trainer, name):
    ppo = trainer(BOX, loss=lambda fresh, batch, now: (fresh.val.mean(), {name: 1.0}))
    with pytest.raises(ValueError, match=f"'{name}' is the name of a statistic of every loss"):
        ppo.update(ppo.collect())


def test_statistics_are_averaged_by_name(trainer):
    count = itertools.count()

    def loss(fresh, batch, now):
        found = {"a": 1.0, "b": 2.0} if next(count) % 2 else {"b": 2.0, "a": 1.0}
        return fresh.val.mean(), found
    ppo = trainer(BOX, loss=loss, num_minibatches=4)
    stats = ppo.update(ppo.collect())
    assert (stats["losses/a"], stats["losses/b"]) == (1.0, 2.0)


class Column(Learner):
    def evaluate_actions(self, batch):
        fresh = super().evaluate_actions(batch)
        return fresh._replace(val=fresh.val[:, None])  # minus returns [b] it would be [b b]


def test_a_learner_whose_value_is_a_column_is_refused(trainer):
    ppo = trainer(BOX, loss=Column)
    before = weights(ppo)
    answer = r"float32 \[32\], float32 \[32, 1\]\) for 32 samples\n  fix: return PolicyOutput"
    with pytest.raises(ModelError, match=answer):
        ppo.update(ppo.collect())
    assert torch.equal(weights(ppo), before)


def test_a_class_that_is_no_learner_is_refused():
    with pytest.raises(ConfigError, match="no subclass of fastppo.learner.Learner"):
        PPO(BOX, num_workers=0, loss=dict)


@pytest.mark.parametrize("settings", [
    {"loss": square}, {"optimizer": SGD}, {"critic_lr": 1e-3}, {"norm_values": True},
    {"grad_clipping": "network"}], ids=lambda settings: next(iter(settings)))
@pytest.mark.skipif(not kernels.COMPILED, reason="the extension is not built here")
def test_what_torch_alone_serves_is_left_to_it_unless_the_kernel_is_asked_for(trainer, settings):
    name = next(iter(settings))
    assert trainer(BOX, **settings, learner="auto").config.learner == "torch"
    with pytest.raises(ConfigError, match=f"does not support (your own )?{name}") as caught:
        trainer(BOX, **settings, learner="kernel")
    assert fix_text(caught.value.fix, shell=True) == "--learner=torch"


# The optimizer


@pytest.mark.parametrize("optimizer", [SGD, functools.partial(SGD, momentum=0.0)])
def test_a_torch_optimizer_steps_on_the_clipped_gradient_at_our_rate(trainer, optimizer):
    ppo = trainer(BOX, optimizer=optimizer, lr="linear:0.5:0.1", max_grad_norm=0.01,
                  total_steps=64)
    for lr in (0.5, 0.3):
        before, stats = weights(ppo), ppo.update(ppo.collect())
        grad = ppo.learner.flat.grad
        assert stats["losses/grad_norm"] > 0.01 and grad.norm() == pytest.approx(0.01, rel=1e-3)
        torch.testing.assert_close(weights(ppo), before - lr * grad)
        assert [group["lr"] for group in ppo.learner.optimizer.optimizer.param_groups] \
            == pytest.approx([lr])


def test_torchs_adam_and_ours_are_the_same(trainer):
    settings = dict(epochs=3, num_minibatches=2, lr=1e-2)
    ours, theirs = (updated(trainer(BOX, optimizer=optimizer, **settings), 3)[0]
                    for optimizer in ("adam", partial(torch.optim.Adam, eps=1e-5)))
    torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize("optimizer", [partial(SGD, momentum=0.9), torch.optim.AdamW])
def test_an_interrupted_update_takes_an_optimizers_memory_back(trainer, monkeypatch, optimizer):
    settings = dict(optimizer=optimizer, lr=0.02, epochs=2, num_minibatches=2)
    whole, ppo = (trainer(BOX, **settings) for _ in range(2))
    updated(ppo, 1)
    rollout, before = ppo.collect(), weights(ppo)
    monkeypatch.setattr(learner, "total_loss", interrupted(learner.total_loss, 3))
    with pytest.raises(KeyboardInterrupt):
        ppo.update(rollout)
    assert torch.equal(weights(ppo), before)
    ppo.update(rollout)
    assert torch.equal(weights(ppo), updated(whole, 2)[0])


@pytest.mark.parametrize("bad, said", [
    (lambda params: None, "no attribute 'param_groups'"),
    (lambda: None, "takes 0 positional arguments but 1 was given"),
    (partial(SGD, momentum=-1), "Invalid momentum"),
    (partial(SGD, lr=10.0), "has lr=10.0, but the setting lr.*\n  fix: take lr out of"),
    (lambda params: SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0),
     "the optimizer has none of the policy's parameters\n  fix: make it from")])
def test_what_makes_no_optimizer_is_refused_before_the_first_step(bad, said):
    with pytest.raises((ValueError, TypeError, AttributeError), match=said):
        PPO(BOX, num_workers=0, optimizer=bad)


@pytest.mark.parametrize("settings, said", [
    ({"optimizer": torch.optim.LBFGS}, "closure"),
    ({"optimizer": torch.optim.SparseAdam}, "dense gradients"),
    ({"optimizer": lambda groups: SGD([x for one in groups for x in one["params"]], lr=1.0),
      "critic_lr": 1e-3}, r"zip\(\) argument 2 is longer than argument 1")])
def test_an_optimizer_that_cannot_step_is_its_own_error_and_nothing_has_changed(
        trainer, settings, said):
    ppo = trainer(BOX, **settings)
    before = weights(ppo)
    with pytest.raises((ValueError, TypeError, RuntimeError), match=said):
        ppo.update(ppo.collect())
    assert torch.equal(weights(ppo), before)


@pytest.mark.parametrize("setting", [{"critic_lr": 1e-3}, {"grad_clipping": "network"}])
def test_what_tells_actor_and_critic_apart_needs_a_critic_with_a_name(setting):
    class Whole(torch.nn.Module):
        def __init__(self, obs_space, act_space):
            super().__init__()
            self.all = torch.nn.Linear(4, 3)

        def forward(self, obs):
            out = self.all(obs)
            return out[:, :2], out[:, 2]
    with pytest.raises(ConfigError, match=f"{[*setting][0]} is .*[\\s\\S]*critic, value or vf"):
        PPO("CartPole-v1", num_workers=0, model=Whole, **setting)


@pytest.mark.parametrize("setting, needed", [
    ({"adam_eps": 1e-8, "optimizer": SGD}, 'optimizer="adam"'),
    ({"obs_limit": 5.0, "norm_obs": False}, "norm_obs=True")])
def test_a_setting_that_would_do_nothing_is_refused(setting, needed):
    with pytest.raises(ConfigError, match=f"does nothing without {needed}"):
        PPO("CartPole-v1", num_workers=0, **setting)


def test_an_optimizer_may_group_the_parameters_itself(trainer):
    def made(params):
        return SGD([{"params": params[:2]}, {"params": params[2:]}], lr=9.0)

    settings = dict(lr=0.1, epochs=2)
    grouped, whole = (updated(trainer(BOX, optimizer=one, **settings)) for one in (made, SGD))
    assert torch.equal(grouped[0], whole[0])


@pytest.mark.parametrize("optimizer", [
    partial(SGD, momentum=0.9, weight_decay=0.5), partial(torch.optim.Adam, eps=0.0),
    partial(torch.optim.Adagrad, weight_decay=0.5)])
def test_the_step_that_tries_an_optimizer_leaves_no_trace(trainer, optimizer):
    ppo, untried = trainer(BOX, optimizer=optimizer), trainer(BOX)
    assert torch.equal(weights(ppo), weights(untried)) and weights(ppo).isfinite().all()
    fresh = optimizer([torch.nn.Parameter(p.detach().clone())
                       for p in trained_parameters(ppo.policy)])
    found, wanted = ppo.learner.optimizer.state, fresh.state_dict()
    assert repr(found) == repr(wanted) and ppo.learner.optimizer.rates == (0.0, 0.0)


# Clipping


@pytest.mark.parametrize("limit", [0.01, 1e3])
@pytest.mark.parametrize("shared", [False, True])
def test_actor_and_critic_are_clipped_each_on_its_own(trainer, limit, shared):
    free, one = (trainer(BOX, max_grad_norm=x, shared_critic=shared, grad_clipping="network")
                 for x in (1e9, limit))
    norms = [updated(ppo, 1)[1]["losses/grad_norm"] for ppo in (free, one)]
    assert norms[0] == norms[1] == pytest.approx(free.learner.flat.grad.norm().item(), rel=1e-6)
    grads = [{name: x.grad for name, x in ppo.policy.named_parameters()} for ppo in (free, one)]
    for critic in (False, True):
        names = [name for name in grads[0] if ("critic" in name) is critic]
        whole = torch.cat([grads[0][name].flatten() for name in names])
        got = torch.cat([grads[1][name].flatten() for name in names])
        torch.testing.assert_close(got, whole * min(1.0, limit / whole.norm().item()), rtol=1e-4,
                                   atol=1e-9)
        assert names and whole.norm() > 0.01


# Microbatches


@pytest.mark.parametrize("count", [2, 3, 7, 100])
@pytest.mark.parametrize("act_space", [Discrete(3), Box(-1, 1, (2,), np.float32)])
def test_microbatches_change_nothing(trainer, count, act_space):
    make = partial(Chance, Box(-9, 9, (3,), np.float32), act_space)
    settings = dict(epochs=2, num_minibatches=3, clip_range_vf=0.1, entropy_coef=0.01)
    one, many = (updated(trainer(make, num_microbatches=n, **settings)) for n in (1, count))
    torch.testing.assert_close(many[0], one[0], rtol=0, atol=1e-5)
    assert many[1] == pytest.approx(one[1], rel=1e-4, abs=1e-6)


def test_microbatches_are_what_goes_through_the_network(trainer, monkeypatch):
    seen = watched(monkeypatch)
    updated(trainer(BOX, num_microbatches=3), 1)
    assert [len(batch.adv) for batch, _ in seen] == [10, 11, 11]
    adv = torch.cat([batch.adv for batch, _ in seen])
    assert adv.mean().abs() < 1e-6 and adv.std() == pytest.approx(1, abs=1e-4)  # of the minibatch


def test_there_are_no_more_parts_than_rows(trainer):
    ppo = trainer(BOX)
    batch = flatten_rollout(ppo.collect(), torch.device("cpu"))
    parts = list(batch.split(100))
    assert [len(part.adv) for part in parts] == [1] * 32
    assert torch.equal(torch.cat([part.ret for part in parts]), batch.ret)


# Advantages anew


@torch.no_grad()
def values(policy, obs):
    """What the policy says now of the observations of a rollout of 20 steps, 4 environments."""
    return policy(obs)[1].reshape(21, 4).numpy().copy()


@pytest.mark.parametrize("norm", ["none", "rollout"])
def test_advantages_are_recomputed_before_every_epoch_but_the_first(trainer, monkeypatch, norm):
    ppo = trainer(partial(Chance, ends=0.15), recompute_advantages=True, epochs=3, gamma=0.9,
                  lr=0.05, norm_advantages=norm, num_steps=20)
    rollout = ppo.collect()
    seen = watched(monkeypatch, partial(values, ppo.policy, rollout.obs.flatten(0, 1)))
    ppo.update(rollout)
    arrays = {name: x.numpy() for name, x in rollout._asdict().items()}
    ended = arrays["term"] | arrays["trunc"]
    assert ended[:-1].any() and arrays["trunc"].any() and ended[-1].sum() < 4
    for epoch, (batch, val) in enumerate(seen):
        nxt = np.where(ended, arrays["nxt"], val[1:])
        adv = reference.gae(arrays["rew"], val[:-1], nxt, arrays["term"], arrays["trunc"], True,
                            0.9, .95)
        ret, order = adv + val[:-1], reference.permutation(1, 0, epoch, 80)
        if norm == "rollout":
            adv = (adv - adv.mean()) / adv.std(ddof=1)
        np.testing.assert_allclose(batch.adv, adv.flatten()[order], atol=1e-5)
        np.testing.assert_allclose(batch.ret, ret.flatten()[order], atol=1e-5)
        np.testing.assert_array_equal(batch.val, arrays["val"].flatten()[order])
    assert np.abs(seen[2][1] - seen[0][1]).max() > 1e-2


def test_the_value_after_a_truncation_is_moved_as_the_first_returns_move_all_values(
        trainer, monkeypatch):
    settings = dict(recompute_advantages=True, norm_values=True, epochs=2, gamma=0.9, num_steps=20,
                    lr=1e-12, norm_advantages="none", norm_rewards=False, reward_scale=100.0)
    ppo = trainer(partial(Chance, ends=0.15), **settings)
    net = ppo.policy.net
    for iteration in range(2):
        rollout = ppo.collect()
        obs = rollout.obs.flatten(0, 1)
        seen = watched(monkeypatch, partial(values, ppo.policy, obs))
        ppo.update(rollout)
        assert rollout.trunc.any() and abs(net.shift.item()) > 1.0
        rew, val, nxt, term, trunc = (getattr(rollout, name).numpy() for name in
                                      ("rew", "val", "nxt", "term", "trunc"))
        if iteration == 0:
            val, nxt = (x * net.spread.item() + net.shift.item() for x in (val, nxt))
        now = seen[1][1]  # the network has not learnt: its values are the recorded ones, moved
        np.testing.assert_allclose(now[:-1], val, rtol=1e-4, atol=1e-3)
        nxt = np.where(term | trunc, nxt, now[1:])
        adv = reference.gae(rew, now[:-1], nxt, term, trunc, True, 0.9, .95)
        order = reference.permutation(1, iteration, 1, 80)
        np.testing.assert_allclose(seen[1][0].adv, adv.flatten()[order], rtol=1e-4, atol=1e-3)


def test_the_rollout_keeps_what_it_recorded_and_invalid_rows_stay_out(trainer):
    ppo = trainer(BOX, recompute_advantages=True, epochs=3)
    rollout = ppo.collect()
    rollout.valid[3, 1] = False
    for name in ("logp", "val", "adv", "ret"):
        getattr(rollout, name)[3, 1] = torch.nan
    rollout.trunc[2, 1] = True
    rollout.nxt[2, 1] = 0.5
    before = [x.clone() for x in rollout]
    assert all(map(math.isfinite, ppo.update(rollout).values()))
    for ours, theirs in zip(before, rollout):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


# RPO


def test_robust_noise_is_uniform_within_alpha_and_a_samples_own_each_epoch(trainer, monkeypatch):
    ppo, seen = trainer(BOX, rpo_alpha=0.5, epochs=2, num_minibatches=2, num_envs=100,
                        num_steps=20), watched(monkeypatch)
    rollout = ppo.collect()
    ppo.update(rollout)
    act, noises = rollout.act.flatten(0, 1).numpy(), []
    for epoch in range(2):
        order = reference.permutation(1, 0, epoch, 2000)
        got = np.concatenate([batch.act.numpy() for batch, _ in seen[2 * epoch:2 * epoch + 2]])
        noises.append(np.empty_like(got))
        noises[-1][order] = act[order] - got
    for noise in noises:
        assert -0.5 - 1e-5 <= noise.min() < -0.49 and 0.49 < noise.max() <= 0.5 + 1e-5
        assert abs(noise.mean()) < 0.03 and noise.std() == pytest.approx(0.5 / 3**0.5, rel=0.03)
    assert abs(np.corrcoef(*(noise.flatten() for noise in noises))[0, 1]) < 0.05
    want = reference.uniform(1, kernels.Purpose.RPO, 0, 1, (3, 2)) - 0.5
    np.testing.assert_allclose(noises[1][:3], want, atol=1e-6)


def test_moving_the_action_is_moving_the_mean(trainer):
    ppo = trainer(BOX, rpo_alpha=0.5, log_std_init=-0.4)
    rollout = ppo.collect()
    batch = flatten_rollout(rollout, torch.device("cpu"))
    moved = make_epoch_transforms(ppo.config, ppo.policy)[0](rollout, batch, 0, 0)
    away = batch.act - moved.act
    with torch.no_grad():
        mean = ppo.policy(batch.obs)[0]
        law = torch.distributions.Normal(mean + away, math.exp(-0.4))
        got = ppo.learner.evaluate_actions(moved).logp
    torch.testing.assert_close(got, law.log_prob(batch.act).sum(1), rtol=1e-5, atol=1e-5)
    assert away.abs().max() > 0.4


@pytest.mark.parametrize("settings", [
    {"rpo_alpha": 0.3}, {"recompute_advantages": True}, {"num_microbatches": 2},
    {"dual_clip": 1.01}, {"obs_limit": 0.5}], ids=lambda settings: next(iter(settings)))
@pytest.mark.skipif(not kernels.COMPILED, reason="the extension is not built here")
def test_the_compiled_learner_serves_it_and_agrees_with_torch(trainer, settings):
    common = dict(epochs=4, num_minibatches=2, lr=0.02, acting="local", clip_range=0.05)
    torchs, compiled = (updated(trainer(BOX, **settings, **common, learner=learner))
                        for learner in ("torch", "kernel"))
    torch.testing.assert_close(compiled[0], torchs[0], rtol=0, atol=3e-5)
    without = updated(trainer(BOX, **common, learner="kernel"))[0]
    differs = (without - compiled[0]).abs().max() > 1e-4
    assert differs == ("num_microbatches" not in settings)


def test_discrete_actions_have_no_mean_to_move():
    with pytest.raises(ConfigError, match="rpo_alpha .* for Box actions, and .*Discr") as caught:
        PPO(Chance, num_workers=0, rpo_alpha=0.5)
    assert fix_text(caught.value.fix, shell=True) == "leave --rpo_alpha out"


@pytest.mark.parametrize("settings, said", [
    *(({"distribution": name}, f"distribution={name} has no use for it")
      for name in ("state_gaussian", "squashed", "beta")),
    ({"sde": True}, "sde explores with a gaussian of its own")])
def test_what_has_no_mean_to_move_is_named(settings, said):
    with pytest.raises(ConfigError, match=f"rpo_alpha .*{said}\n  fix: leave rpo_alpha out"):
        PPO(BOX, num_workers=0, rpo_alpha=0.5, **settings)


def test_by_default_the_samples_are_what_the_rollout_recorded(trainer):
    ppo = trainer(BOX)
    assert make_epoch_transforms(ppo.config, ppo.policy) == []
    assert make_epoch_transforms(ppo.config.replace(norm_advantages="rollout"), ppo.policy) \
        == [epoch_transforms._normalise_advantages]


# Values in units of their own


def test_the_moments_are_those_of_all_returns_and_no_value_changes_with_them(trainer):
    ppo = trainer(BOX, norm_values=True, reward_scale=50.0)
    net, rets = ppo.policy.net, []
    assert isinstance(net, PopArt)
    for _ in range(3):
        rollout = ppo.collect()
        obs, rets = rollout.obs[:-1].flatten(0, 1), [*rets, rollout.ret.flatten().numpy().copy()]
        with torch.no_grad():
            before = ppo.policy(obs)[1].clone()
            net.learn(rollout.ret.flatten())
            after = ppo.policy(obs)[1]
            if len(rets) == 1:  # what an untrained critic says is not worth keeping
                before = before * net.spread + net.shift
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-3)
        everything = np.concatenate(rets).astype(float)
        assert net.shift.item() == pytest.approx(everything.mean(), rel=1e-4)
        assert net.spread.item() == pytest.approx(everything.std(), rel=1e-4)
    assert net.spread.item() > 10


class Inner(torch.nn.Module):
    """A network whose layer `critic` is not where its value comes from."""

    def __init__(self, obs_space, act_space, ends=False):
        super().__init__()
        self.critic = torch.nn.Linear(3, 1 if ends else 4)
        self.actor, self.last, self.ends = torch.nn.Linear(3, 2), torch.nn.Linear(4, 1), ends

    def forward(self, obs):
        val = self.critic(obs) if self.ends else self.last(self.critic(obs).tanh())
        return self.actor(obs), val[:, 0]


@pytest.mark.parametrize("ends", [True, False])
def test_only_a_layer_that_gives_the_value_moves_against_the_moments(trainer, ends):
    ppo = trainer(BOX, model=partial(Inner, ends=ends), norm_values=True, reward_scale=50.0)
    before = ppo.policy.net.net.critic.weight.detach().clone()
    for _ in range(2):
        ppo.policy.net.learn(ppo.collect().ret.flatten())
    assert before.equal(ppo.policy.net.net.critic.weight) != ends


def test_the_critic_is_trained_on_normalised_targets(trainer, monkeypatch):
    ppo, seen = trainer(BOX, norm_values=True, reward_scale=50.0), watched(monkeypatch)
    real = learner.total_loss
    fresh = []
    monkeypatch.setattr(learner, "total_loss", lambda *given: (
        fresh.append(given[0].val.detach()), real(*given))[1])
    rollout = ppo.collect()
    ppo.update(rollout)
    order = reference.permutation(1, 0, 0, 32)
    ret, val = (x.flatten().numpy()[order].astype(float) for x in (rollout.ret, rollout.val))
    mean, std = ret.mean(), ret.std()
    np.testing.assert_allclose(seen[0][0].ret, (ret - mean) / std, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(seen[0][0].val, val, rtol=1e-3, atol=1e-4)  # as it came from the net
    np.testing.assert_allclose(fresh[0], val, rtol=1e-3, atol=1e-3)
    rollout = ppo.collect()
    val = rollout.val.flatten().numpy()[reference.permutation(1, 1, 0, 32)].astype(float)
    ppo.update(rollout)
    mean, std = ppo.policy.net.shift.item(), ppo.policy.net.spread.item()
    np.testing.assert_allclose(seen[1][0].val, (val - mean) / std, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(fresh[1], (val - mean) / std, rtol=1e-3, atol=1e-3)


def test_large_returns_are_learnt_where_they_are_normalised(trainer):
    def error(**settings):
        ppo = trainer(Counting, reward_scale=1e3, lr=1e-3, epochs=10, anneal_lr=False, gamma=0.9,
                      **settings)
        updated(ppo, 20)
        rollout = ppo.collect()
        return ((rollout.val - rollout.ret).square().mean().sqrt() / rollout.ret.mean()).item()

    assert error(norm_values=True) < 0.5 < 1 < error()


def test_normalised_values_are_taken_back_saved_and_loaded(trainer, tmp_path, monkeypatch):
    ppo, real = trainer(BOX, norm_values=True, epochs=2), learner.total_loss
    updated(ppo, 1)
    rollout, net = ppo.collect(), ppo.policy.net

    def kept():
        return [x.clone() for x in (*net.state, net.shift, net.spread, ppo.learner.flat.values)]

    def broken(*args):
        raise KeyboardInterrupt

    before = kept()
    monkeypatch.setattr(learner, "total_loss", broken)
    with pytest.raises(KeyboardInterrupt):
        ppo.update(rollout)
    assert all(map(torch.equal, kept(), before))
    monkeypatch.setattr(learner, "total_loss", real)
    ppo.update(rollout)
    ppo.save(tmp_path / "model.safetensors")
    obs = rollout.obs[0].numpy()
    policy = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(policy.value(obs), ppo.policy.value(obs))
    assert policy.net.spread == net.spread != 1


# Observations


@pytest.mark.parametrize("learner", ["torch", "kernel"])
@pytest.mark.parametrize("limit", [0.5, 10.0])
def test_normalised_observations_stay_within_the_limit_whoever_acts(trainer, learner, limit):
    acting = {"kernel": "local", "torch": "central"}[learner]
    ppo = trainer(BOX, obs_limit=limit, learner=learner, acting=acting)
    rollout = ppo.collect()
    inside = ppo.policy.observer(rollout.obs[:-1].flatten(0, 1)).abs().max().item()
    assert inside == 0.5 if limit == 0.5 else 0.5 < inside < 10
    with torch.no_grad():
        want = ppo.policy(rollout.obs[:-1].flatten(0, 1))[1]
    torch.testing.assert_close(rollout.val.flatten(), want, rtol=1e-5, atol=1e-5)
    assert abs(ppo.update(rollout)["losses/approx_kl"]) < 1e-6


def test_a_loss_that_is_not_finite_is_an_error_with_own_functions_too(trainer):
    ppo = trainer(BOX, optimizer=SGD, loss=lambda fresh, batch, now: (
        fresh.val.mean() * (1.0 if len(batch.adv) == 2 else math.inf), {}))
    before = weights(ppo)
    with pytest.raises(Error, match="in an update the loss is not finite; the weights are as they"):
        ppo.update(ppo.collect())
    assert torch.equal(weights(ppo), before)
