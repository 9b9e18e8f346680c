"""Encodes stored observations for a network, and normalises them by running moments."""

from typing import Any, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fastppo.envs.observations import EncodedLeaf, ObservationEncoding, ObservationLayout
from fastppo.envs.spaces import build_structure, leaf_arrays
from fastppo.machine import kernels

VARIANCE_EPSILON = 1e-8


class ObservationNormaliser(nn.Module):
    """Stored observations to float32: `flat` columns [b o], or the structure of the space.

    Numbers are clip((x - mean) / sqrt(var + 1e-8), +-limit) if `norm_obs`, else unchanged. Images
    are divided by 255, channels first. Choices are one-hot. The action mask is left out.

    `images` are the leaves, counted without the mask, that the network sees as images. By default
    these are all Boxes that look like one, but for a flat network.
    """

    def __init__(self, seen: ObservationLayout, norm_obs: bool = True, flat: bool = False,
                 limit: float = 10.0, images: Sequence[int] | None = None):
        super().__init__()
        if images is None:
            visible = ObservationEncoding(seen).leaves
            images = [i for i, leaf in enumerate(visible) if leaf.stored.like_image and not flat]
        self.seen, self.flat, self.limit = seen, flat, limit
        self.encoding = ObservationEncoding(seen, images)
        self.norm = bool(norm_obs and self.encoding.normalised.any())
        size, columns = (self.encoding.normalised.sum(), self.encoding.size) if self.norm else (0, 0)
        for name, x in (("count", np.zeros(1)), ("mean", np.zeros(size)), ("m2", np.zeros(size))):
            self.register_buffer(name, torch.from_numpy(x))
        self.register_buffer("shift", torch.zeros(columns, dtype=torch.float32), persistent=False)
        self.register_buffer("scale", torch.ones(columns, dtype=torch.float32), persistent=False)
        self.register_load_state_dict_post_hook(update_snapshot)

    def forward(self, obs: Any) -> Any:
        """The network's input for observations [b ...], tensors in the structure of the space."""
        leaves = self.encoding.leaves
        inputs = [self._encoded(leaf, leaf.stored.leaf.of(obs)) for leaf in leaves]
        if self.flat:
            return torch.cat([x.reshape(x.shape[0], leaf.stored.width)
                              for leaf, x in zip(leaves, inputs)], -1)
        return build_structure(self.seen.shown, iter(inputs))

    def mask(self, obs: Any) -> Tensor | None:
        """The action mask, bool [b choices], of observations; None if there is none."""
        return None if self.seen.mask is None else self.seen.columns[self.seen.mask].leaf.of(obs)

    def tensors(self, rows: np.ndarray) -> Any:
        """Stored rows [b ...] as tensors on the policy's device, in the structure of the space."""
        device = self.count.device
        return self.seen.structure([torch.from_numpy(array).to(device)
                                    for array in leaf_arrays(rows)])

    @property
    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """A copy of (count [1], mean [f], sum of squared deviations [f]), f64."""
        return self.count.clone(), self.mean.clone(), self.m2.clone()

    def restore(self, state: Sequence[Tensor]) -> None:
        """Replace the moments by a `state`, and the float32 snapshot of them in place."""
        count, mean, m2 = state
        if self.norm:
            columns = torch.from_numpy(self.encoding.normalised).to(self.shift.device)
            scale = torch.where(count > 0, (m2 / count + VARIANCE_EPSILON).rsqrt(), 1.0)
            self.shift.masked_scatter_(columns, mean.to(self.shift))
            self.scale.masked_scatter_(columns, scale.to(self.scale))
        # The count last: if interrupted before, the first moments are still to be set.
        for buffer, value in ((self.mean, mean), (self.m2, m2), (self.count, count)):
            buffer.copy_(value)

    def learn(self, arrays: Sequence[np.ndarray]) -> None:
        """Merge observations, leaves [n ...], into the moments and their snapshot."""
        if self.norm and len(arrays[0]):
            x = self.encoding.encode(arrays, normalised_only=True)
            count, mean, m2 = (value.cpu().numpy() for value in self.state)
            kernels.merge_moments(np.ascontiguousarray(x), count, mean, m2)
            self.restore([torch.from_numpy(value) for value in (count, mean, m2)])

    def _encoded(self, leaf: EncodedLeaf, x: Tensor) -> Tensor:
        """The torch twin of StoredLeaf.encode, in the leaf's own shape, with its normalisation."""
        if leaf.stored.one_hot:  # compared, not scattered: unused rows are poison
            flat = x.reshape(x.shape[0], len(leaf.stored.counts), 1)
            return torch.cat([flat[:, i] == torch.arange(int(count), device=x.device)
                              for i, count in enumerate(leaf.stored.counts)], -1).float()
        if leaf.image:
            return channels_first(leaf.stored.shape, x.float() / 255)
        if not (self.norm and leaf.normalised):
            return x.float()
        flat = x.float().reshape(x.shape[0], leaf.stored.width)
        flat = (flat - self.shift[leaf.columns]) * self.scale[leaf.columns]
        return flat.clamp(-self.limit, self.limit).reshape(x.shape)


def update_snapshot(observer: ObservationNormaliser, keys: Any) -> None:
    """Bring shift and scale, which no state dict has, up to date with the moments it had."""
    observer.restore(observer.state)


def channels_first(shape: tuple[int, ...], x: Tensor) -> Tensor:
    """Images [b h w c] as [b c h w], if the last of the three axes of `shape` is the shortest."""
    last = len(shape) == 3 and min(shape) == shape[2] != shape[0]
    return x.permute(0, 3, 1, 2) if last else x
