"""The FLOPs of a network, and the hardware's peak."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Discrete
from torch.utils.flop_counter import FlopCounterMode

from fastppo.networks.torch_state import gpu_arithmetic
from fastppo.update import arithmetic
from fastppo.update.flat_parameters import trained_parameters


@pytest.mark.parametrize("shared", [False, True])
def test_flops_are_two_for_a_weight_forward_and_no_gradient_of_the_input(trainer, shared):
    policy = trainer("CartPole-v1", hidden_sizes=(16, 8), shared_critic=shared).policy
    first, body, heads = (4 * 16, 16 * 8, 8 * 2 + 8 * 1)
    bodies = 1 if shared else 2
    forward = 2 * (bodies * (first + body) + heads)
    assert arithmetic.flops(policy) == (forward, 3 * forward - 2 * bodies * first)


def test_flops_of_convolutions_are_those_that_torch_counts(trainer):
    policy = trainer(lambda: Chance(Box(0, 255, (36, 36, 3), np.uint8), Discrete(2)),
                     model="cnn").policy
    store = policy.observer.layout.store
    with FlopCounterMode(display=False) as counter:
        params, val = policy(policy.observer.tensors(np.zeros((1, *store.shape), store.dtype)))
        forward = counter.get_total_flops()
        torch.autograd.grad(params.sum() + val.sum(), trained_parameters(policy))
    assert arithmetic.flops(policy) == (forward, counter.get_total_flops())


def test_flops_of_a_network_of_ones_own_are_counted_too(trainer):
    class Net(torch.nn.Module):
        def __init__(self, obs_space, act_space):
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, obs):
            out = self.layer(obs)
            return out[:, :2], out[:, 2]

    policy = trainer("CartPole-v1", model=Net).policy
    assert arithmetic.flops(policy) == (2 * 12, 4 * 12)


@pytest.mark.parametrize("rnn, gates", [("gru", 3), ("lstm", 4)])
def test_flops_of_a_memory_are_counted(trainer, rnn, gates):
    policy = trainer("CartPole-v1", hidden_sizes=(), rnn=rnn, rnn_size=16).policy
    assert arithmetic.flops(policy)[0] == 2 * (2 * gates * 16 * (4 + 16) + 16 * 2 + 16)


def test_the_peak_is_two_flops_a_weight_and_row_over_the_seconds_of_the_fastest_product(
        monkeypatch):
    ticks = itertools.count()
    monkeypatch.setattr(arithmetic, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 16))
    assert arithmetic.peak() == 2 * 512**3 * 16
    monkeypatch.setattr(arithmetic, "PEAK_SIZES", (8, 4))
    assert arithmetic.peak() == 2 * 8**3 * 16


@pytest.mark.parametrize("precision, numbers, tf32", [
    ("fp32", torch.float32, False), ("tf32", torch.float32, True), ("bf16", torch.bfloat16, False)])
def test_the_peak_of_a_device_is_in_the_runs_precision(monkeypatch, precision, numbers, tf32):
    waited, seen, products = [], set(), torch.backends.cuda.matmul
    monkeypatch.setattr(torch, "mm", lambda a, b, out: seen.add((a.dtype, products.allow_tf32)))
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    with gpu_arithmetic(not tf32):  # as a script may have set it
        assert arithmetic.peak("meta", precision, 1e-3) > 0
        assert products.allow_tf32 is not tf32
    assert seen == {(numbers, tf32)} and {*waited} == {"meta"}
