"""fastppo in somebody else's program: every public verb, and nothing of the host's is touched."""

import copy
import gc
import logging
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import warnings

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from fault_envs import Calm, children, guard, holds

import fastppo
from fastppo import PPO, Error, load
from fastppo.errors import ClosedError, ConfigError, ModelError
from fastppo.settings.values import return_text

TINY = dict(preset="none", seed=1, num_envs=4, num_steps=16, num_minibatches=2, epochs=1,
            num_workers=0)


def weights(ppo):
    return {name: value.numpy().tobytes() for name, value in ppo.policy.state_dict().items()}


def test_the_public_names_are_there_and_no_others():
    promised = {"PPO", "Config", "load", "make_vec", "Error", "Rollout", "Evaluation"}
    assert promised <= set(dir(fastppo))
    for name in fastppo.__all__:
        assert getattr(fastppo, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fastppo.nothing  # noqa: B018


# Training


def test_learn_returns_the_trainer_and_goes_to_an_absolute_number_of_steps():
    with PPO("CartPole-v1", total_steps=100, **TINY) as ppo:
        assert ppo.learn() is ppo and ppo.step == 128
        assert ppo.learn(129).step == 192


@pytest.mark.parametrize("settings, reason", [({"rnn": "gru"}, "rnn=gru"), ({}, None)])
def test_why_the_compiled_learner_is_not_used_is_logged_as_information(caplog, settings, reason):
    with caplog.at_level(logging.INFO, "fastppo"):
        PPO("CartPole-v1", **TINY, **settings).close()
    assert caplog.messages == [] if reason is None else [
        text for text in caplog.messages if text.endswith(f"does not support {reason}")]


def test_learning_what_is_learnt_already_says_how_to_learn_more(caplog):
    with PPO("CartPole-v1", **TINY) as ppo:
        ppo.learn(64).learn(64)
        assert caplog.text.count("ppo.learn(ppo.step + 64)") == 1
        assert ppo.learn(ppo.step + 64).step == 128


def test_a_trainer_is_shown_as_one_line():
    with PPO("CartPole-v1", total_steps=1000, **TINY) as ppo:
        assert repr(ppo.learn(64)) == "<PPO on CartPole-v1: step 64 of 1,000>"
    assert repr(ppo) == "<PPO on CartPole-v1: step 64 of 1,000, closed>"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps, cloudpickle.dumps])
def test_a_trainer_is_not_copied_but_its_policy_saved(copied):
    with PPO("CartPole-v1", **TINY) as ppo:
        with pytest.raises(Error, match="a trainer cannot be pickled or copied(.|\n)*ppo.save"):
            copied(ppo)
        assert copied(ppo.policy)


def test_a_loop_of_your_own_is_what_learn_does():
    with PPO("CartPole-v1", total_steps=200, **TINY) as ppo:
        wanted = weights(ppo.learn())
    with PPO("CartPole-v1", total_steps=200, **TINY) as ppo:
        while ppo.step < 200:
            rollout = ppo.collect()
            stats = ppo.update(rollout)
        assert weights(ppo) == wanted
    names = ("policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac", "explained_variance")
    assert all(type(stats[f"losses/{name}"]) is float for name in names)
    assert rollout.obs.shape == (17, 4, 4) and rollout.adv.shape == rollout.ret.shape == (16, 4)


def test_a_callback_gets_trainer_and_stats_and_ends_training_by_returning_false():
    seen = []

    def watch(trainer, stats):
        seen.append((trainer.step, sorted(stats)))
        return len(seen) < 3
    with PPO("CartPole-v1", **TINY) as ppo:
        ppo.learn(10_000, callbacks=[watch, lambda ppo, stats: None])
    assert [step for step, _ in seen] == [64, 128, 192] and ppo.step == 192
    assert {"charts/SPS", "charts/learning_rate", "losses/policy_loss"} <= set(seen[-1][1])


def test_every_callback_is_called_even_where_the_first_one_ends_training():
    seen = []
    with PPO("CartPole-v1", **TINY) as ppo:
        ppo.learn(10_000, callbacks=[lambda ppo, stats: False, lambda ppo, stats: seen.append(1)])
    assert seen == [1]


@pytest.mark.parametrize("env", [
    Calm, lambda: Calm(3), [Calm, lambda: Calm(4)], "fault_envs:Calm", "CartPole-v1",
    lambda: gym.make("CartPole-v1")],
    ids=["class", "lambda", "list", "module:callable", "id", "made"])
def test_an_environment_is_given_as_whatever_makes_it(env):
    settings = TINY | dict(num_envs=2)
    with PPO(env, **settings) as ppo:
        assert ppo.collect().raw.shape == (16, 2)
        assert ppo.config.num_envs == 2 and ppo.config.seed == 1


def test_a_network_of_your_own_is_trained_and_acts_centrally():
    class Net(torch.nn.Module):
        def __init__(self, obs_space, act_space):
            super().__init__()
            self.actor, self.critic = torch.nn.Linear(2, int(act_space.n)), torch.nn.Linear(2, 1)

        def forward(self, obs):
            return self.actor(obs), self.critic(obs)[:, 0]
    made = []
    for _ in range(2):
        torch.manual_seed(len(made))  # the host's generator has no say
        with PPO(Calm, model=Net, **TINY) as ppo:
            before = weights(ppo)
            made.append(weights(ppo.learn(64)))
            assert ppo.config.acting == "central" and made[-1] != before
    assert made[0] == made[1]


def test_a_model_that_does_not_fit_is_an_error_before_anything_starts():
    class Net(torch.nn.Module):
        def __init__(self, obs_space, act_space):
            super().__init__()
            self.layer = torch.nn.Linear(2, 5)

        def forward(self, obs):
            return self.layer(obs)
    before = children()
    with pytest.raises(ModelError, match=r"return \(action parameters \[2, 2\], value \[2\]\)"):
        PPO(Calm, model=Net, **(TINY | dict(num_workers=2)))
    assert children() == before


# Evaluating and predicting


@pytest.mark.parametrize("progress", ["lines", "none"])
def test_an_evaluation_says_how_far_it_is_where_progress_is_shown(capsys, monkeypatch, progress):
    monkeypatch.setattr("fastppo.machine.stderr.LINE_SECONDS", 0.0)
    with PPO("CartPole-v1", progress=progress, **TINY) as ppo:
        ppo.learn(64, callbacks=lambda ppo, stats: bool(ppo.evaluate(2)))
        assert "played" not in capsys.readouterr().err  # learn shows its own lines
        ppo.evaluate(3)
    assert ("played 3 of 3 episodes in 0 s, with a mean" in capsys.readouterr().err) is (
        progress == "lines")


def test_evaluation_plays_the_same_episodes_every_time():
    with PPO("CartPole-v1", **TINY) as ppo:
        ppo.learn(64)
        one, two = ppo.evaluate(5), ppo.evaluate(5)
        more = ppo.evaluate(7, deterministic=False)
        assert np.array_equal(one.returns, two.returns) and np.array_equal(one.lengths, two.lengths)
        assert np.array_equal(more.returns, ppo.evaluate(7, deterministic=False).returns)
    assert len(one.returns) == 5 and one.mean == one.returns.mean()
    assert one.std == pytest.approx(one.returns.std(ddof=1))
    assert one.ci95 == pytest.approx(1.96 * one.std / 5**0.5)
    mean, ci95 = (return_text(x, one.mean) for x in (one.mean, one.ci95))
    assert str(one) == f"{mean} ± {ci95} (5 episodes)"


def test_more_episodes_begin_with_the_fewer():
    with PPO("CartPole-v1", **TINY) as ppo:
        few, many = ppo.evaluate(3), ppo.evaluate(20)
    assert np.array_equal(many.returns[:3], few.returns)


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_evaluating_and_predicting_in_between_change_no_bit_of_training(name):
    def run(disturb):
        with PPO(name, max_episode_steps=30, **TINY) as ppo:
            for _ in range(3):
                rollout = ppo.collect()
                if disturb:
                    ppo.evaluate(2, deterministic=False)
                    ppo.policy.predict(rollout.obs[0].numpy(), deterministic=False)
                ppo.update(rollout)
                if disturb:
                    ppo.evaluate(2)
                    ppo.policy.value(rollout.obs[0].numpy())
            return weights(ppo)
    assert run(True) == run(False)


@pytest.mark.parametrize("obs_space", [
    gym.spaces.Box(-9.0, 9.0, (3,), np.float32), gym.spaces.Box(-9.0, 9.0, (2, 2), np.float64),
    gym.spaces.Box(-9.0, 9.0, (), np.float64), gym.spaces.Box(0, 255, (5,), np.uint8)], ids=str)
@pytest.mark.parametrize("act_space", [
    gym.spaces.Discrete(3, start=5), gym.spaces.Box(-0.5, 0.5, (2, 3), np.float64),
    gym.spaces.Box(np.float32(-1), np.float32(np.inf), (), np.float32)], ids=str)
def test_predict_and_value_take_one_observation_or_a_batch(obs_space, act_space):
    with PPO(lambda: Chance(obs_space, act_space), **TINY) as ppo:
        ppo.learn(64)
        policy = ppo.policy
    obs_space.seed(3)
    batch = np.stack([obs_space.sample() for _ in range(6)])
    for deterministic in (True, False):
        actions = policy.predict(batch, deterministic=deterministic)
        assert actions.shape == (6, *act_space.shape) and actions.dtype == act_space.dtype
        assert all(act_space.contains(np.asarray(action)) for action in actions)
    one = policy.predict(batch[0])
    assert np.allclose(one, policy.predict(batch)[0]) and act_space.contains(np.asarray(one))
    assert policy.value(batch).shape == (6,) and np.ndim(policy.value(batch[0])) == 0
    assert policy.value(batch[0]) == pytest.approx(policy.value(batch)[0], rel=1e-4, abs=1e-5)


def test_predict_takes_lists_numbers_and_arrays_that_are_read_only():
    with PPO(Calm, **TINY) as ppo:
        ppo.learn(64)
    obs = np.array([0.5, 1.5], np.float32)
    obs.flags.writeable = False
    assert ppo.policy.predict(obs) == ppo.policy.predict([0.5, 1.5]) in (0, 1)
    assert ppo.policy.predict(obs[None].repeat(2, 0)).tolist() == [ppo.policy.predict(obs)] * 2
    for wrong in (np.zeros(3), np.zeros((2, 3)), np.zeros((1, 2, 2)), 1.0):
        with pytest.raises(Error, match="does not fit"):
            ppo.policy.predict(wrong)


def test_sampled_actions_differ_and_likeliest_ones_do_not():
    with PPO("Pendulum-v1", **TINY) as ppo:
        obs = np.zeros((50, 3), np.float32)
        assert len(np.unique(ppo.policy.predict(obs, deterministic=False))) > 20
        assert len(np.unique(ppo.policy.predict(obs))) == 1
        assert np.abs(ppo.policy.predict(obs, deterministic=False)).max() <= 2


def test_what_was_trained_is_there_after_close():
    with PPO(Calm, **(TINY | dict(num_workers=1))) as ppo:
        rollout = ppo.learn(64).collect()
        kept = rollout.obs.clone()
    ppo.close()
    assert torch.equal(rollout.obs, kept)
    assert ppo.policy.predict(np.zeros(2)) in (0, 1)
    assert ppo.evaluate(2).returns.shape == (2,)
    for verb in (ppo.collect, lambda: ppo.update(rollout), lambda: ppo.learn(10_000)):
        with pytest.raises(ClosedError, match="\n  fix: "):
            verb()


def test_saving_and_loading_are_one_line_each(tmp_path):
    with PPO("CartPole-v1", **TINY) as ppo:
        ppo.learn(64).save(tmp_path / "policy.safetensors")
        obs = ppo.rollout.obs[0].numpy()
    policy = load(tmp_path / "policy.safetensors")
    assert np.array_equal(policy.predict(obs), ppo.policy.predict(obs))


# Two at once


def test_two_trainers_side_by_side_are_each_as_if_alone():
    def made(workers):
        return [PPO(name, max_episode_steps=20, **(TINY | dict(num_workers=workers)))
                for name in ("CartPole-v1", "Pendulum-v1")]
    alone = []
    for ppo in made(0):
        with ppo:
            alone.append(weights(ppo.learn(192)))
    both = made(1)
    for _ in range(3):
        rollouts = [ppo.collect() for ppo in both]
        for ppo, rollout in zip(both, rollouts, strict=True):
            ppo.total = 192
            ppo.update(rollout)
    assert [weights(ppo) for ppo in both] == alone
    for ppo in both:
        ppo.close()


def test_two_trainers_in_two_threads_are_each_as_if_alone():
    before = torch.get_num_threads()
    with PPO("CartPole-v1", **TINY) as ppo:
        alone = weights(ppo.learn(640))
    both = [PPO("CartPole-v1", **TINY) for _ in range(2)]
    threads = [threading.Thread(target=ppo.learn, args=[640]) for ppo in both]
    with guard():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [weights(ppo) for ppo in both] == [alone, alone]
    assert torch.get_num_threads() == before
    for ppo in both:
        ppo.close()


def test_a_trainer_works_where_the_host_has_turned_gradients_off():
    with PPO(Calm, **TINY) as ppo:
        wanted = weights(ppo.learn(64))
    with torch.no_grad(), PPO(Calm, **TINY) as ppo:
        assert weights(ppo.learn(64)) == wanted
        assert not torch.is_grad_enabled()


# The host


def host():
    """What a program may have set and does not want changed."""
    return {
        "torch threads": torch.get_num_threads(), "torch dtype": torch.get_default_dtype(),
        "torch random": torch.get_rng_state().numpy().tobytes(), "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "numpy random": str(np.random.get_state()), "random": random.getstate(),
        "numpy errors": np.geterr(), "environment": dict(os.environ), "cwd": os.getcwd(),
        "path": list(sys.path), "argv": list(sys.argv), "affinity": os.sched_getaffinity(0),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.displayhook),
        "streams": (sys.stdin, sys.stdout, sys.stderr), "filters": list(warnings.filters),
        "logging": (logging.root.level, list(logging.root.handlers), logging.raiseExceptions),
        "our logger": (logging.getLogger("fastppo").level, logging.getLogger("fastppo").handlers),
        "gc": (gc.isenabled(), gc.get_threshold()), "switch": sys.getswitchinterval(),
        "recursion": sys.getrecursionlimit(), "threads": threading.active_count(),
        "children": children(), "files": len(os.listdir("/proc/self/fd"))}


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_of_the_hosts_is_touched(workers, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    gc.collect()
    before = host()
    ppo = PPO("CartPole-v1", **(TINY | dict(num_workers=workers)))
    ppo.learn(128, [lambda ppo, stats: None])
    during = host()
    ppo.evaluate(2)
    ppo.policy.predict(np.zeros(4), deterministic=False)
    ppo.close()
    del ppo
    gc.collect()
    holds(lambda: threading.active_count() == before["threads"])
    after = host()
    assert {name for name in before if after[name] != before[name]} == set()
    own = {"files", "threads", "children"}
    assert {name for name in before if during[name] != before[name]} <= own
    assert os.listdir(tmp_path) == [] and capfd.readouterr() == ("", "")


IMPORTED = """
import sys; sys.path += {tests!r}
import gymnasium, numpy, torch
import test_embedding
before = test_embedding.host()
from fastppo import PPO, Config, load, make_vec
import fastppo.ppo, fastppo.vector.native_vector, fastppo.cli.main
after = test_embedding.host()
print([name for name in before if before[name] != after[name]])
"""


@pytest.mark.slow
def test_importing_everything_changes_nothing_global():
    here = os.path.dirname(__file__)
    code = IMPORTED.format(tests=[here, os.path.dirname(here)])
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "[]\n" and out.stderr == ""


def test_settings_that_cannot_be_are_errors_before_any_process_starts():
    before = children()
    for wrong in (dict(num_minibatches=1000), dict(num_envs=0), dict(gamma=2), dict(no_such=1),
                  dict(device="cuda:99"), dict(env_name="NoSuch-v0")):
        with pytest.raises((ConfigError, Error), match="\n  fix: "):
            PPO(**(TINY | dict(num_workers=2, env_name="CartPole-v1") | wrong))
    assert children() == before


@pytest.mark.parametrize("given, settings, said", [
    (None, {}, "PPO was given no environment"), ((), {}, "list of environments is empty"),
    ("CartPole-v1", {"env_name": "Acrobot-v1"}, "CartPole-v1 and env_name='Acrobot-v1'"),
    (Calm, {"env_name": "Acrobot-v1"}, "Calm and env_name='Acrobot-v1'")])
def test_no_environment_and_two_of_them_are_refused(given, settings, said):
    with pytest.raises(ConfigError, match=f"{said}(.|\n)*fix: "):
        PPO(given, **settings, **TINY)


def test_one_environment_may_be_named_twice():
    with PPO("CartPole-v1", env_name="CartPole-v1", **TINY) as ppo:
        assert ppo.config.env_name == "CartPole-v1"


def test_no_files_are_written_unless_a_folder_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with PPO(Calm, run_dir=str(tmp_path / "run"), **TINY) as ppo:
        wanted = weights(ppo.learn(128))
    assert {"metrics.csv", "config.json"} <= set(os.listdir(tmp_path / "run"))
    assert os.listdir(tmp_path) == ["run"]
    with PPO(Calm, **TINY) as ppo:
        assert weights(ppo.learn(128)) == wanted
