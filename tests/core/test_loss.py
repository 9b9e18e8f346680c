"""One update: loss, minibatches, clipping and Adam, against float64 and against its rules."""

import contextlib
import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from envs_for_tests import Chance, Counting, interrupted
from gymnasium.spaces import Box, Discrete

from fastppo import Config, Error, learner, reference
from fastppo.errors import NonFiniteError
from fastppo.learner import policy_loss, total_loss, value_loss
from fastppo.spaces.leaves import action_storage
from fastppo.trainer.policy_and_learner import build_policy
from fastppo.update.batches import Batch, PolicyOutput, normalise_advantages
from fastppo.update.flat_parameters import FlatParameters
from fastppo.update.schedules import coefficients_at
from fastppo.update.statistics import LOSSES, ratio_stats

LEARNER = "torch"  # the definition; test_update.py holds the compiled one to it
FIELDS = Batch._fields[:6]  # those of a network without memory
SPACES = {"Discrete": Discrete(3), "Box": Box(-1, 1, (2,), np.float32)}


class Twin:
    """A learner in float64, written from the formulas: its own forward, loss, clipping and Adam."""

    def __init__(self, ppo):
        self.ppo, self.config, self.steps = ppo, ppo.config, 0
        self.weights = {name: value.detach().double() for name, value in
                        ppo.policy.named_parameters()}
        self.first, self.second = ({name: torch.zeros_like(value) for name, value in
                                    self.weights.items()} for _ in range(2))

    def update(self, rollout, iteration, lr):
        """All epochs; returns the statistics as means over minibatches."""
        rows = Batch(*(getattr(rollout, name)[:len(rollout.raw)].flatten(0, 1)
                       for name in FIELDS))
        rows = Batch(*(x if x.dtype == torch.int64 else x.double() for x in rows[:6]))
        if self.config.norm_advantages == "rollout":
            rows = rows._replace(adv=(rows.adv - rows.adv.mean()) / rows.adv.std())
        count, n, stats = self.config.num_minibatches, len(rows.adv), []
        for epoch in range(self.config.epochs):
            order = reference.permutation(self.config.seed, iteration, epoch, n)
            for i in range(count):
                part = order[n * i // count:n * (i + 1) // count]
                stats.append(self.minibatch(Batch(*(x[part] for x in rows[:6])), lr))
        return dict(zip(LOSSES, np.mean(stats, axis=0)))

    def minibatch(self, batch, lr):
        """One step of Adam on the clipped gradient."""
        weights = {name: value.requires_grad_() for name, value in self.weights.items()}
        loss, stats = self.loss(weights, batch)
        grads = torch.autograd.grad(loss, list(weights.values()))
        norm = torch.cat([grad.flatten() for grad in grads]).norm()
        shrink = min(1.0, self.config.max_grad_norm / norm.item())
        self.steps += 1
        for (name, value), grad in zip(weights.items(), grads):
            self.first[name] = 0.9 * self.first[name] + 0.1 * shrink * grad
            self.second[name] = 0.999 * self.second[name] + 0.001 * (shrink * grad) ** 2
            first = self.first[name] / (1 - 0.9**self.steps)
            second = self.second[name] / (1 - 0.999**self.steps)
            self.weights[name] = value.detach() - lr * first / (second.sqrt() + 1e-5)
        return [*(x.item() for x in stats), norm.item()]

    def loss(self, weights, batch):
        """SEMANTICS 3, term by term."""
        config, adv = self.config, batch.adv
        if config.norm_advantages == "minibatch":
            adv = (adv - adv.mean()) / adv.std()
        law, val = self.forward(weights, batch.obs)
        logp, ent = law.log_prob(batch.act), law.entropy()
        if logp.dim() == 2:
            logp, ent = logp.sum(1), ent.sum(1)
        ratio, eps = (logp - batch.logp).exp(), config.clip_range
        gain = -torch.min(ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv).mean()
        error = (val - batch.ret) ** 2
        if config.clip_range_vf:
            step = (val - batch.val).clamp(-config.clip_range_vf, config.clip_range_vf)
            error = torch.max(error, (batch.val + step - batch.ret) ** 2)
        error = 0.5 * error.mean()
        stats = (gain, error, ent.mean(), (ratio - 1 - ratio.log()).mean(), -ratio.log().mean(),
                 ((ratio - 1).abs() > eps).double().mean())
        return gain - config.entropy_coef * ent.mean() + config.value_coef * error, stats

    def forward(self, weights, obs):
        """The distribution of actions [b] or [b a], and the values [b]."""
        policy = self.ppo.policy
        if self.config.norm_obs:
            std = (policy.observer.m2 / policy.observer.count + 1e-8).sqrt()
            obs = ((obs - policy.observer.mean) / std).clamp(-10, 10)
        critic = "actor_body" if self.config.shared_critic else "critic_body"
        hidden, valued = (torch.tanh(self.linear(weights, f"{body}.0", obs))
                          for body in ("actor_body", critic))
        params, val = self.linear(weights, "actor", hidden), self.linear(weights, "critic", valued)
        if "head.log_std" not in weights:
            return torch.distributions.Categorical(logits=params), val[:, 0]
        return torch.distributions.Normal(params, weights["head.log_std"].exp()), val[:, 0]

    def linear(self, weights, name, x):
        """A layer of the network."""
        return x @ weights[f"net.{name}.weight"].T + weights[f"net.{name}.bias"]


def near(ppo, twin):
    """The largest difference between the trainer's weights and the twin's."""
    return max((value.double() - twin.weights[name]).abs().max().item()
               for name, value in ppo.policy.named_parameters())


MODES = list(itertools.product(SPACES, ("minibatch", "rollout", "none"), (None, 0.05), (0.02, 1e6)))


@pytest.mark.parametrize(("space", "norm_advantages", "clip_range_vf", "max_grad_norm"), MODES)
def test_whole_updates_equal_an_independent_float64_computation(
    trainer, space, norm_advantages, clip_range_vf, max_grad_norm
):
    make = partial(Chance, Box(-9, 9, (3,), np.float32), SPACES[space])
    ppo = trainer(make, epochs=2, num_minibatches=3, num_steps=10, entropy_coef=0.02, lr=5e-3,
                  value_coef=0.7, clip_range=0.02, clip_range_vf=clip_range_vf, gamma=0.9,
                  max_grad_norm=max_grad_norm, norm_advantages=norm_advantages,
                  norm_obs=norm_advantages != "none", shared_critic=norm_advantages == "rollout")
    twin = Twin(ppo)
    for iteration in range(2):
        rollout, lr = ppo.collect(), ppo.lr
        wanted = twin.update(rollout, iteration, lr)
        got = ppo.update(rollout)
        assert near(ppo, twin) < 1e-5
        assert 0.05 < wanted["clipfrac"] < 0.95
        assert (wanted["grad_norm"] > max_grad_norm) == (max_grad_norm < 1)
        for name in LOSSES:
            assert got[f"losses/{name}"] == pytest.approx(wanted[name], rel=1e-3, abs=1e-5), name


def test_a_float64_computation_without_one_term_is_told_apart(trainer):
    """The tolerance of the comparison is no larger than what it is to find."""
    make = partial(Chance, Box(-9, 9, (3,), np.float32), SPACES["Box"])
    for left_out in ({"entropy_coef": 0.0}, {"value_coef": 0.0}, {"clip_range": 0.3},
                     {"max_grad_norm": 1.0}, {"norm_advantages": "none"}):
        ppo = trainer(make, epochs=2, num_minibatches=2, entropy_coef=0.02, clip_range=0.02,
                      max_grad_norm=0.02, lr=3e-3)
        twin = Twin(ppo)
        twin.config = twin.config.replace(**left_out)
        rollout = ppo.collect()
        twin.update(rollout, 0, ppo.lr)
        ppo.update(rollout)
        assert near(ppo, twin) > 2e-5, left_out


@pytest.mark.parametrize("adv", [-1.0, 1.0])
@pytest.mark.parametrize("ratio", [0.5, 0.79, 0.81, 1.0, 1.19, 1.21, 2.0])
def test_the_gradient_is_zero_exactly_where_clipping_forbids_to_go_further(adv, ratio):
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    policy_loss(log_ratio, torch.tensor([adv]), 0.2).backward()
    too_far = ratio > 1.2 if adv > 0 else ratio < 0.8
    assert log_ratio.grad.item() == pytest.approx(0.0 if too_far else -adv * ratio)


def test_where_only_rounding_makes_both_losses_equal_the_gradient_is_that_of_the_free_one():
    log_ratio = torch.linspace(0.1823214, 0.1823219, 9, requires_grad=True)  # around log 1.2
    ratio, limit = log_ratio.detach().exp(), torch.tensor(1.2)
    adv = torch.linspace(0.5, 0.9, 999)[:, None]  # some of these products are equal
    policy_loss(log_ratio.expand(999, 9), adv.expand(999, 9), 0.2).backward()
    free = adv * ratio <= adv * limit
    assert (free & (ratio > limit)).any()
    wanted = -(adv * ratio * free).double().sum(0) / free.numel()
    np.testing.assert_allclose(log_ratio.grad, wanted, rtol=1e-5)


def test_the_policy_loss_is_a_mean_over_samples():
    log_ratio, adv = torch.log(torch.tensor([1.1, 0.5, 3.0, 0.5])), torch.tensor([1.0, 2, 3, -1])
    wanted = -(1.1 * 1 + 0.5 * 2 + 1.2 * 3 - 0.8) / 4
    assert policy_loss(log_ratio, adv, 0.2).item() == pytest.approx(wanted)


def samples(**fields):
    """A Batch of three samples with these fields."""
    given = {name: torch.zeros(3) for name in Batch._fields}
    return Batch(**given | {name: torch.tensor(value) for name, value in fields.items()})


def test_the_value_loss_takes_the_larger_error_where_values_are_clipped():
    val = torch.tensor([1.0, 1.0, 0.1], requires_grad=True)
    batch = samples(ret=[2.0, 0.0, 0.0], val=[0.0, 0.0, 0.0])
    assert value_loss(val, batch, None).item() == pytest.approx(0.5 * (1 + 1 + 0.01) / 3)
    clipped = value_loss(val, batch, 0.2)
    assert clipped.item() == pytest.approx(0.5 * (1.8**2 + 1 + 0.01) / 3)
    clipped.backward()
    np.testing.assert_allclose(val.grad, [0, 1 / 3, 0.1 / 3])  # the first has gone far enough


@pytest.mark.parametrize("constant", [0.0, 0.1, -3e7, 1 / 3])
@pytest.mark.parametrize("count", [2, 7, 1000])
def test_constant_advantages_become_zero(constant, count):
    assert (normalise_advantages(torch.full((count,), constant)) == 0).all()


def test_advantages_get_mean_0_and_std_1_of_ddof_1():
    adv = torch.from_numpy(np.random.default_rng(0).normal(5, 3, 50).astype(np.float32))
    got, exact = normalise_advantages(adv).numpy(), adv.double().numpy()
    np.testing.assert_allclose(got, (exact - exact.mean()) / exact.std(ddof=1), atol=1e-5)


def test_a_single_advantage_stays_as_it_is():
    assert normalise_advantages(torch.tensor([3.0])).item() == 3


def test_minibatches_of_one_row_train(trainer):
    ppo = trainer(Chance, num_minibatches=32)
    before, stats = ppo.learner.flat.values.clone(), ppo.update(ppo.collect())
    assert all(map(math.isfinite, stats.values()))
    assert not torch.equal(before, ppo.learner.flat.values)


@pytest.mark.parametrize("mode", ["minibatch", "rollout"])
def test_normalising_advantages_leaves_the_rollouts_own_alone(trainer, mode):
    ppo = trainer(Chance, num_minibatches=2, norm_advantages=mode)
    rollout = ppo.collect()
    adv, ret = rollout.adv.clone(), rollout.ret.clone()
    ppo.update(rollout)
    assert torch.equal(adv, rollout.adv) and torch.equal(ret, rollout.ret)


def watched(monkeypatch):
    """The list into which total_loss puts each minibatch from now on."""
    seen, real = [], learner.total_loss

    def watching(fresh, batch, now):
        seen.append(batch)
        return real(fresh, batch, now)

    monkeypatch.setattr(learner, "total_loss", watching)
    return seen


def test_every_sample_is_used_once_an_epoch_also_where_sizes_do_not_divide(trainer, monkeypatch):
    ppo = trainer(Chance, num_envs=3, num_steps=7, epochs=3, num_minibatches=4)
    seen = watched(monkeypatch)
    rollout = ppo.collect()
    ppo.update(rollout)
    everything = sorted(rollout.logp.flatten().tolist())
    assert [len(batch.logp) for batch in seen] == [5, 5, 5, 6] * 3
    orders = [torch.cat([batch.logp for batch in seen[i:i + 4]]).tolist() for i in (0, 4, 8)]
    assert len(set(everything)) > 15
    assert all(sorted(order) == everything for order in orders)
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_the_fields_of_a_sample_stay_together(trainer, monkeypatch):
    ppo, seen = trainer(Chance, num_minibatches=4), watched(monkeypatch)
    rollout = ppo.collect()
    ppo.update(rollout)
    names = [name for name in FIELDS if name != "adv"]  # which is normalised
    rows = {tuple(getattr(rollout, name)[t, e].sum().item() for name in names)
            for t in range(8) for e in range(4)}
    got = {tuple(getattr(batch, name)[i].sum().item() for name in names)
           for batch in seen for i in range(len(batch.obs))}
    assert got == rows


def test_invalid_rows_are_never_trained_on(trainer, monkeypatch):
    ppo, seen = trainer(Chance, num_minibatches=2, epochs=2), watched(monkeypatch)
    rollout = ppo.collect()
    rollout.valid[2:4, 1] = False
    for name in ("logp", "val", "adv", "ret"):
        getattr(rollout, name)[2:4, 1] = torch.nan
    stats = ppo.update(rollout)
    assert all(map(math.isfinite, stats.values()))
    assert [len(batch.obs) for batch in seen] == [15, 15] * 2
    assert ppo.policy.observer.count.item() == 8 * 4 + 30


@pytest.mark.parametrize("learner", ["kernel", "torch"])
def test_resets_that_leave_fewer_rows_than_minibatches_make_fewer_minibatches(trainer, learner):
    ppo = trainer(Chance, num_minibatches=20, epochs=1, num_workers=0, learner=learner)
    rollout = ppo.collect()
    rollout.valid[:, 1:] = False
    before = ppo.learner.optimizer.state
    stats = ppo.update(rollout)
    assert all(map(math.isfinite, stats.values()))
    assert ppo.learner.optimizer.state[0] - before[0] == 8


@pytest.mark.parametrize("learner", ["kernel", "torch"])
def test_a_rollout_of_resets_alone_changes_nothing(trainer, learner):
    ppo = trainer(Chance, num_workers=0, learner=learner)
    rollout = ppo.collect()
    rollout.valid[:] = False
    before, count = ppo.learner.flat.values.clone(), ppo.policy.observer.count.item()
    stats = ppo.update(rollout)
    assert stats["losses/epochs"] == 0 and math.isnan(stats["losses/policy_loss"])
    assert ppo.learner.flat.values.equal(before) and ppo.policy.observer.count.item() == count
    assert ppo.learner.last_iteration == 0


@pytest.mark.parametrize("change, still", [
    (torch.nn.Module.zero_grad, False),
    (lambda policy: policy.net.actor.requires_grad_(False), True)])
def test_a_callback_may_drop_gradients_and_freeze_parameters(trainer, change, still):
    ppo = trainer(Chance, learner="torch")
    weight, before = ppo.policy.net.actor.weight, ppo.policy.net.actor.weight.clone()
    change(ppo.policy)
    ppo.update(ppo.collect())
    assert torch.equal(weight, before) == still


def now(**settings):
    """The coefficients of a Config at its first iteration."""
    return coefficients_at(Config(**settings), 1.0)


def test_entropy_counts_with_a_minus_and_the_value_error_with_a_plus():
    fresh = PolicyOutput(*map(torch.tensor, ([0.0] * 3, [1.0, 2.0, 6.0], [1.0, 0.0, 2.0])))
    losses = {(ent, val): total_loss(fresh, samples(), now(entropy_coef=ent, value_coef=val))[0]
              for ent in (0.0, 0.5) for val in (0.0, 2.0)}
    assert losses[0.0, 0.0] == 0
    assert losses[0.5, 0.0].item() == pytest.approx(-0.5 * 3)
    assert losses[0.0, 2.0].item() == pytest.approx(2 * 0.5 * 5 / 3)
    assert losses[0.5, 2.0] == losses[0.5, 0.0] + losses[0.0, 2.0]


def test_the_two_kl_estimates_and_the_clip_fraction_are_their_formulas():
    log_ratio = np.log([0.5, 1.1, 1.3])
    fresh = PolicyOutput(*map(torch.tensor, ([1.0, 2.0, 3.0], [1.0] * 3, [0.0] * 3)))
    batch = samples(logp=([1.0, 2.0, 3.0] - log_ratio).astype(np.float32).tolist())
    stats = ratio_stats(fresh, batch, now(clip_range=0.2))
    assert stats["approx_kl"] == pytest.approx(np.mean(np.exp(log_ratio) - 1 - log_ratio), rel=1e-5)
    assert stats["old_approx_kl"] == pytest.approx(-log_ratio.mean(), rel=1e-5)
    assert stats["clipfrac"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("space", SPACES)
def test_an_update_for_entropy_alone_raises_it(trainer, space):
    make = partial(Chance, act_space=SPACES[space])
    ppo = trainer(make, entropy_coef=1.0, value_coef=0.0, lr=0.05)
    with torch.no_grad():
        ppo.policy.net.actor.bias[0] = 2.0
        ppo.policy.net.actor.weight[0] = 1.0
    before, after = (ppo.update(ppo.collect()._replace(adv=torch.zeros(8, 4)))["losses/entropy"]
                     for _ in range(2))
    assert after > before + 0.01


def test_an_update_for_the_value_alone_lowers_its_error(trainer):
    ppo = trainer(Chance, value_coef=1.0, epochs=10, lr=0.01)
    rollout = ppo.collect()._replace(adv=torch.zeros(8, 4))
    first, second = (ppo.update(rollout)["losses/value_loss"] for _ in range(2))
    assert second < 0.9 * first


def weights_after(trainer, rollouts=1, **settings):
    """(all weights, statistics) after some iterations."""
    ppo = trainer(Chance, num_minibatches=2, lr=0.03, **settings)
    for _ in range(rollouts):
        stats = ppo.update(ppo.collect())
    return ppo.learner.flat.values.clone(), stats


def test_target_kl_skips_the_epochs_after_the_one_that_went_too_far(trainer):
    one, stats = weights_after(trainer, epochs=1)
    assert stats["losses/epochs"] == 1
    all_four, free = weights_after(trainer, epochs=4)
    assert free["losses/epochs"] == 4
    kl = stats["losses/approx_kl"]
    early, stopped = weights_after(trainer, epochs=4, target_kl=kl / 1.51)
    assert stopped == stats and torch.equal(early, one)
    late, went_on = weights_after(trainer, epochs=4, target_kl=1e3)
    assert went_on == free and torch.equal(late, all_four)
    _, second = weights_after(trainer, epochs=4, target_kl=kl / 1.49)
    assert 1 < second["losses/epochs"] <= 4


def test_adam_has_the_epsilon_of_the_config_and_its_default_is_1e_5(trainer):
    assert Config().adam_eps == 1e-5
    assert trainer(Chance).learner.optimizer.eps == 1e-5
    assert trainer(Chance, adam_eps=0.1).learner.optimizer.eps == 0.1


def test_parameters_and_gradients_are_views_of_one_flat_vector_each(trainer):
    ppo = trainer(partial(Chance, act_space=SPACES["Box"]))
    flat, at = ppo.learner.flat, 0
    ppo.update(ppo.collect())
    for _, param in ppo.policy.named_parameters():
        part = slice(at, at + param.numel())
        assert param.data_ptr() == flat.values[part].data_ptr()
        assert param.grad.data_ptr() == flat.grad[part].data_ptr()
        assert torch.equal(param.grad.flatten(), flat.grad[part])
        at += param.numel()
    assert at == len(flat.values) == len(ppo.arena["params"])
    assert flat.values.data_ptr() == ppo.arena["params"].ctypes.data
    assert 0 < flat.grad.norm() <= ppo.config.max_grad_norm * 1.00001


def everything(ppo):
    """Weights, Adam's state, moments and their snapshots, as bytes."""
    observer = ppo.policy.observer
    tensors = [ppo.learner.flat.values, *ppo.learner.optimizer.state, *observer.state,
               observer.shift, observer.scale]
    return [np.asarray(tensor).tobytes() for tensor in tensors]


@pytest.mark.parametrize("iterations", [0, 1])
@pytest.mark.parametrize("learner", ["torch", "kernel"])
@pytest.mark.parametrize(("field", "bad", "stage"), [
    ("ret", np.nan, "the values, or the returns, are"), ("ret", 1e30, "the values, or the"),
    ("adv", np.inf, "the loss is"), ("logp", -np.inf, "the log-probabilities of actions are")])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_an_error(
    trainer, field, bad, stage, iterations, learner
):
    ppo, other = (trainer(Chance, epochs=2, num_minibatches=4, learner=learner) for _ in range(2))
    for _ in range(iterations):
        ppo.update(ppo.collect())
        other.update(other.collect())
    rollout = ppo.collect()
    before = everything(ppo)
    spoilt = getattr(rollout, field).clone()
    spoilt[5, 2] = bad
    with pytest.raises(NonFiniteError, match=f"in an update {stage}.* not finite; the weights are"):
        ppo.update(rollout._replace(**{field: spoilt}))
    assert everything(ppo) == before
    ppo.update(rollout)
    other.update(other.collect())
    assert everything(ppo) == everything(other)


def test_a_reward_that_is_not_finite_is_an_error_before_any_weight_moves(trainer):
    class Broken(Counting):
        def step(self, action):
            obs, _, *rest = super().step(action)
            return obs, math.nan, *rest

    ppo = trainer(Broken, norm_obs=False)
    before = everything(ppo)
    with pytest.raises(Error, match="reward is nan"):
        ppo.learn(64)
    assert everything(ppo) == before and ppo.step == 0


@pytest.mark.parametrize("total", [64, 96])
def test_an_interrupt_inside_an_update_changes_nothing_and_learn_goes_on(
    trainer, monkeypatch, total
):
    ppo, other = (trainer(Chance, epochs=3, num_minibatches=2, total_steps=96) for _ in range(2))
    ppo.learn(32)
    before = everything(ppo)
    monkeypatch.setattr(learner, "total_loss", interrupted(learner.total_loss, 4))
    with pytest.raises(KeyboardInterrupt):
        ppo.learn(total)
    assert everything(ppo) == before and ppo.step == 64
    ppo.learn(total)
    assert ppo.step == total
    other.learn(32).learn(total)
    assert everything(ppo) == everything(other)
    assert ppo.episodes.count == other.episodes.count


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("left", [None, "shift", "scale"])
def test_acting_and_updates_work_on_another_device_and_mix_it_with_no_other(space, left):
    # The device without memory refuses operands of the CPU's as a GPU would.
    policy = build_policy(Box(-9, 9, (4,), np.float32), space, Config(seed=1, model="mlp"))
    policy.to("meta")
    if left:
        setattr(policy.observer, left, torch.zeros(4))
    store = action_storage(space)
    act = torch.from_numpy(np.zeros((6, *store.shape), store.dtype)).to("meta")
    batch = Batch(torch.empty(6, 4, device="meta"), act, *torch.empty(4, 6, device="meta"))
    teacher = learner.Learner(policy, Config(clip_range_vf=0.2, entropy_coef=0.01),
                              FlatParameters(policy))
    with pytest.raises(RuntimeError, match="device") if left else contextlib.nullcontext():
        stats = teacher._minibatch(batch, coefficients_at(teacher.config, 1.0))
        noise = torch.empty(6, len(policy.head.noise), device="meta")
        act, logp = policy.head.sample(policy(batch.obs)[0], noise)
        assert {x.device.type
                for x in (*stats.values(), act, logp, teacher.flat.values)} == {"meta"}
