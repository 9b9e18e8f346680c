"""Converts stored actions into actions of the environment as ActionMapping.to_env, in torch."""

import math
from typing import Callable

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor

from fastppo.spaces.actions import BOUNDS_MAPS, bounds_of
from fastppo.spaces.leaves import CHOICES, choice_starts

TensorFunction = Callable[[Tensor], Tensor]


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """The dtype of torch for a dtype of numpy."""
    return torch.from_numpy(np.zeros(0, np.dtype(dtype).newbyteorder("="))).dtype


def tensor_to_env(space: Space, bounds_map: str, device: torch.device | str = "cpu"
                  ) -> TensorFunction:
    """The function from stored actions [b ...] of a space without parts to the environment's."""
    dtype, size, placing = torch_dtype(space.dtype), math.prod(space.shape), BOUNDS_MAPS[bounds_map]
    if isinstance(space, CHOICES):
        start = torch.from_numpy(choice_starts(space).reshape(-1).copy()).to(device)
        return lambda act: (act.reshape(act.shape[0], size).long() + start).to(dtype).reshape(
            act.shape[0], *space.shape)
    wide = torch.promote_types(torch.float32, dtype) if dtype.is_floating_point else torch.float64
    low, high = (torch.from_numpy(x.astype("f8")).to(device, wide) for x in bounds_of(space))

    def box_to_env(act: Tensor) -> Tensor:
        act = act.reshape(act.shape[0], size)
        if placing:  # the place is rounded to float32, as in ActionMapping
            act = low + placing.place(act).to(wide) * (high - low)
        act = act.to(wide) if dtype.is_floating_point else act.to(wide).round()
        return act.clamp(low, high).to(dtype).reshape(act.shape[0], *space.shape)
    return box_to_env
