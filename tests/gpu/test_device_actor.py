"""Central acting with a mirror of the observations: the same rollout, here without a graph."""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from envs_for_tests import Chance, Fenced
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tiny_settings import TINY

from fastppo import PPO
from fastppo.gpu import device_actor
from fastppo.gpu.device_actor import DeviceActor, pinned
from fastppo.machine.shared_memory import Arena
from fastppo.networks.torch_state import gpu_arithmetic
from fastppo.spaces.leaves import leaf_arrays, tree_map
from fastppo.trainer import collector

FLOATS, IMAGE = Box(-5, 5, (3,), np.float32), Box(0, 255, (36, 36), np.uint8)
BOX = Box(-1, 1, (2,), np.float32)
CASES = {
    "categorical": (partial(Chance, FLOATS, Discrete(3)), {}),
    "gaussian": (partial(Chance, FLOATS, BOX), dict(sde=True, sde_sample_freq=4)),
    "masked": (partial(Fenced, "method", Discrete(4), FLOATS), {}),
    "parts": (partial(Chance, Dict(a=BOX, b=Discrete(3)), Discrete(2)), {}),
    "images": (partial(Chance, IMAGE, Discrete(3)), dict(model="cnn", frame_stack=3)),
    "one image": (partial(Chance, IMAGE, Discrete(3)), dict(model="cnn")),
    "memory": (partial(Chance, FLOATS, Discrete(3)), dict(rnn="lstm", rnn_size=4)),
}
WAYS = {"serial": {}, "workers": dict(num_workers=2), "one environment": dict(num_envs=1)}
CUDA = pytest.param("cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU with CUDA")])


def stored_rows(arena):
    """A copy of the observations [t+1 e ...] of the arena's rollout."""
    frames = arena["frames"]
    return frames.reshape(-1, *frames.shape[2:])[arena["stacks"]] if len(frames) else \
        arena["obs"].copy()


def collected(env, monkeypatch, kind, **settings):
    """Copies of two rollouts with an update between them, of an actor of a `kind`."""
    monkeypatch.setattr(collector, "CentralActor", kind)
    with PPO(env(), **TINY | dict(acting="central", learner="torch", norm_rewards=True)
             | settings) as ppo:
        found = []
        for _ in range(2):
            rollout = ppo.collect()
            seen = ppo.policy.observer.layout.split(rollout.obs) if not len(
                ppo.arena["frames"]) else [rollout.obs.tensor().numpy()]
            assert all(np.array_equal(x, y) for x, y in zip(
                seen, leaf_arrays(stored_rows(ppo.arena))))
            found += [np.copy(x).tobytes() for x in seen]
            found += [x.cpu().numpy().tobytes() for x in rollout[1:]]
            ppo.update(rollout)
        return [*found, ppo.learner.flat.values.numpy().tobytes()]


@pytest.mark.some(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_a_mirror_changes_no_bit_of_a_run(monkeypatch, case, way):
    env, settings = CASES[case]
    one, two = (collected(lambda: env, monkeypatch, kind, **settings | WAYS[way])
                for kind in (device_actor.CentralActor, DeviceActor))
    assert one == two


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_mirror_changes_no_bit_with_a_vector_environment(monkeypatch, mode):
    def env():
        return SyncVectorEnv([partial(Chance, FLOATS, Discrete(3), ends=0.2)] * 4,
                             autoreset_mode=mode)
    one, two = (collected(env, monkeypatch, kind)
                for kind in (device_actor.CentralActor, DeviceActor))
    assert one == two


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("case", [name for name in CASES if name != "memory"])
def test_what_was_recorded_is_what_the_policy_says_of_the_observations(case, device):
    env, settings = CASES[case]
    learner = "torch" if settings.get("sde") else "graph"
    with PPO(env, **TINY | dict(acting="central", learner=learner, device=device,
                                precision="fp32") | settings) as ppo, gpu_arithmetic(False):
        for _ in range(3):  # the second and third are replays on a GPU
            rollout = ppo.collect()
            obs = tree_map(lambda x: x[:-1].flatten(0, 1).to(device), rollout.obs)
            with torch.no_grad():
                params, val = ppo.policy(obs)
                logp = ppo.policy.head.evaluate(params, rollout.act.flatten(0, 1).to(device))[0]
            near = partial(torch.allclose, rtol=1e-3, atol=1e-4)
            assert near(val.cpu(), rollout.val.flatten())
            assert settings.get("sde") or near(logp.cpu(), rollout.logp.flatten())
            ppo.update(rollout)


@pytest.mark.parametrize("case", ["images", "parts"])
def test_a_warm_up_waits_before_the_memory_of_a_copy_changes(monkeypatch, case):
    """The GPU is as late as it may be: it copies when it is waited for."""
    env, settings = CASES[case]
    late, copy = [], torch.Tensor.copy_

    def copied(own, there, non_blocking=False):
        late.append((own, there)) if non_blocking else copy(own, there)

    def waited(mirror):
        while late:
            copy(*late.pop(0))
    with PPO(env, **TINY | dict(acting="central", learner="graph") | settings) as ppo:
        monkeypatch.setattr(torch.Tensor, "copy_", copied)
        monkeypatch.setattr(device_actor.ObservationMirror, "wait", waited)
        ppo.collector.vec.begin()
        ppo.collector.vec.warmup(8)
        assert late == []
        rows, stored = ppo.collector.rollout.obs, leaf_arrays(stored_rows(ppo.arena))
        found = [rows.tensor().numpy()] if case == "images" else [
            *ppo.policy.observer.layout.split(rows)]
        assert all(np.array_equal(x[:8], y[:8]) and x[:8].any() for x, y in zip(found, stored))


def test_waiting_is_for_the_gpu_of_the_mirror_alone(monkeypatch):
    waits = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(
        synchronize=lambda: waits.append(str(device))))
    for name in ("cpu", "cuda:1"):
        device_actor.ObservationMirror.wait(SimpleNamespace(device=torch.device(name)))
    assert waits == ["cuda:1"]


@pytest.fixture
def current(monkeypatch):
    """The GPUs that are current, one within the other; none of them is there."""
    found = []

    @contextmanager
    def device(name):
        found.append(str(name))
        yield
        found.pop()
    monkeypatch.setattr(torch.cuda, "device", device)
    return found


@pytest.mark.parametrize("code", [0, 2])
def test_the_shared_memory_is_registered_with_its_gpu_until_the_run_ends(
        monkeypatch, caplog, current, code):
    calls, launched, arena = [], [], Arena({"x": ("<f4", (5, 7)), "y": ("|b1", (3,))})
    monkeypatch.setattr(torch.cuda, "cudart", lambda: SimpleNamespace(
        cudaHostRegister=lambda *args: calls.append((*current, *args)) or code,
        cudaHostUnregister=lambda *args: calls.append((*current, *args))))

    def first_launch(*shape, device):
        launched.append(device)
        raise RuntimeError("CUDA error: out of memory")  # what the registration left behind
    monkeypatch.setattr(torch, "zeros", first_launch)
    with pinned(arena, "cuda:1") as done:
        assert done is (code == 0) and current == []
        (device, address, size, flags), = calls
    assert device == "cuda:1" and address == arena["x"].ctypes.data
    assert size == arena.block.nbytes and flags == 0
    assert calls[1:] == [("cuda:1", address)] * (code == 0)
    assert launched == ["cuda:1"] * (code != 0) == ["cuda:1"] * (
        "WARNING" in caplog.text and "not pinned" in caplog.text)
    arena.close()


def test_memory_for_copies_is_pinned_for_the_gpu_that_makes_them(monkeypatch, current):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: [*current])
    assert device_actor.fixed_memory(torch.ones(2), torch.device("cuda:1")) == ["cuda:1"]
    assert device_actor.fixed_memory(torch.ones(2), torch.device("cpu")).tolist() == [1.0, 1.0]
