"""Few operations a minibatch: on a GPU each is a kernel, which takes 2 us on a thousand numbers."""

from functools import partial

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Discrete
from tiny_settings import TINY
from torch.utils._python_dispatch import TorchDispatchMode

from fastppo import PPO
from fastppo.gpu.graphs import GraphedLearner
from fastppo.learner import Learner
from fastppo.networks.normaliser import ObservationNormaliser
from fastppo.spaces.observations import ObservationLayout

FRAMES = partial(Chance, Box(0, 255, (84, 84), np.uint8), Discrete(6))
SETTINGS = TINY | dict(model="cnn", frame_stack=4, num_minibatches=2, precision="fp32")
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")


class Operations(TorchDispatchMode):
    """The `names` of all operations below autograd but views, whose results have no memory.

    Every other one counts once, also one on many tensors, on none of their numbers, or on a single
    number, and a read of one.
    """

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not any(x.alias_info and not x.alias_info.is_write for x in func._schema.returns):
            self.names.append(str(func))
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("kind, step, device", [
    (Learner, "_minibatch", "cpu"), (GraphedLearner, "_step", "cpu"),
    pytest.param(GraphedLearner, "_step", "cuda", marks=[pytest.mark.cuda, CUDA])])
def test_a_minibatch_of_the_nature_network_is_at_most_120_operations(
        kind, step, device, monkeypatch):
    real, counts = getattr(kind, step), []

    def counted(*given):
        with Operations() as seen:
            result = real(*given)
        counts.append(len(seen.names))
        return result
    monkeypatch.setattr(kind, step, counted)
    learner = "graph" if kind is GraphedLearner else "torch"
    with PPO(FRAMES, **SETTINGS, learner=learner, device=device) as ppo:
        for _ in range(2):
            ppo.update(ppo.collect())
    print(f"learner={learner} on {device}: {counts[-1]} operations")
    assert len(counts) > 2 and counts[-1] <= 120


@pytest.mark.parametrize("high", [1, 3, 7, 255])
def test_bytes_become_the_networks_input_in_one_operation_and_are_quotients(high):
    space = Box(0, high, (16, 16), np.uint8)
    observer = ObservationNormaliser(ObservationLayout(space, Discrete(2)))
    every = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16)
    with Operations() as seen:
        found = observer(every)
    assert seen.names == ["aten.div.Tensor"]
    assert torch.equal(found, every.float() / high)
    np.testing.assert_array_equal(found, every.numpy() / np.float32(high))
