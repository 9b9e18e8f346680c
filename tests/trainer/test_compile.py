"""compile=True: the network by torch.compile, with the results of an eager one."""

import logging
from functools import partial

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Discrete
from tiny_settings import TINY

from fastppo import PPO, load
from fastppo.update.arithmetic import flops

ENV = partial(Chance, Box(-5, 5, (3,), np.float32), Discrete(3))
IMAGES = partial(Chance, Box(0, 255, (36, 36), np.uint8), Discrete(3))


@pytest.fixture
def backend(monkeypatch):
    """Makes torch.compile use a backend that runs what it was given as it is; returns its calls."""
    real, calls = torch.nn.Module.compile, []

    def run_as_it_is(graph, inputs):
        calls.append(len(inputs))
        return graph.forward
    monkeypatch.setattr(torch.nn.Module, "compile",
                        lambda net: real(net, backend=run_as_it_is))
    return calls


@pytest.mark.full
@pytest.mark.parametrize("env, settings", [
    (ENV, {}), (ENV, dict(learner="graph")), (ENV, dict(rnn="gru")),
    (IMAGES, dict(model="cnn", frame_stack=2))])
def test_a_compiled_network_trains_as_an_eager_one(backend, tmp_path, env, settings):
    found = []
    for compiled in (False, True):
        with PPO(env, **TINY | dict(learner="torch", acting="central", compile=compiled)
                 | settings) as ppo:
            for _ in range(2):
                ppo.update(ppo.collect())
            assert bool(backend) is compiled and flops(ppo.policy)[0] > 0
            ppo.save(tmp_path / "model.safetensors")
            found.append((ppo.learner.flat.values.clone(), flops(ppo.policy)[0],
                          load(tmp_path / "model.safetensors").state_dict().keys()))
    (wanted, work, names), (values, same_work, same_names) = found
    assert torch.allclose(values, wanted, atol=1e-6) and (work, names) == (same_work, same_names)


def test_the_kernels_leave_a_compiled_network_to_torch(backend):
    with PPO(ENV, **TINY | dict(compile=True)) as ppo:
        assert (ppo.config.acting, ppo.config.learner) == ("central", "torch")


def test_a_network_that_cannot_be_compiled_is_eager_and_says_so(monkeypatch, caplog):
    def no_compiler(net):
        def fail(*args):
            raise RuntimeError("no C++ compiler\nmore")
        net._compiled_call_impl = fail
    monkeypatch.setattr(torch.nn.Module, "compile", no_compiler)
    with caplog.at_level(logging.WARNING), PPO(ENV, **TINY | dict(compile=True)) as ppo:
        ppo.update(ppo.collect())
    assert "compile=True has no effect, because torch.compile failed: RuntimeError: no C++ compi" \
        in caplog.text and "more" not in caplog.text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_inductor_compiles_it():
    with PPO(ENV, **TINY | dict(compile=True)) as ppo:
        ppo.update(ppo.collect())
        assert ppo.policy.net._compiled_call_impl is not None
