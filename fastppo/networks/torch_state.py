"""Context managers for torch's global state: threads, default device, random generator."""

from contextlib import contextmanager
from typing import Iterator

import torch
from torch import nn

from fastppo.machine.global_rng import RNG_LOCK

CPU = torch.device("cpu")


@contextmanager
def isolated_rng(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """Torch's own generator of `device` as `seed` has it; the host script finds it as it was.

    Other threads may borrow it meanwhile.
    """
    cuda = device.type == "cuda"
    with RNG_LOCK:
        before = torch.get_rng_state(), torch.cuda.get_rng_state(device) if cuda else None
        torch.default_generator.manual_seed(seed)
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
    try:
        yield
    finally:
        with RNG_LOCK:
            torch.set_rng_state(before[0])
            if cuda:
                torch.cuda.set_rng_state(before[1], device)


@contextmanager
def seeded_rng(seed: int, device: torch.device = CPU) -> Iterator[None]:
    """As `set_apart`, while no other thread draws; for what is over soon."""
    with RNG_LOCK, isolated_rng(seed, device):
        yield


@contextmanager
def preserved_buffers(net: nn.Module) -> Iterator[None]:
    """Put back the buffers of a network, which a model's own forward may write into."""
    before = [(part._buffers, name, buffer, buffer.clone()) for part in net.modules()
              for name, buffer in part._buffers.items() if buffer is not None]
    try:
        yield
    finally:
        for home, name, buffer, values in before:
            home[name] = buffer.copy_(values)


@contextmanager
def torch_threads(count: int):
    """Torch's intra-op threads inside the block, and no inference mode: training needs its tensors.

    What the host script had is put back. Its default device holds: an environment's own torch, or a
    model's forward, may count on it.
    """
    before, grad = torch.get_num_threads(), torch.is_grad_enabled()
    torch.set_num_threads(count)
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(grad):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def default_torch():
    """Torch as a fresh interpreter has it, for building and files, whatever the host script set.

    The CPU is the default device, gradients are recorded, tensors are no inference tensors.
    """
    with torch.device("cpu"), torch.inference_mode(False), torch.enable_grad():
        yield
