"""What a network sees of stored observations: encoded, normalised by moments that belong to it."""

from typing import Any, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fastppo.envs.observations import (
    ObservationEncoding,
    ObservationLayout,
    StoredLeaf,
    encoded_width,
)
from fastppo.envs.spaces import build_structure, leaf_arrays
from fastppo.machine import kernels

VARIANCE_EPSILON = 1e-8


class ObservationNormaliser(nn.Module):
    """Stored observations to float32: `flat` columns [b o], or the structure of the space.

    clip((x - mean) / sqrt(var + 1e-8), +-limit) of float leaves if `norm_obs`; choices one-hot,
    bytes divided by 255; images channels first in a structure. An action mask is no part of it.
    """

    def __init__(self, seen: ObservationLayout, norm_obs: bool = True, flat: bool = False,
                 limit: float = 10.0):
        super().__init__()
        self.seen, self.encoding, self.flat, self.limit = seen, ObservationEncoding(seen), flat, limit
        floats = self.encoding.floats
        self.norm = bool(norm_obs and floats.any())
        size, columns = (floats.sum(), len(floats)) if self.norm else (0, 0)
        for name, x in (("count", np.zeros(1)), ("mean", np.zeros(size)), ("m2", np.zeros(size))):
            self.register_buffer(name, torch.from_numpy(x))
        self.register_buffer("shift", torch.zeros(columns, dtype=torch.float32), persistent=False)
        self.register_buffer("scale", torch.ones(columns, dtype=torch.float32), persistent=False)

    def forward(self, obs: Any) -> Any:
        """What the network sees of observations [b ...], tensors in the structure of the space."""
        found = [(column, self._seen(column, column.leaf.of(obs)))
                 for _, column in self.encoding.columns]
        if self.norm:
            sizes = [encoded_width(column) for column in (column for column, _ in found)]
            found = [(column, self._normalised(x, shift, scale)) for (column, x), shift, scale in
                     zip(found, self.shift.split(sizes), self.scale.split(sizes))]
        if self.flat:
            return torch.cat([x.reshape(x.shape[0], encoded_width(column)) for column, x in found], -1)
        return build_structure(self.seen.shown, (channels_first(column, x) for column, x in found))

    def mask(self, obs: Any) -> Tensor | None:
        """The action mask, bool [b choices], of observations; None where there is none."""
        return None if self.seen.mask is None else self.seen.columns[self.seen.mask].leaf.of(obs)

    def tensors(self, rows: np.ndarray) -> Any:
        """Stored rows [b ...] as tensors on the policy's device, in the structure of the space."""
        place = self.count.device
        return self.seen.structure([torch.from_numpy(array).to(place)
                                    for array in leaf_arrays(rows)])

    @property
    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """A copy of (count [1], mean [f], sum of squared deviations [f]) of float columns, f64."""
        return self.count.clone(), self.mean.clone(), self.m2.clone()

    def restore(self, state: Sequence[Tensor]) -> None:
        """Replace the moments by a `state`, and the float32 snapshot that everybody reads."""
        count, mean, m2 = state
        if self.norm and count.item() > 0:
            floats = torch.from_numpy(self.encoding.floats).to(self.shift.device)
            self.shift.masked_scatter_(floats, mean.to(self.shift))
            self.scale.masked_scatter_(floats, (m2 / count + VARIANCE_EPSILON).rsqrt().to(self.scale))
        # The count last: interrupted before it, the first moments are still to be set.
        for buffer, value in ((self.mean, mean), (self.m2, m2), (self.count, count)):
            buffer.copy_(value)

    def learn(self, arrays: Sequence[np.ndarray]) -> None:
        """Merge observations, leaves [n ...], into the moments; the network sees them now."""
        if self.norm and len(arrays[0]):
            x = self.encoding.encode(arrays)
            if not self.encoding.floats.all():
                x = x[:, self.encoding.floats]
            count, mean, m2 = (value.cpu().numpy() for value in self.state)
            kernels.merge_moments(np.ascontiguousarray(x), count, mean, m2)
            self.restore([torch.from_numpy(value) for value in (count, mean, m2)])

    def _seen(self, column: StoredLeaf, x: Tensor) -> Tensor:
        if column.dtype == np.int32:  # compared, not scattered: unused rows are poison
            flat = x.reshape(x.shape[0], len(column.counts), 1)
            return torch.cat([flat[:, i] == torch.arange(int(count), device=x.device)
                              for i, count in enumerate(column.counts)], -1).float()
        return x.float() / 255 if column.dtype == np.uint8 else x.float()

    def _normalised(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        flat = (x.reshape(x.shape[0], len(shift)) - shift) * scale
        return flat.clamp(-self.limit, self.limit).reshape(x.shape)


def channels_first(column: StoredLeaf, x: Tensor) -> Tensor:
    """Images [b h w c] as [b c h w]; the shortest axis is the channels'."""
    shape = column.shape
    if column.dtype != np.uint8 or len(shape) != 3 or min(shape) != shape[2] or \
            shape[2] == shape[0]:
        return x
    return x.permute(0, 3, 1, 2)
