"""Context managers for torch's global state: threads, default device, random generator."""

import re
import warnings
from contextlib import contextmanager, nullcontext, suppress
from typing import Iterator

import torch
from torch import nn

from fastppo.machine.global_rng import RNG_LOCK

CPU = torch.device("cpu")
# That cuDNN copies the weights of a recurrent layer, which are parts of one vector with all others.
RNN_WARNING = "ignore", re.compile("RNN module weights are not part"), UserWarning, None, 0


@contextmanager
def seeded_rng(seed: int, device: torch.device = CPU, alone: bool = True) -> Iterator[None]:
    """Seeds torch's own generator of `device`; restores the host script's state at the end.

    `alone`, for short blocks: no other thread may use the generators of the process meanwhile.
    """
    cuda = device.type == "cuda"
    with RNG_LOCK if alone else nullcontext():
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
def preserved_buffers(net: nn.Module) -> Iterator[None]:
    """Restores the buffers of a network at the end; a user's forward may write into them."""
    before = [(part._buffers, name, buffer, buffer.clone()) for part in net.modules()
              for name, buffer in part._buffers.items() if buffer is not None]
    try:
        yield
    finally:
        for buffers, name, buffer, values in before:
            buffers[name] = buffer.copy_(values)


@contextmanager
def torch_threads(count: int, tf32: bool | None = None) -> Iterator[None]:
    """Sets torch's intra-op threads inside the block, and leaves inference mode, for training.

    `tf32`: see gpu_arithmetic; None: as the host script has set it. The script's default device
    stays: environments and models of the user's may rely on it.
    """
    before, grad = torch.get_num_threads(), torch.is_grad_enabled()
    torch.set_num_threads(count)
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(grad), (
                nullcontext() if tf32 is None else gpu_arithmetic(tf32)):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def gpu_arithmetic(tf32: bool) -> Iterator[None]:
    """A GPU rounds the inputs of products and convolutions to TF32, or does not.

    Convolutions have the same bits each time. RNN_WARNING is not heard.
    """
    products, layers, before = torch.backends.cuda.matmul, torch.backends.cudnn, []
    for holder in (products, layers, getattr(layers, "conv", 0), getattr(layers, "rnn", 0)):
        for name in ("allow_tf32", "deterministic", "fp32_precision"):
            # Once a script has set a new name of torch 2.9, torch refuses to read the old one.
            with suppress(RuntimeError, AttributeError):
                before.append((holder, name, getattr(holder, name)))
    products.allow_tf32 = layers.allow_tf32 = tf32  # with the new names torch.compile fails
    layers.deterministic = True
    warnings.filters.insert(0, RNN_WARNING)  # catch_warnings would make the script's heard again
    try:
        yield
    finally:
        warnings.filters[:] = [x for x in warnings.filters if x is not RNN_WARNING]
        for holder, name, value in before:
            setattr(holder, name, value)


@contextmanager
def default_torch() -> Iterator[None]:
    """Torch's defaults of a fresh interpreter, to build policies and to read and write files.

    The CPU is the default device, gradients are recorded, and no inference tensors are made.
    """
    with torch.device("cpu"), torch.inference_mode(False), torch.enable_grad():
        yield
