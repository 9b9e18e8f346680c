"""The arithmetic of training: FLOPs of a sample, and FLOPs per second of the hardware."""

import contextlib
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from fastppo.networks.torch_state import gpu_arithmetic

PEAK_SIZES = (256, 384, 512)  # of square matrices that fit into a core's cache
PEAK_SECONDS = 0.15


def flops(policy: nn.Module) -> tuple[int, int]:
    """FLOPs of one sample's forward pass, and of its forward and backward pass, in layers.

    These are linear, convolutional and recurrent ones; multiplications and additions count one
    each. Activations, other products, the loss and Adam are left out, and the gradient of what goes
    into a recurrent layer, so the limit is higher than it could be.
    """
    found = []

    def count(layer: nn.Module, inputs: tuple, output: Any) -> None:
        memory = isinstance(layer, nn.RNNBase)
        out = output[0] if memory else output
        places = out[0, 0].numel() if isinstance(layer, nn.Conv2d) else 1
        forward = 2 * places * sum(x.numel() for x in layer.parameters() if x.dim() > 1)
        found.append((forward, forward * (2 if memory or not inputs[0].requires_grad else 3)))
    hooks = [layer.register_forward_hook(count) for layer in policy.modules()
             if isinstance(layer, (nn.Linear, nn.Conv2d, nn.RNNBase))]
    store = policy.observer.layout.store
    eager = torch.compiler.set_stance("force_eager") if policy.net._compiled_call_impl \
        else contextlib.nullcontext()  # compiled layers have no hooks
    try:
        with torch.enable_grad(), eager:
            policy(policy.observer.tensors(np.zeros((1, *store.shape), store.dtype)))
    finally:
        for hook in hooks:
            hook.remove()
    forward, both = map(sum, zip(*found))
    return forward, both


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
