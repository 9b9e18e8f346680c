"""The device that device=auto takes: what is measured, on the CPU alone, and what is chosen."""

import math
import weakref
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Dict, Discrete
from tiny_settings import TINY

from fastppo import PPO
from fastppo.build import placement
from fastppo.build.given_settings import config_for, make_source
from fastppo.build.model import build_policy
from fastppo.build.placement import Placement, place, placement_among
from fastppo.build.resolve import resolve
from fastppo.errors import ConfigError, NonFiniteError
from fastppo.machine import limits
from fastppo.spaces.leaves import tree_map

IMAGE = Box(0, 255, (36, 36), "u1")
CASES = {
    "kernel": ("CartPole-v1", {}), "torch": ("CartPole-v1", dict(layer_norm=True)),
    "graph": ("CartPole-v1", dict(learner="graph")), "gru": ("CartPole-v1", dict(rnn="gru")),
    "gaussian": ("Pendulum-v1", {}), "one environment": ("CartPole-v1", dict(num_envs=1)),
    "small minibatches": ("CartPole-v1", dict(num_envs=2, num_steps=64, num_minibatches=32)),
    "stacked images": (partial(Chance, IMAGE, Discrete(3)), dict(model="cnn", frame_stack=2)),
    "parts": (partial(Chance, Dict(a=Box(-1, 1, (2,)), b=Discrete(3)), Discrete(2)), {}),
}


@pytest.fixture(autouse=True)
def briefly(monkeypatch):
    """Each part is measured once."""
    monkeypatch.setattr(placement, "MEASURED_SECONDS", 0.0)


def source_of(env, **settings):
    """The environments of a run with small rollouts."""
    small = dict(preset="none", num_envs=4, num_steps=8, num_minibatches=2, num_workers=0, seed=1)
    return make_source(None if isinstance(env, str) else env, config_for(
        None if isinstance(env, str) else env,
        small | settings | ({"env_name": env} if isinstance(env, str) else {})))


@pytest.mark.some(2)
@pytest.mark.parametrize("case", CASES)
def test_acting_and_updating_are_measured_with_the_networks_of_the_run(case):
    env, settings = CASES[case]
    found = placement_among(source_of(env, **settings), ("cpu",))
    assert found.device == "cpu" and 0 < found.seconds["cpu"] < 60


def test_a_measurement_changes_nothing_of_the_run():
    def weights(measured):
        with PPO("CartPole-v1", **TINY) as ppo:
            if measured:
                placement_among(ppo.source, ("cpu",))
            return {name: x.tolist() for name, x in ppo.learn(64).policy.state_dict().items()}
    assert weights(False) == weights(True)


@pytest.mark.full
def test_the_fastest_device_is_taken_and_the_first_of_equal_ones(monkeypatch):
    times = {"cpu": 2e-6, "cuda": 3e-6}
    monkeypatch.setattr(placement, "resolve", lambda source, device: device)
    monkeypatch.setattr(placement, "seconds_per_step", lambda source, device: times[device])
    assert placement_among(None, ("cuda", "cpu")).device == "cpu"
    times["cpu"] = 3e-6
    assert placement_among(None, ("cuda", "cpu")).device == "cuda"


def test_a_setting_that_one_device_lacks_leaves_the_other(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(placement, "seconds_per_step", lambda source, config: 1e-6)
    image = partial(Chance, IMAGE, Discrete(3))
    found = placement_among(source_of(image, model="cnn", precision="tf32"), ("cpu", "cuda"))
    assert found.device == "cuda" and math.isinf(found.seconds["cpu"])


def test_what_a_trial_kept_of_a_gpu_is_free_before_the_next_one(monkeypatch):
    kept, seen = [], []

    class Part:
        """A part of a trial that is named by another one, and so freed by the collector alone."""

    def measured(source, device):
        one, two = Part(), Part()
        one.other, two.other = two, one
        kept.append(weakref.ref(one))
        if device == "cuda":
            raise ConfigError("of another device", "none")
        return 1e-6
    monkeypatch.setattr(placement, "resolve", lambda source, device: device)
    monkeypatch.setattr(placement, "seconds_per_step", measured)
    def empty_cache():
        seen.append([x() for x in kept])
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")
    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    placement_among(None, ("cuda", "cpu"))
    assert seen == [[None], [None, None]]


def test_acting_is_measured_with_the_memory_of_a_run_on_the_device(monkeypatch):
    devices, source = [], source_of("CartPole-v1")

    @contextmanager
    def noted(arena, device):
        devices.append((len(arena["obs"]), device))
        yield True
        assert len(arena["obs"])  # it is closed later
    monkeypatch.setattr(placement, "pinned", noted)
    placement.seconds_per_step(source, resolve(source))
    assert devices == [(2, "cpu")]


@pytest.fixture
def thrice(monkeypatch):
    """Each part is measured three times; the results of the calls."""
    found = []
    monkeypatch.setattr(placement, "_seconds", lambda call: len([
        found.append(call()) for _ in range(3)]))
    return found


def updating(source, config):
    return placement._updating(source, config, build_policy(
        source.obs_space, source.act_space, config))


def test_no_epoch_of_a_measured_update_is_left_out(thrice):
    source = source_of("CartPole-v1", epochs=3, target_kl=1e-9, lr=0.1)
    updating(source, resolve(source))
    assert [stats["losses/epochs"] for stats in thrice] == [3, 3, 3]


@pytest.mark.parametrize("case", ["kernel", "parts", "stacked images"])
def test_the_observations_of_measured_updates_go_to_the_device_once(monkeypatch, thrice, case):
    env, settings = CASES[case]
    source = source_of(env, **settings)
    config, seen, to = resolve(source).replace(device="cuda:1"), [], torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda x, *place: to(
        x, *["meta" if one == "cuda:1" else one for one in place]))
    monkeypatch.setattr(placement, "make_arena", lambda *args: SimpleNamespace(close=lambda: 0))
    monkeypatch.setattr(placement, "make_learner", lambda *args: SimpleNamespace(
        update=lambda rollout, *others: tree_map(seen.append, rollout.obs)))
    updating(source, config)
    assert {x.device.type for x in seen} == {"meta"} and len(seen) == 3 * len({*map(id, seen)})


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), NonFiniteError("nan")])
def test_a_device_that_fails_takes_forever(monkeypatch, error):
    def failing(*args):
        raise error
    monkeypatch.setattr(placement, "_updating", failing)
    source = source_of("CartPole-v1")
    assert math.isinf(placement.seconds_per_step(source, resolve(source)))
    text = str(Placement("cpu", {"cuda": math.inf, "cpu": 2.5e-6}))
    assert text.endswith("cuda failed, cpu 2.50")


@pytest.mark.parametrize("settings, environ", [
    ({"device": "cpu"}, {}), ({"device": "cuda"}, {}), ({"device": "auto", "device_ids": (0,)}, {}),
    ({"device": "auto"}, {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"})])
def test_nothing_is_measured_without_a_choice(monkeypatch, settings, environ):
    monkeypatch.setattr(limits, "gpus", lambda: 1)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert place(source_of("CartPole-v1", **settings)) is None
    monkeypatch.setattr(limits, "gpus", lambda: 0)
    assert place(source_of("CartPole-v1", device="auto")) is None


def test_a_run_with_device_auto_is_where_it_is_faster_and_says_so(monkeypatch, command):
    monkeypatch.setattr(limits, "gpus", lambda: 1)
    monkeypatch.setattr(placement, "placement_among", lambda source, devices: Placement(
        "cpu", {device: 1e-6 * (1 + (device == "cuda")) for device in devices}))
    code, out, _ = command("--env_name=CartPole-v1", "--device=auto", "--preset=none",
                           "--num_envs=4", "--num_steps=8", "--total_steps=32", "--num_workers=0",
                           "--eval_episodes=0", "--num_minibatches=1")
    assert code == 0 and "device    cpu, torch_threads=1; microseconds per step of acting" in out
    assert "cuda 2.00, cpu 1.00" in " ".join(out.split())
