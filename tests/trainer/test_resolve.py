"""Resolving settings: which learner, how many threads, and what is said about it."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Dict, Discrete
from optional_packages import NEEDS_EXTENSION

from fastppo import PPO
from fastppo.compiled.support import unsupported_in_learner
from fastppo.config import Config
from fastppo.errors import ConfigError, fix_text
from fastppo.machine import kernels, limits
from fastppo.spaces.observations import ObservationLayout
from fastppo.trainer.given_settings import checked_source, config_for, resumed_settings
from fastppo.trainer.resolve import device_to_use
from fastppo.trainer.rules import OF_DEVICES, case_of, check

IMAGE = Box(0, 255, (36, 40, 3), np.uint8)


def source_of(env, settings):
    """The checked environments of a trainer that is given an environment and settings."""
    return checked_source(env, config_for(env, settings))


def resolved(obs_space, **settings):
    """The resolved Config of an environment with such observations."""
    def env():
        return Chance(obs_space, Discrete(3))
    with_defaults = {"preset": "none", "num_workers": 0, **settings}
    return source_of(env, with_defaults).resolved


class Limited(Chance):
    max_episode_steps = 250


@pytest.mark.parametrize(("env", "settings", "wanted"), [
    ("Acrobot-v1", {}, 0.99), ("Acrobot-v1", {"max_episode_steps": 250}, 0.98),
    ("Acrobot-v1", {"max_episode_steps": 5}, 0.97), ("Acrobot-v1", {"gamma": 0.5}, 0.5),
    ("Acrobot-v1", {"max_episode_steps": 10**6}, 0.999), (Chance, {}, 0.99), (Limited, {}, 0.98),
    ("Acrobot-v1", {"frame_skip": 2}, 0.98), ("Acrobot-v1", {"frame_skip": 2,
                                                             "max_episode_steps": 200}, 0.975)])
def test_the_discount_of_auto_reaches_a_fifth_of_the_limit_of_an_episode(env, settings, wanted):
    settings = {"preset": "general", "num_workers": 0, **settings}
    assert source_of(env, settings).resolved.gamma == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(("settings", "wanted"), [
    ({"total_steps": 999_999}, 5e-4), ({"total_steps": 1_000_000}, 3e-4), ({"lr": 1e-3}, 1e-3),
    ({"preset": "none", "total_steps": 999_999}, 3e-4)])
def test_short_runs_begin_with_a_higher_learning_rate(settings, wanted):
    settings = {"preset": "general", "num_workers": 0, **settings}
    assert source_of("Acrobot-v1", settings).resolved.lr == wanted


def test_a_vector_environment_has_the_discount_of_its_environments():
    env = gym.make_vec("MountainCar-v0", num_envs=2)  # a limit of 200 steps
    assert source_of(env, {}).resolved.gamma == pytest.approx(0.975, abs=1e-12)
    env.close()


@pytest.mark.skipif(not kernels.COMPILED, reason="the extension is not built here")
@pytest.mark.parametrize(("inputs", "hidden", "served"), [
    (3 * 640 * 640, (64,), False), (4, (1_100_000,), False), (4, (8, 2**20 + 1), False),
    (2**20, (8,), True), (4, (2**20,), True)])
def test_a_layer_that_the_kernels_refuse_goes_to_torch(inputs, hidden, served):
    space = Box(-1, 1, (inputs,), np.float32)
    config = resolved(space, hidden_sizes=hidden)
    assert (config.acting, config.learner) == (
        ("local", "kernel") if served else ("central", "torch"))
    if not served:
        with pytest.raises(ConfigError, match="at most 16 layers of 1,048,576 units") as caught:
            resolved(space, hidden_sizes=hidden, learner="kernel", acting="central")
        assert fix_text(caught.value.fix, shell=True) == "--learner=torch"


@pytest.mark.skipif(not kernels.COMPILED, reason="the extension is not built here")
@pytest.mark.parametrize(("shape", "served"), [
    ((128, 128, 64), True), ((128, 128, 65), False), ((600, 800, 3), False),
    ((724, 724), True), ((725, 725), False)], ids=str)  # the first convolution doubles one plane
def test_an_image_that_the_kernels_refuse_goes_to_torch(shape, served):
    space = Box(0, 255, shape, np.uint8)
    config = resolved(space)
    assert (config.model, config.acting, config.learner) == (
        "cnn", *(("local", "kernel") if served else ("central", "torch")))
    if not served:
        with pytest.raises(ConfigError, match="images of this size") as caught:
            resolved(space, learner="kernel")
        assert fix_text(caught.value.fix, shell=True) == "--learner=torch"


@pytest.mark.parametrize(("dtype", "model"), [(np.uint8, "cnn"), (np.float32, "mlp")])
def test_two_axes_are_an_image_only_of_bytes(caplog, dtype, model):
    assert resolved(Box(0, 255, (84, 84), dtype)).model == model and not caplog.text


@pytest.mark.parametrize(("space", "given", "threads"), [
    (IMAGE, {"learner": "torch"}, (1, 3)), (IMAGE, {"torch_threads": 2}, (2, 2)),
    (IMAGE, {}, (1, 1 if kernels.COMPILED else 3)),
    (IMAGE, {"update_threads": 2}, (1, 2)), (IMAGE, {"model": "mlp"}, (1, 1)),
    (IMAGE, {"model": torch.nn.Module}, (1, 3)), (Box(-1, 1, (4,)), {"model": torch.nn.Module},
                                                  (1, 1)),
    (Box(-1, 1, (4,)), {"learner": "torch"}, (1, 1)), (Box(-1, 1, (4,)), {}, (1, 1))])
def test_an_update_of_convolutions_or_of_an_own_model_on_images_has_all_cores_unless_it_is_told(
        monkeypatch, space, given, threads):
    monkeypatch.setattr(limits, "usable_cores", lambda: 3)
    config = resolved(space, **given)
    assert (config.torch_threads, config.update_threads) == threads


@pytest.mark.parametrize(("given", "threads"), [({}, [1, 2]), ({"torch_threads": 2}, [2, 2])])
def test_torch_has_these_threads_while_it_acts_and_updates(trainer, monkeypatch, given, threads):
    monkeypatch.setattr(limits, "usable_cores", lambda: 2)
    given = {"acting": "central", "learner": "torch", **given}
    ppo, found = trainer(lambda: Chance(IMAGE), **given), []
    handle = ppo.policy.net.register_forward_hook(
        lambda *_: found.append(torch.get_num_threads()))
    rollout = ppo.collect()
    acting, found[:] = set(found), []
    ppo.update(rollout)
    handle.remove()
    assert [*acting, *set(found)] == threads


@pytest.mark.parametrize(("settings", "said"), [
    ({"rnn": "gru", "num_minibatches": 8}, 1), ({"rnn": "gru", "num_minibatches": 4}, 0),
    ({"num_minibatches": 8}, 0)], ids=str)
def test_minibatches_that_a_memory_caps_are_told_once(trainer, caplog, settings, said):
    ppo = trainer(Chance, **settings)
    ppo.update(ppo.collect())
    assert caplog.text.count("num_minibatches=8, but") == said
    assert caplog.text.count("fix: num_minibatches=4") == said


@NEEDS_EXTENSION
@pytest.mark.parametrize("settings", [{"step_timeout": 9.0}, {"on_worker_failure": "restart"}])
def test_what_only_workers_have_makes_the_run_start_them_or_is_refused(settings):
    few = {"env_name": "CartPole-v1", "total_steps": 512, "num_envs": 2, "num_steps": 8,
           "num_minibatches": 1, "num_workers": "auto"}
    for given in {}, settings:
        config = source_of(None, few | given).resolved
        assert bool(config.num_workers) == bool(given)
    with pytest.raises(ConfigError, match=next(iter(settings))) as caught:
        source_of(None, few | settings | {"num_workers": 0})
    assert "leave --" in fix_text(caught.value.fix, shell=True)


@pytest.mark.parametrize("settings", [{"step_timeout": 9.0}, {"on_worker_failure": "restart"}])
def test_what_only_workers_have_is_refused_where_there_can_be_none(monkeypatch, settings):
    monkeypatch.setattr(kernels, "COMPILED", False)
    with pytest.raises(ConfigError, match="and there are none") as caught:
        source_of("CartPole-v1", settings)
    assert fix_text(caught.value.fix, shell=True) == f"leave --{next(iter(settings))} out"


def test_an_eval_env_is_looked_up_before_a_run_begins():
    with pytest.raises(ConfigError, match="no environment 'CartPol-v1'"):
        source_of("CartPole-v1", {"eval_env": "CartPol-v1"})


class Own(torch.nn.Module):
    """A model of the user's, not called here."""


@pytest.mark.parametrize("settings, reason", [
    ({"rnn": "gru"}, "rnn=gru"), ({"layer_norm": True}, "layer_norm=True"),
    ({"activation": "silu"}, "activation=silu"), ({"critic_lr": 1e-3}, "critic_lr=0.001"),
    ({"optimizer": torch.optim.SGD}, "your own optimizer"), ({"model": Own}, "your own model"),
    ({"hidden_sizes": (4,) * 17}, "networks of this size"), ({}, "")])
@pytest.mark.skipif(not kernels.COMPILED, reason="the extension is not built here")
def test_the_reason_for_torch_is_the_first_setting_that_the_kernels_lack(settings, reason):
    source = source_of("CartPole-v1", settings)
    config = source.resolved
    found = unsupported_in_learner(config, ObservationLayout(source.obs_space, source.act_space))
    assert found.startswith(reason) and bool(found) == bool(reason)
    assert config.learner == ("torch" if reason else "kernel")


VECTOR = Box(-1, 1, (4,), np.float32)


@pytest.mark.parametrize("obs_space, settings, device", [
    (VECTOR, {}, "cpu"), (VECTOR, {"hidden_sizes": (64, 256)}, "cuda"), (IMAGE, {}, "cuda"),
    (VECTOR, {"model": Own}, "cpu"), (IMAGE, {"model": Own}, "cuda"),
    (VECTOR, {"rnn": "gru"}, "cpu"), (VECTOR, {"device_ids": (1,)}, "cuda:1"),
    (IMAGE, {"acting": "local"}, "cpu"), (IMAGE, {"learner": "kernel"}, "cpu"),
    (VECTOR, {"learner": "graph"}, "cuda"), (IMAGE, {"precision": "tf32"}, "cuda")])
def test_auto_takes_a_gpu_for_large_networks(monkeypatch, obs_space, settings, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolved(obs_space, device="auto", **settings).device == device


def test_auto_takes_the_cpu_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolved(IMAGE, device="auto").device == "cpu"


@pytest.mark.parametrize("settings, environ, found", [
    ({"device": "cuda"}, {}, "cuda"), ({"device": "auto"}, {}, "cuda"),
    ({"device": "cuda:1"}, {}, "cuda:1"), ({"device": "cpu:0"}, {}, "cpu"),
    ({"device": "cuda", "device_ids": (1,)}, {}, "cuda:1"),
    ({"device": "cuda"}, {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, "cuda:1"),
    ({"device": "cuda:7"}, {}, "GPU 7"), ({"device": "cuda", "device_ids": (5,)}, {}, "GPU 5"),
    ({"device": "cuda"}, {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"}, "GPU 3")])
def test_a_gpu_is_one_that_there_is(monkeypatch, settings, environ, found):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    try:
        given = Config(**settings)
        config = given.replace(device=device_to_use(given))
        check(OF_DEVICES, case_of(config, given))
        assert config.device == found
    except ConfigError as error:
        assert "there are 2" in error.what and found in str(error)


def test_an_actor_and_a_critic_of_other_keys_do_not_share_layers_and_the_fix_works(trainer):
    parts = Dict(own=Box(-1, 1, (2,)), hidden=Box(-1, 1, (3,)))
    given = dict(actor_keys=("own",))
    with pytest.raises(ConfigError, match="differ\n  fix: shared_critic=False"):
        trainer(lambda: Chance(parts), shared_critic=True, **given)
    assert not trainer(lambda: Chance(parts), shared_critic=False, **given).config.shared_critic


@pytest.mark.parametrize("settings", [{"step_timeout": 9.0}, {"on_worker_failure": "restart"}])
def test_a_vector_environment_has_no_workers_to_watch(settings):
    name, value = next(iter(settings.items()))
    with pytest.raises(ConfigError, match=f"{name}={value} is for worker processes.*\n  fix: leave"
                                          f" {name} out$"):
        PPO("CartPole-v1", vec="native", **settings)


def test_a_preset_that_is_in_the_way_is_named():
    with pytest.raises(ConfigError, match="^with preset=acrobot: num_minibatches 10 is more .*\n"
                                          "  fix: num_minibatches=4"):
        PPO("Acrobot-v1", num_envs=2, num_steps=2)


@pytest.mark.parametrize("device, precision", [("cpu", "fp32"), ("cuda", "tf32")])
def test_a_run_of_a_gpu_is_resumed_on_a_cpu_in_fp32(device, precision):
    stored = {"env_name": "CartPole-v1", "num_envs": 8, "precision": "tf32", "device": "cuda"}
    found = resumed_settings(Path("a.checkpoint"), stored, [], None, {"device": device})
    assert (found["device"], found["precision"]) == (device, precision)


def test_unknown_names_are_answered_at_resume_too():
    with pytest.raises(ConfigError, match="no setting num_env\n  fix: did you mean num_envs"):
        resumed_settings(Path("a"), {"env_name": "CartPole-v1"}, [], None, {"num_env": 3})
