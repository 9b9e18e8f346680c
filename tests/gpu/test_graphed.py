"""The minibatch that a CUDA graph replays equals torch's; here it runs without a graph."""

import gc
import weakref
from functools import partial

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv
from on_a_gpu import no_wait_for_the_gpu
from tiny_settings import TINY

from fastppo import PPO
from fastppo.errors import ConfigError
from fastppo.gpu.graphs import GraphedLearner

FLOATS, IMAGE = Box(-5, 5, (3,), np.float32), Box(0, 255, (36, 36), np.uint8)
ENV, IMAGES = partial(Chance, FLOATS, Discrete(3)), partial(Chance, IMAGE, Discrete(3))
SETTINGS = TINY | dict(num_steps=16, epochs=3, num_minibatches=4)
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")


def both(env, **settings):
    """(weights, metrics of each iteration) of torch's learner and of the graphed one."""
    found = []
    for learner in ("torch", "graph"):
        with PPO(env, **SETTINGS | settings | {"learner": learner}) as ppo:
            stats = [ppo.update(ppo.collect()) for _ in range(4)]
            assert isinstance(ppo.learner, GraphedLearner) == (learner == "graph")
            found.append((ppo.learner.flat.values.clone(), stats, ppo.learner.optimizer.steps))
    return found


@pytest.mark.some(1)
@pytest.mark.parametrize("env, settings", [
    (ENV, {}), (ENV, dict(critic_lr=1e-3, clip_range="linear:0.3:0.1", entropy_coef=0.02)),
    (ENV, dict(clip_range_vf="linear:0.3", dual_clip=2.0, total_steps=300)),
    (ENV, dict(num_microbatches=2, norm_advantages="rollout", norm_values=True)),
    (ENV, dict(adaptive_kl=0.001, recompute_advantages=True, target_kl=0.02)),
    (IMAGES, dict(model="cnn", frame_stack=2, precision="fp32", grad_clipping="global"))])
def test_a_replayed_minibatch_is_torchs(env, settings):
    (wanted, own, taken), (found, other, steps) = both(env, **settings)
    assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-7) and steps == taken
    for one, two in zip(own, other):
        assert one == pytest.approx(two, rel=1e-4, abs=1e-6)


def test_epochs_of_another_size_are_learners_own():
    def make():
        return SyncVectorEnv([partial(ENV, ends=0.1)] * 4)  # NEXT_STEP: rows without a step
    found = []
    for learner in ("torch", "graph"):
        with PPO(make(), **{**SETTINGS, "learner": learner}) as ppo:
            counts = set()
            for _ in range(6):
                rollout = ppo.collect()
                counts.add(int(rollout.valid.sum()))
                ppo.update(rollout)
            found.append((ppo.learner.flat.values.clone(), ppo.learner.optimizer.steps))
    assert len(counts) > 1
    assert torch.allclose(found[0][0], found[1][0], rtol=1e-5, atol=1e-7)
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("settings, reason", [
    (dict(rnn="gru"), "rnn=gru"), (dict(optimizer=torch.optim.SGD), "your own optimizer"),
    (dict(num_minibatches=3), "num_minibatches=3 with 64 samples")])
def test_settings_that_no_graph_can_have_are_refused(settings, reason):
    with pytest.raises(ConfigError, match=f"learner=graph does not support {reason}"):
        PPO(ENV, **SETTINGS | settings | {"learner": "graph"})


class Remembers(torch.nn.Module):
    """A model with a memory, which built-in settings do not tell."""

    state_size = 2

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.layer = torch.nn.Linear(5, 6)

    def forward(self, obs, state):
        out = self.layer(torch.cat([obs, state], -1))
        return out[:, :3], out[:, 3], out[:, 4:].tanh()


def test_a_model_with_a_memory_is_trained_without_a_graph(caplog):
    found = []
    for learner in ("torch", "graph"):
        with PPO(ENV, **SETTINGS | {"model": Remembers, "learner": learner}) as ppo:
            for _ in range(2):
                ppo.update(ppo.collect())
            found.append(ppo.learner.flat.values.clone())
    assert torch.equal(*found)
    assert caplog.text.count("without a CUDA graph, because its network has a memory") == 1


def test_an_interrupt_leaves_no_rates_behind(monkeypatch):
    found = []
    for learner in ("torch", "graph"):
        with PPO(ENV, **SETTINGS | {"learner": learner}) as ppo:
            rollout = ppo.collect()
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                def interrupted(*args):
                    raise KeyboardInterrupt
                patch.setattr(ppo.learner, "_minibatch", interrupted)
                ppo.update(rollout)
            rollout.valid[:, 3] = False  # with fewer samples the epochs are Learner's own
            ppo.update(rollout)
            assert ppo.learner.optimizer.steps == 12
            found.append(ppo.learner.flat.values.clone())
    assert torch.equal(*found)


def test_an_update_that_fails_leaves_everything_as_it_was(monkeypatch):
    with PPO(ENV, **SETTINGS | {"learner": "graph"}) as ppo:
        ppo.update(ppo.collect())
        rollout, before = ppo.collect(), ppo.learner.flat.values.clone()
        calls = iter(range(100))

        def failing(*args, own=ppo.learner._minibatch):
            if next(calls) == 5:
                raise KeyboardInterrupt
            return own(*args)
        monkeypatch.setattr(ppo.learner, "_minibatch", failing)
        with pytest.raises(KeyboardInterrupt):
            ppo.update(rollout)
        assert torch.equal(ppo.learner.flat.values, before) and ppo.learner.optimizer.steps == 12
        monkeypatch.undo()
        ppo.update(rollout)
        again = ppo.learner.flat.values.clone()
    with PPO(ENV, **SETTINGS | {"learner": "graph"}) as ppo:
        for _ in range(2):
            ppo.update(ppo.collect())
        assert torch.equal(ppo.learner.flat.values, again)


@pytest.mark.cuda
@CUDA
def test_nothing_waits_for_the_gpu_in_an_update_but_the_read_of_its_statistics(monkeypatch):
    with PPO(IMAGES, **SETTINGS | {"model": "cnn", "device": "cuda"}) as ppo:
        ppo.update(ppo.collect())
        assert ppo.config.learner == "graph" and ppo.learner.replay is not None
        rollout, replay, replays, reads = ppo.collect(), ppo.learner.replay, [], []

        def counted():
            replays.append(1)
            replay()

        def read(x, cpu=torch.Tensor.cpu):
            reads.append(x.shape)
            torch.cuda.set_sync_debug_mode("default")
            return cpu(x)
        monkeypatch.setattr(ppo.learner, "replay", counted)
        monkeypatch.setattr(torch.Tensor, "cpu", read)
        with no_wait_for_the_gpu():
            ppo.learner.update(rollout, ppo.coefficients, 1)
        assert len(replays) == 12 and len(reads) == 1


class Collects(torch.nn.Module):
    """A model that collects garbage in a capture, as Python may do at any time."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, obs):
        if torch.cuda.is_current_stream_capturing() and gc.isenabled():
            gc.collect()
        out = self.layer(obs)
        return out[:, :3], out[:, 3]


@pytest.mark.cuda
@CUDA
def test_a_closed_trainer_keeps_no_graph_and_no_other_capture_destroys_one():
    def learners_graph(**settings):
        with PPO(ENV, **SETTINGS | {"device": "cuda"} | settings) as ppo:
            ppo.update(ppo.collect())
            ppo.itself, graph = ppo, weakref.ref(ppo.learner.replay.__self__)
        return graph
    assert learners_graph(norm_values=True)() is None
    learners_graph(model=Collects)


class Waits(torch.nn.Module):
    """A model that reads a number of the device, which no graph can do."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, obs):
        out = self.layer(obs)
        return out[:, :3] * (1.0 if out.sum().item() > 0 else 1.0), out[:, 3]


@pytest.mark.cuda
@CUDA
def test_a_model_that_waits_is_trained_without_a_graph_and_spoils_nothing(caplog):
    for model in (Waits, "mlp"):
        with PPO(ENV, **SETTINGS | {"model": model, "device": "cuda"}) as ppo:
            for _ in range(2):
                ppo.update(ppo.collect())
            assert (ppo.learner.replay is None) == (model is Waits)
            assert ppo.learner.optimizer.steps == 24
    assert torch.rand(2, device="cuda").is_cuda
    assert caplog.text.count("actions are chosen without a CUDA graph") == 2  # of each group
    assert caplog.text.count("the update runs without a CUDA graph") == 1


class Distributes(torch.nn.Module):
    """A model that returns a distribution, which reads a number of the device."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, obs):
        out = self.layer(obs)
        return torch.distributions.Categorical(logits=out[:, :3]), out[:, 3]


@pytest.mark.cuda
@CUDA
def test_a_model_that_returns_a_distribution_is_trained():
    with PPO(ENV, **SETTINGS | {"model": Distributes, "device": "cuda"}) as ppo:
        for _ in range(2):
            ppo.update(ppo.collect())
        assert ppo.learner.optimizer.steps == 24
