"""The copies between the CPU and a GPU that an update asks for; here nothing is copied."""

import math

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Discrete

from fastppo.errors import NonFiniteError
from fastppo.update.batches import Batch, flatten_rollout
from fastppo.update.statistics import LOSSES, loss_report

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def asked(monkeypatch):
    """(device, whether the CPU goes on) of copies, and whether new memory is pinned."""
    found, empty = [], torch.empty

    def copied(x, device, non_blocking=False):
        found.append((str(device), non_blocking))
        return x

    def made(*shape, pin_memory=False, **how):
        found.append(pin_memory)
        return empty(*shape, **how)
    monkeypatch.setattr(torch.Tensor, "to", copied)
    monkeypatch.setattr(torch, "empty", made)
    return found


class Placed:
    """Fifty numbers on a device, which may not be there."""

    def __init__(self, device):
        self.device = device

    def __len__(self):
        return 50


def test_the_order_of_an_epoch_goes_to_a_gpu_from_memory_of_its_own_and_is_not_awaited(asked):
    samples = Batch(*[Placed(GPU)] * 6)
    one, two = (samples.order(1, 2, epoch) for epoch in (0, 1))
    assert asked == [True, ("cuda", True)] * 2
    assert one.tolist() != two.tolist() and sorted(one.tolist()) == [*range(50)]
    assert one.tolist() == Batch(*[Placed(CPU)] * 6).order(1, 2, 0).tolist() and asked[-2] is False


@pytest.mark.parametrize("device, goes_on", [(GPU, True), (CPU, False)])
def test_samples_go_to_a_gpu_without_a_wait(trainer, request, device, goes_on):
    rollout = trainer(lambda: Chance(Box(0, 255, (36, 36), np.uint8), Discrete(3)),
                      frame_stack=2, model="cnn").collect()
    asked = request.getfixturevalue("asked")
    flatten_rollout(rollout, device)
    assert asked == [(device.type, goes_on)] * 7  # of images frames and their numbers


def test_statistics_and_weights_are_read_at_once(monkeypatch):
    reads, cpu = [], torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: reads.append(1) or cpu(x))
    epochs = [{name: torch.tensor(i / 3 + j) for i, name in enumerate(LOSSES)} for j in (0, 1)]
    report = loss_report(epochs, torch.ones(5))
    assert reads == [1]
    assert report["losses/value_loss"] == float(torch.tensor([1 / 3, 4 / 3]).mean())
    assert report["losses/epochs"] == 2
    with pytest.raises(NonFiniteError, match="after an update weights are not finite"):
        loss_report(epochs, torch.tensor([1.0, math.inf]))
    none = loss_report([], torch.ones(5))
    assert none.pop("losses/epochs") == 0 and all(map(math.isnan, none.values()))
