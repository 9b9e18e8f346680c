"""Values that change over training: schedules, the two learning rates, and what the KL decides."""

import json
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from envs_for_tests import Chance, Constant, interrupted
from gymnasium.spaces import Box, Discrete
from safetensors import safe_open

from fastppo import PPO, Config, load
from fastppo.cli import command_line
from fastppo.errors import ConfigError, fix_text
from fastppo.update.flat_parameters import is_critic
from fastppo.update.schedules import FASTEST, SLOWEST, KLControl, coefficients_at, scheduled_value

FOUR = SimpleNamespace(ends=range(5))  # samples
NAMES = ["lr", "critic_lr", "clip_range", "clip_range_vf", "entropy_coef"]
SCHEDULES = {  # the value at first, half way and at last
    "constant:0.2": (0.2, 0.2, 0.2), "linear:0.2": (0.2, 0.1, 0.0), "cosine:0.2": (0.2, 0.1, 0.0),
    "linear:0.2:0.1": (0.2, 0.15, 0.1), "cosine:0.1:0.2": (0.1, 0.15, 0.2),
    "own": (0.2, 0.05, 0.0),
}


def own(remaining):
    """A schedule of one's own."""
    return 0.2 * remaining**2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", SCHEDULES)
def test_a_schedule_begins_and_ends_at_its_values_exactly(name, text):
    config = Config(**{name: own if text == "own" else text})
    first, half, last = (getattr(coefficients_at(config, x), name) for x in (1.0, 0.5, 0.0))
    assert (first, last) == SCHEDULES[text][::2]
    assert half == pytest.approx(SCHEDULES[text][1])


def test_a_cosine_falls_slowly_at_both_ends():
    values = [scheduled_value("lr", "cosine:1", 1 - done / 10) for done in range(11)]
    assert values == pytest.approx([0.5 * (1 + math.cos(math.pi * i / 10)) for i in range(11)])


@pytest.mark.parametrize("name", NAMES)
def test_a_number_is_a_constant_but_for_annealed_learning_rates(name):
    for anneal in (True, False):
        config = Config(**{name: 0.2}, anneal_lr=anneal)
        falls = anneal and name.endswith("lr")
        assert getattr(coefficients_at(config, 0.25), name) == (0.05 if falls else 0.2)


def test_a_warm_up_raises_both_rates_from_a_hundredth_and_then_has_no_effect():
    config = Config(lr=1.0, critic_lr="constant:2.0", lr_warmup=1_000, anneal_lr=False)
    for begin, share in ((0, 0.01), (500, 0.505), (1_000, 1.0), (5_000, 1.0)):
        now = coefficients_at(config, 1 - begin / 10_000, begin)
        assert (now.lr, now.critic_lr) == pytest.approx((share, 2 * share))
    falling = coefficients_at(config.replace(anneal_lr=True), 0.5, 500)
    assert falling.lr == pytest.approx(0.505 * 0.5)
    assert coefficients_at(Config(lr=1.0), 1.0, 0).lr == 1.0  # without one


def test_a_run_warms_up_by_its_own_steps(trainer):
    rates = []
    trainer(Chance, lr=1e-3, lr_warmup=64, anneal_lr=False, num_envs=2, num_steps=16).learn(
        128, lambda ppo, stats: rates.append(stats["charts/learning_rate"]))
    assert rates == pytest.approx([1e-5, 5.05e-4, 1e-3, 1e-3])


def test_learning_on_within_the_warm_up_does_not_warn_of_a_rate_that_rises(trainer, caplog):
    ppo = trainer(Chance, lr_warmup=640, anneal_lr=False, num_envs=2, num_steps=16)
    for total in (32, 64, 96):
        ppo.learn(total)
    assert caplog.text == ""


def test_an_explicit_schedule_wins_over_anneal_lr():
    assert coefficients_at(Config(lr="constant:0.3", anneal_lr=True), 0.1).lr == 0.3
    assert coefficients_at(Config(lr="linear:0.3", anneal_lr=False), 0.5).lr == 0.15
    assert coefficients_at(Config(lr=lambda remaining: 0.3), 0.1).lr == 0.3


@pytest.mark.parametrize("learner", ["kernel", "torch"])
def test_a_schedule_is_read_at_the_start_of_every_iteration(trainer, learner, monkeypatch):
    seen = []

    def clip(remaining):
        seen.append(remaining)
        return 0.5 * remaining

    ppo = trainer(Constant, lr="cosine:0.3:0.1", clip_range=clip, learner=learner,
                  entropy_coef="linear:0.2", total_steps=96)
    real, given, rates = ppo.learner.update, [], []
    monkeypatch.setattr(ppo.learner, "update", lambda rollout, now, iteration: (
        given.append(now), real(rollout, now, iteration))[1])
    ppo.learn(callbacks=[lambda _, stats: rates.append(stats["charts/learning_rate"])])
    lefts = [1.0, 2 / 3, 1 / 3]
    assert [now.clip_range for now in given] == pytest.approx([0.5 * x for x in lefts])
    assert [now.entropy_coef for now in given] == pytest.approx([0.2 * x for x in lefts])
    assert [now.lr for now in given] == rates == pytest.approx([0.3, 0.25, 0.15])
    assert seen[0] == 1.0 and set(seen) == {now.clip_range / 0.5 for now in given}


def test_the_compiled_learner_follows_schedules_as_torch_does(trainer):
    def weights(learner, **settings):
        ppo = trainer(Chance, learner=learner, epochs=3, num_minibatches=2, total_steps=96,
                      seed=3, acting="local", **settings)
        return ppo.learn().learner.flat.values.clone()

    schedules = {"lr": "cosine:0.02:0.01", "clip_range": "linear:0.2:0.01",
                 "clip_range_vf": "linear:0.2", "entropy_coef": "linear:0.1:0.2"}
    torchs, compiled = (weights(learner, **schedules) for learner in ("torch", "kernel"))
    torch.testing.assert_close(compiled, torchs, rtol=0, atol=2e-5)
    for name in schedules:
        first = scheduled_value(name, schedules[name], 1.0)
        still = weights("kernel", **schedules | {name: f"constant:{first}"})
        assert (still - compiled).abs().max() > 1e-4, name


@pytest.mark.parametrize("bad, shown", [
    (math.nan, "nan"), (-1.0, "-1.0"), (math.inf, "inf"), (None, "NoneType"), ("fast", "'fast'")])
def test_a_function_that_returns_no_value_is_an_error_before_the_first_step(bad, shown):
    with pytest.raises(ConfigError, match=f"given as clip_range, .* progress 1, failed: .*{shown}"):
        PPO(Constant, num_workers=0, clip_range=lambda remaining: bad)


@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_fails_is_refused_before_the_first_step(name):
    with pytest.raises(ConfigError, match=f"given as {name}, .* progress 1, failed: TypeError"):
        PPO(Constant, num_workers=0, **{name: lambda: 1})


def test_schedules_are_typed_as_texts():
    request = command_line.read(["--lr=linear:2e-3", "--clip_range=0.1",
                                 "--entropy_coef=cosine:.1:0", "--clip_range_vf=none",
                                 "--critic_lr=constant:1e-3"])
    assert request.given == {"lr": "linear:2e-3", "clip_range": 0.1, "clip_range_vf": None,
                             "entropy_coef": "cosine:.1:0", "critic_lr": "constant:1e-3"}
    for flag in ("--lr=linear", "--lr=linear:x", "--clip_range=quick", "--entropy_coef=sine:1"):
        with pytest.raises(ConfigError, match="or a schedule"):
            command_line.read([flag])


def test_schedules_and_functions_are_stored_as_text_and_loaded_again(trainer, tmp_path):
    ppo = trainer(Chance, lr="linear:0.1", clip_range=own, optimizer=torch.optim.SGD,
                  loss=lambda fresh, batch, now: (fresh.val.mean(), {}))
    ppo.update(ppo.collect())
    ppo.save(tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = json.loads(file.metadata()["config"])
    assert stored["lr"] == "linear:0.1" and stored["clip_range"] == repr(own)
    assert "SGD" in stored["optimizer"] and "lambda" in stored["loss"]
    policy, obs = load(tmp_path / "model.safetensors"), ppo.rollout.obs[0].numpy()
    assert (policy.value(obs) == ppo.policy.value(obs)).all()


@pytest.mark.parametrize("name, whose", [
    ("net.critic_body.0.weight", True), ("net.critic.bias", True), ("net.value_head.weight", True),
    ("net.vf.weight", True), ("critic.weight", True), ("net.actor.weight", False),
    ("head.log_std", False), ("net.body.weight", False), ("net.my_value.weight", False)])
def test_parameters_are_the_critics_by_the_beginning_of_their_name(name, whose):
    assert is_critic(name) is whose


@pytest.mark.parametrize("optimizer", ["adam", torch.optim.SGD])
@pytest.mark.parametrize("shared", [False, True])
def test_actor_and_critic_have_learning_rates_of_their_own(trainer, optimizer, shared):
    def moved(**settings):
        ppo = trainer(Chance, max_grad_norm=1e9, shared_critic=shared, optimizer=optimizer,
                      learner="torch", **settings)
        before = {name: x.detach().clone() for name, x in ppo.policy.named_parameters()}
        ppo.update(ppo.collect())
        return {name: x - before[name] for name, x in ppo.policy.named_parameters()}

    actor, critic, both = moved(lr=0.01), moved(lr=0.003), moved(lr=0.01, critic_lr=0.003)
    assert {is_critic(name) for name in both} == {False, True}
    assert ("net.critic_body.0.weight" in both) is not shared
    for name, change in both.items():
        assert torch.equal(change, (critic if is_critic(name) else actor)[name])
        assert not torch.equal(actor[name], critic[name])


def test_the_critics_rate_is_annealed_and_scheduled_like_the_actors():
    now = coefficients_at(Config(lr=0.1, critic_lr=0.2), 0.5)
    assert (now.lr, now.critic_lr) == (0.05, 0.1)
    now = coefficients_at(Config(lr=0.1, critic_lr="linear:0.4:0.2"), 0.5)
    assert (now.lr, now.critic_lr) == pytest.approx((0.05, 0.3))
    assert coefficients_at(Config(lr="linear:0.1"), 0.5).critic_lr == 0.05


@pytest.mark.parametrize("lr, kl, wanted", [
    (1e-3, 0.0201, 1e-3 / 1.5), (1e-3, 0.0199, 1e-3), (1e-3, 0.0051, 1e-3),
    (1e-3, 0.0049, 1.5e-3), (1e-3, 0.0, 1e-3), (8e-3, 0.001, FASTEST), (1.2e-6, 1.0, SLOWEST),
    (1e-3, math.nan, 1e-3)])
def test_the_learning_rate_follows_the_kl_within_bounds(lr, kl, wanted):
    config = Config(lr=lr, adaptive_kl=0.01)
    now, pace = coefficients_at(config, 0.3), KLControl(config)
    assert pace.rates(now) == (lr, lr)
    assert not pace.adapt(torch.tensor(kl), now, 0, FOUR)
    assert pace.rates(now) == pytest.approx((wanted, wanted))
    pace.restore(None)
    assert pace.rates(now) == (lr, lr)


def test_a_critic_with_a_rate_of_its_own_keeps_it_under_an_adaptive_one():
    config = Config(lr=1e-3, critic_lr=4e-3, adaptive_kl=0.01, anneal_lr=False)
    now, pace = coefficients_at(config, 0.5), KLControl(config)
    pace.adapt(1.0, now, 1, FOUR)
    assert pace.rates(now) == (1e-3 / 1.5, 4e-3)


def test_a_critics_rate_falls_where_the_actors_is_adapted():
    now = coefficients_at(Config(lr=1e-3, critic_lr=4e-3, adaptive_kl=0.01), 0.5)
    assert (now.lr, now.critic_lr) == (1e-3, 2e-3)


@pytest.mark.parametrize("learner", ["kernel", "torch"])
def test_an_adaptive_rate_moves_after_every_epoch_and_survives_interrupts(
    trainer, monkeypatch, learner
):
    def made():
        return trainer(Chance, lr=1e-3, adaptive_kl=1e-9, epochs=3, num_minibatches=2,
                       learner=learner, acting="local")

    whole = made()
    for i in range(2):
        stats = whole.update(whole.collect())
        assert whole.lr == pytest.approx(1e-3 / 1.5 ** (3 * i + 3)) and stats["losses/epochs"] == 3
        assert whole.learner.optimizer.rates[0] == pytest.approx(1e-3 / 1.5 ** (3 * i + 2))
    ppo = made()
    ppo.update(ppo.collect())
    before, rollout = ppo.lr, ppo.collect()
    monkeypatch.setattr(KLControl, "adapt", interrupted(KLControl.adapt, -2))
    with pytest.raises(KeyboardInterrupt):
        ppo.update(rollout)
    assert ppo.lr == before
    ppo.update(rollout)
    assert ppo.lr == whole.lr and torch.equal(ppo.learner.flat.values, whole.learner.flat.values)


@pytest.mark.parametrize("space", [Discrete(3), Box(-1, 1, (17,), np.float32)], ids=str)
def test_rounding_errors_of_a_kl_of_zero_move_no_learning_rate(trainer, space):
    env = partial(Chance, Box(-9, 9, (3,), np.float32), space)
    ppo = trainer(env, learner="torch", lr=1e-4, adaptive_kl=0.01, num_envs=16, num_steps=64)
    kls = [ppo.update(ppo.collect())["losses/approx_kl"] for _ in range(6)]
    assert max(kls) < 1e-7 and ppo.lr == 1e-4  # measured before the only step of each update


def test_one_minibatch_is_counted_where_the_settings_name_more(trainer):
    ppo = trainer(Chance, rnn="gru", rnn_size=4, lr=1e-4, adaptive_kl=0.01, num_envs=1,
                  num_steps=64, num_minibatches=4, epochs=1)
    for _ in range(6):
        ppo.update(ppo.collect())
    assert ppo.lr == 1e-4


@pytest.mark.parametrize(("lr", "kl"), [(0.03, 1.0), (1e-7, 0.001)])
def test_a_rate_out_of_the_limits_is_restored_as_it_was_adapted(lr, kl):
    config = Config(lr=lr, adaptive_kl=0.01)
    pace, again = KLControl(config), KLControl(config)
    pace.adapt(torch.tensor(kl), coefficients_at(config, 1.0), 1, FOUR)
    again.restore(pace.state)
    assert again.state == pace.state != lr


def test_a_small_kl_that_is_no_rounding_error_raises_a_low_learning_rate(trainer):
    ppo = trainer(Chance, learner="torch", lr=1e-6, adaptive_kl=0.01, num_envs=8, num_steps=32,
                  epochs=2, num_minibatches=4)
    kl = ppo.update(ppo.collect())["losses/approx_kl"]
    assert kl < 2e-7 and ppo.lr > 1e-6


def test_a_schedule_and_an_adaptive_rate_contradict_each_other():
    with pytest.raises(ConfigError, match="lr is the schedule linear:1e-3") as caught:
        PPO(Constant, num_workers=0, lr="linear:1e-3", adaptive_kl=0.01)
    assert fix_text(caught.value.fix, shell=True) == "--lr=0.0003"


def test_a_loop_that_goes_on_after_the_last_step_is_told_once_that_it_learns_nothing(
        trainer, caplog):
    ppo = trainer(Chance, total_steps=32)
    ppo.update(ppo.collect())
    assert caplog.text == ""
    for _ in range(2):
        ppo.update(ppo.collect())
    assert caplog.text.count("the learning rate has fallen to 0, for all total_steps") == 1


def test_a_later_end_that_raises_the_learning_rate_again_is_said(trainer, caplog):
    ppo = trainer(Chance, total_steps=128)
    ppo.learn(128)
    assert "rises" not in caplog.text
    ppo.learn(512)
    assert caplog.text.count("from 7.5e-05 to 0.000225") == 1
    assert "anneal_lr=False" in caplog.text


@pytest.mark.parametrize(("settings", "total", "told"), [
    ({}, 96, True), ({}, 128, False), ({}, 256, False), ({}, 32, False),
    (dict(anneal_lr=False), 96, False)])
def test_a_resumed_run_whose_schedules_end_earlier_is_told(
        trainer, caplog, tmp_path, settings, total, told):
    path = tmp_path / "checkpoint-000000000064.safetensors"
    trainer(Chance, total_steps=128, **settings).learn(64).checkpoint(path)
    with PPO.resume(path, Chance, total_steps=total, num_workers=0):
        assert ("now end at step 96, and no more at 128" in caplog.text) == told


def test_a_constant_learning_rate_never_rises(trainer, caplog):
    ppo = trainer(Chance, total_steps=128, anneal_lr=False)
    ppo.learn(128)
    ppo.learn(512)
    assert "rises" not in caplog.text
