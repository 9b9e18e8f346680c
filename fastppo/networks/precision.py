"""Layers that compute in bf16: the numbers that flow are rounded to 8 bits, the weights are not."""

from functools import partial
from typing import Any, Callable

import torch
from torch import nn

from fastppo.networks.encoders import MixedEncoder
from fastppo.spaces.leaves import tree_map


def compute_in_bf16(net: nn.Module, own: bool) -> None:
    """Puts torch's autocast to bf16 around the encoders of `net`, or around all of a user's own.

    What they return is float32, so that heads and losses are.
    """
    for part in [net] if own else net.modules():
        if own or isinstance(part, MixedEncoder):
            part.forward = partial(_bf16_forward, part.forward)


def compute_in_fp32(net: nn.Module) -> None:
    """Undoes compute_in_bf16."""
    for part in net.modules():
        if getattr(vars(part).get("forward"), "func", None) is _bf16_forward:
            del part.forward


def _bf16_forward(forward: Callable, *inputs: Any) -> Any:
    """What `forward` returns under autocast, as float32."""
    on = next(forward.__self__.parameters()).device.type  # type: ignore[attr-defined]
    # Cached weights would be those of before a step, where the host script uses autocast itself.
    with torch.autocast(on, torch.bfloat16, cache_enabled=False):
        return tree_map(lambda x: x.float(), forward(*inputs))
