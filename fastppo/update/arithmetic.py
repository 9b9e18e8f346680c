"""The arithmetic of training: FLOPs of a sample, and FLOPs per second of the hardware."""

import contextlib
import time
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

from fastppo.networks.torch_state import gpu_arithmetic
from fastppo.update.flat_parameters import trained_parameters

PEAK_SIZES = (256, 384, 512)  # of square matrices that fit into a core's cache
PEAK_SECONDS = 0.15


def flops(policy: nn.Module, rows: int = 8) -> tuple[int, int]:
    """Exact FLOPs of one sample's forward pass, and of its forward and backward pass.

    Multiplications and additions of the products count one each. Activations, the loss and Adam
    are left out, so the limit is higher than it could be.
    """
    from torch.utils.flop_counter import FlopCounterMode
    store = policy.observer.layout.store
    obs = policy.observer.tensors(np.zeros((rows, *store.shape), store.dtype))
    with without_onednn(), torch.enable_grad(), FlopCounterMode(display=False) as counter:
        params, val = policy(obs)
        forward = counter.get_total_flops()
        gradients = torch.autograd.grad(params.sum() + val.sum(), trained_parameters(policy),
                                        allow_unused=True)
    del gradients
    return forward // rows, counter.get_total_flops() // rows


def layer_flops(policy: nn.Module) -> int:
    """FLOPs of one sample's forward pass in linear, convolutional and recurrent layers.

    It takes a millisecond, where `flops` takes a second the first time; products outside of such
    layers are not counted.
    """
    found = []

    def count(layer: nn.Module, inputs: tuple, output: Any) -> None:
        out = output[0] if isinstance(output, tuple) else output
        places = out[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1
        found.append(2 * places * sum(x.numel() for x in layer.parameters() if x.dim() > 1))
    hooks = [layer.register_forward_hook(count) for layer in policy.modules()
             if isinstance(layer, (nn.Linear, nn.Conv2d, nn.RNNBase))]
    store = policy.observer.layout.store
    eager = torch.compiler.set_stance("force_eager") if policy.net._compiled_call_impl \
        else contextlib.nullcontext()  # compiled layers have no hooks
    try:
        with torch.no_grad(), eager:
            policy(policy.observer.tensors(np.zeros((1, *store.shape), store.dtype)))
    finally:
        for hook in hooks:
            hook.remove()
    return sum(found)


@contextlib.contextmanager
def without_onednn():
    """Disables oneDNN, whose LSTM is one operation that the counter does not know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # switching oneDNN warns that there is no Intel GPU
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def peak(device: str = "cpu", precision: str = "fp32", seconds: float = PEAK_SECONDS) -> float:
    """FLOPs per second of the fastest matrix product in a precision; on the CPU, of one core.

    `seconds` are measured for each of several sizes of the matrices.
    """
    on_cpu, best = torch.device(device).type == "cpu", 0.0
    numbers = torch.bfloat16 if precision == "bf16" else torch.float32
    with contextlib.nullcontext() if on_cpu else gpu_arithmetic(precision == "tf32"):
        for size in PEAK_SIZES if on_cpu else (8192,):
            a = torch.ones(size, size, device=device, dtype=numbers)
            out = torch.empty_like(a)
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                start = time.perf_counter()
                torch.mm(a, a, out=out)
                if not on_cpu:
                    torch.cuda.synchronize(device)
                best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best
