"""precision=bf16: which layers compute in it, and that a run acts, trains and continues with it."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn
from torch.distributions import Categorical

from fastppo import PPO, export, load
from fastppo.cli import command_line
from fastppo.config import Config
from fastppo.errors import ConfigError, ModelError
from fastppo.machine import limits
from fastppo.networks.torch_state import torch_threads
from fastppo.terminal.banner import banner
from fastppo.trainer import resolve

IMAGE, SMALL = Box(0, 255, (36, 40, 3), np.uint8), Box(0, 255, (12, 10, 3), np.uint8)
WORDS = Dict(eye=SMALL, own=Box(-9, 9, (3,)))
BF16 = {"precision": "bf16"}


class OwnPixels(nn.Module):
    """A network of the user's for SMALL images."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 8, 4, 2), nn.Linear(8 * 5 * 4, 4)

    def forward(self, obs):
        """(action parameters [b 3], value [b])."""
        out = self.out(self.conv(obs).relu().flatten(1))
        return out[:, :3], out[:, 3]


class Remembering(OwnPixels):
    """The same with memory."""

    state_size = 4

    def forward(self, obs, state):
        """(action parameters [b 3], value [b], next state [b 4])."""
        out = self.out(self.conv(obs).relu().flatten(1)) + 0.1 * state
        return out[:, :3], out[:, 3], out.tanh()


class Distributed(OwnPixels):
    """The same with a distribution."""

    def forward(self, obs):
        """(distribution, value [b])."""
        params, val = super().forward(obs)
        return Categorical(logits=params), val


def seeing(space=SMALL):
    """The factory of random environments."""
    return partial(Chance, space, Discrete(3))


NETS = {"cnn": (IMAGE, {"model": "cnn"}), "impoola": (SMALL, {"model": "impoola"}),
        "lstm": (SMALL, {"model": "impoola", "rnn": "lstm", "rnn_size": 8}),
        "beside": (WORDS, {"model": "impoola", "shared_critic": False}),
        "popart": (SMALL, {"model": OwnPixels, "norm_values": True}),
        "own": (SMALL, {"model": OwnPixels}), "memory": (SMALL, {"model": Remembering})}
every = pytest.mark.parametrize("name", NETS)


@pytest.mark.some(1)
@every
def test_the_first_minibatch_in_bf16_finds_the_ratios_of_the_policy_that_acted(trainer, name):
    space, settings = NETS[name]
    ppo = trainer(seeing(space), num_minibatches=1, epochs=1, **settings, **BF16)
    rollout, ratios = ppo.collect(), []
    evaluate = ppo.learner.evaluate_actions

    def noted(batch):
        fresh = evaluate(batch)
        assert {x.dtype for x in fresh} == {torch.float32}
        ratios.append((fresh.logp - batch.logp).exp().detach())
        return fresh
    ppo.learner.evaluate_actions = noted
    before = ppo.learner.flat.state
    ppo.update(rollout)
    assert (ratios[0] - 1).abs().max() < 2e-2
    assert not ppo.learner.flat.values.equal(before)
    assert {x.dtype for x in ppo.policy.parameters()} == {torch.float32}


@every
def test_bf16_is_fp32_but_for_its_rounding_and_leaves_heads_alone(trainer, name):
    space, settings = NETS[name]
    found = {}
    for precision in ("fp32", "bf16"):
        ppo, kinds = trainer(seeing(space), precision=precision, acting="central",
                             learner="torch", **settings), {}
        for key, part in ppo.policy.named_modules():
            part.register_forward_hook(
                lambda part, _, out, kinds=kinds, key=key: kinds.setdefault(
                    type(part).__name__ if "." in key and "critic" not in key[-7:]
                    and "actor" not in key[-6:] else "head", set()).add(getattr(out, "dtype", 0)))
        found[precision], rollout = kinds, ppo.collect()
        found[precision, "out"] = rollout.val.clone(), rollout.logp.clone()
    for ours, theirs in zip(found["fp32", "out"], found["bf16", "out"]):
        assert not ours[:1].equal(theirs[:1])
        torch.testing.assert_close(ours[:1], theirs[:1], rtol=0, atol=3e-2)
    assert found["bf16"]["Conv2d"] == {torch.bfloat16}
    assert found["fp32"]["Conv2d"] == {torch.float32}
    assert torch.bfloat16 not in found["bf16"].get("head", ())


@pytest.mark.parametrize(("given", "native", "resolved", "warned"), [
    ({}, True, "bf16", 0), ({}, False, "fp32", 0), ({"model": OwnPixels}, True, "fp32", 0),
    ({"model": "mlp"}, True, "fp32", 0), (BF16, True, "bf16", 0), (BF16, False, "bf16", 1),
    ({"precision": "fp32"}, True, "fp32", 0)], ids=str)
def test_auto_is_bf16_for_built_in_convolutions_where_the_processor_computes_in_it(
        trainer, monkeypatch, caplog, given, native, resolved, warned):
    monkeypatch.setattr(limits, "has_bf16", lambda *_: native)
    ppo = trainer(seeing(), **{"model": "impoola"} | given)
    assert ppo.config.precision == resolved
    assert caplog.text.count("precision=bf16 is slow here") == warned


@pytest.mark.parametrize("given, precision", [
    ({}, "tf32"), ({"model": "mlp"}, "fp32"), ({"precision": "fp32"}, "fp32"),
    ({"precision": "tf32", "model": "mlp"}, "tf32")])
def test_tf32_is_for_the_convolutions_of_a_gpu_unless_it_is_told(given, precision):
    config = Config(**{"model": "cnn", "device": "cuda"} | given)
    assert resolve._precision(config, True) == precision


def test_tf32_is_refused_on_a_cpu():
    with pytest.raises(ConfigError, match="only GPUs compute in.*\n  fix: precision=\"fp32\""):
        PPO("CartPole-v1", precision="tf32", num_workers=0)


def gpu_state():
    """Torch's settings of a GPU's arithmetic that old names have."""
    layers = torch.backends.cudnn
    return torch.backends.cuda.matmul.allow_tf32, layers.allow_tf32, layers.deterministic


def test_tf32_is_allowed_and_the_same_bits_are_asked_for_inside_the_block_alone():
    before = gpu_state()
    for allowed, inside in ((True, (True, True, True)), (False, (False, False, True)),
                            (None, before)):
        with torch_threads(1, allowed):
            assert gpu_state() == inside
        assert gpu_state() == before


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="needs torch 2.9")
def test_tf32_of_a_script_that_uses_torchs_new_names_is_left_as_it_was(monkeypatch):
    products, layers = torch.backends.cuda.matmul, torch.backends.cudnn

    def state():
        return products.fp32_precision, layers.conv.fp32_precision, layers.rnn.fp32_precision
    before = state()
    try:
        products.fp32_precision, layers.conv.fp32_precision = "tf32", "ieee"
        for allowed in (True, False):
            with torch_threads(1, allowed):
                assert gpu_state() == (allowed, allowed, True)
            assert state() == ("tf32", "ieee", before[2])
    finally:
        products.fp32_precision, layers.conv.fp32_precision, layers.rnn.fp32_precision = before
        products.allow_tf32, layers.allow_tf32 = False, True
        products.fp32_precision, layers.conv.fp32_precision, layers.rnn.fp32_precision = before


def test_an_evaluation_has_the_precision_of_the_run(trainer, monkeypatch):
    ppo, found = trainer(seeing(), model="impoola", precision="fp32"), []
    ppo.tf32 = False  # as on a GPU
    monkeypatch.setattr("fastppo.evaluation.evaluator.evaluate",
                        lambda *args, **others: found.append(gpu_state()))
    ppo.evaluate(1)
    assert found == [(False, False, True)]


def test_bf16_is_refused_where_nothing_would_compute_in_it(trainer):
    with pytest.raises(ConfigError, match="model=mlp has no layer that computes in it"):
        trainer(seeing(Box(-1, 1, (3,))), **BF16)
    with pytest.raises(ModelError, match="round the numbers of the distributions"):
        trainer(seeing(), model=Distributed, **BF16)


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_the_banner_names_bf16_and_not_fp32(trainer, precision):
    ppo = trainer(seeing(), model="impoola", precision=precision)
    lines = banner(ppo, command_line.read([]), Path("runs/a"), resumed=True)
    device = next(line for line in lines if line.startswith("device"))
    assert device.endswith(", bf16") == (precision == "bf16") and "fp32" not in device


@pytest.mark.full
@pytest.mark.parametrize("first", ["bf16", "auto"])
def test_a_resumed_run_and_a_loaded_policy_keep_their_precision(
        trainer, tmp_path, monkeypatch, first):
    monkeypatch.setattr(limits, "has_bf16", lambda *_: True)
    ppo = trainer(seeing(), model="impoola", precision=first)
    ppo.update(ppo.collect())
    ppo.checkpoint(tmp_path / "c.safetensors")
    ppo.save(tmp_path / "p.safetensors")
    ppo.update(ppo.collect())
    monkeypatch.setattr(limits, "has_bf16", lambda *_: False)
    with PPO.resume(tmp_path / "c.safetensors", env=seeing()) as again:
        assert again.config.precision == "bf16"
        again.update(again.collect())
        assert again.learner.flat.values.equal(ppo.learner.flat.values)
    with pytest.raises(ConfigError, match="precision is 'fp32', but the run that is resumed has"):
        PPO.resume(tmp_path / "c.safetensors", env=seeing(), precision="fp32")
    again = load(tmp_path / "p.safetensors")
    obs = np.stack([SMALL.sample() for _ in range(4)])
    convs = [part for part in again.net.modules() if isinstance(part, nn.Conv2d)]
    convs[0].register_forward_hook(lambda _, args, out: kinds.append(out.dtype))
    kinds = []
    again.predict(obs)
    assert kinds == [torch.bfloat16]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_an_exported_graph_computes_in_fp32(trainer, tmp_path):
    ppo = trainer(seeing(), model="impoola", **BF16)
    export(ppo.policy, tmp_path / "p.pt")
    graph = torch.jit.load(tmp_path / "p.pt")
    assert not re.search("autocast|bfloat", str(graph.inlined_graph))
    obs = np.stack([SMALL.sample() for _ in range(9)])
    assert graph(torch.from_numpy(obs)).shape == (9,)
