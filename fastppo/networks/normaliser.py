"""Encodes stored observations for a network, and normalises them by running moments."""

from typing import Any, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fastppo.machine import kernels
from fastppo.spaces.leaves import build_structure, channels_are_last, leaf_arrays
from fastppo.spaces.observations import ObservationEncoding, ObservationLayout, StoredLeaf

VARIANCE_EPSILON = 1e-8


class RunningMoments(nn.Module):
    """The count [1], mean [f] and sum of squared deviations m2 [f] of rows, float64 [Chan 1979]."""

    def __init__(self, size: int):
        super().__init__()
        for name, numbers in (("count", 1), ("mean", size), ("m2", size)):
            self.register_buffer(name, torch.zeros(numbers, dtype=torch.float64))

    @property
    def state(self) -> tuple[Tensor, Tensor, Tensor]:
        """A copy of (count, mean, m2)."""
        return self.count.clone(), self.mean.clone(), self.m2.clone()

    def merge(self, rows: np.ndarray) -> None:
        """Merges rows f32 [n f] into the moments."""
        count, mean, m2 = (x.cpu().numpy() for x in self.state)
        kernels.merge_moments(np.ascontiguousarray(rows), count, mean, m2)
        self.restore([torch.from_numpy(x) for x in (count, mean, m2)])

    def merge_tensor(self, rows: Tensor) -> None:
        """`merge` of rows [n f] that are on the device of the moments."""
        (count, mean, m2), rows = self.state, rows.double()
        var, found = torch.var_mean(rows, 0, correction=0)  # which keeps no copies of all rows
        far, both = found - mean, count + len(rows)
        m2 += var * len(rows) + far.square() * (count * len(rows) / both)
        self.restore([both, mean + far * (len(rows) / both), m2])

    def restore(self, state: Sequence[Tensor]) -> None:
        """Replaces the moments by a `state`, in place."""
        count, mean, m2 = state
        # The count last: if interrupted before, the first moments are still to be set.
        for buffer, value in ((self.mean, mean), (self.m2, m2), (self.count, count)):
            buffer.copy_(value)


class ObservationNormaliser(RunningMoments):
    """Stored observations to float32: `flat` columns [b o], or the structure of the space.

    Numbers are clip((x - mean) / sqrt(var + 1e-8), +-limit) if `norm_obs`, else unchanged. Images
    of uint8 are divided by their largest bound, channels first; in a flat network only without
    `norm_obs`. Boards that the network sees as images are unchanged, channels first. Choices are
    one-hot. The action mask is left out.

    `images` are the leaves, counted without the mask, that the network sees as images. By default
    these are all Boxes that look like one and boards, but none for a flat network.
    """

    def __init__(self, layout: ObservationLayout, norm_obs: bool = True, flat: bool = False,
                 limit: float = 10.0, images: Sequence[int] | None = None):
        if images is None:
            visible = ObservationEncoding(layout).leaves
            images = [i for i, leaf in enumerate(visible)
                      if (leaf.like_image or leaf.board) and not flat]
        encoding = ObservationEncoding(layout, images, norm_obs)
        norm = bool(encoding.normalised.any())
        super().__init__(int(encoding.normalised.sum()) if norm else 0)
        self.layout, self.encoding, self.norm = layout, encoding, norm
        self.flat, self.limit = flat, float(limit)
        self.channels_last = False  # images; set once the network is known to take it
        columns = encoding.size if norm else 0
        self.register_buffer("shift", torch.zeros(columns, dtype=torch.float32), persistent=False)
        self.register_buffer("scale", torch.ones(columns, dtype=torch.float32), persistent=False)
        self.register_load_state_dict_post_hook(update_snapshot)

    def forward(self, obs: Any) -> Any:
        """The network's input for observations [b ...], tensors in the structure of the space."""
        leaves = self.encoding.leaves
        inputs = [self._encoded(i, stored, stored.leaf.of(obs)) for i, stored in enumerate(leaves)]
        if self.flat:
            return torch.cat([x.reshape(x.shape[0], stored.width)
                              for stored, x in zip(leaves, inputs)], -1)
        return build_structure(self.layout.network_space, iter(inputs))

    def mask(self, obs: Any) -> Tensor | None:
        """The action mask, bool [b choices], of observations; None if there is none."""
        mask = self.layout.mask
        return None if mask is None else self.layout.leaves[mask].leaf.of(obs)

    def tensors(self, rows: np.ndarray) -> Any:
        """Stored rows [b ...] as tensors on the policy's device, in the structure of the space."""
        return self.layout.structure([torch.from_numpy(array).to(self.count.device)
                                      for array in leaf_arrays(rows)])

    def learn(self, arrays: Sequence[np.ndarray]) -> None:
        """Merges observations, leaves [n ...], into the moments; the network sees them from now."""
        if self.norm and len(arrays[0]):
            self.merge(self.encoding.encode(arrays, numbers_only=True))

    def learn_from(self, obs: Any) -> None:
        """Merges observations [b ...], tensors in the structure of the space, into the moments."""
        first = self.layout.leaves[0].leaf.of(obs)
        if first.device.type == "cpu":
            self.learn(self.layout.split(obs))
        elif self.norm and len(first):
            self.merge_tensor(torch.cat([
                x.leaf.of(obs).float().reshape(len(first), x.width)
                for x, number in zip(self.encoding.leaves, self.encoding.numbers) if number], 1))

    def restore(self, state: Sequence[Tensor]) -> None:
        """Replaces the moments by a `state`, and their float32 snapshot, all in place."""
        count, mean, m2 = state
        if self.norm:
            columns = torch.from_numpy(self.encoding.normalised).to(self.shift.device)
            scale = torch.where(count > 0, (m2 / count + VARIANCE_EPSILON).rsqrt(), 1.0)
            self.shift.masked_scatter_(columns, mean.to(self.shift))
            self.scale.masked_scatter_(columns, scale.to(self.scale))
        super().restore(state)

    def _encoded(self, i: int, stored: StoredLeaf, x: Tensor) -> Tensor:
        """The torch twin of StoredLeaf.encode, in the leaf's own shape, and its normalisation."""
        if stored.one_hot:  # compared, not scattered: unused rows are poison
            flat = x.reshape(x.shape[0], len(stored.counts), 1)
            return torch.cat([flat[:, factor] == torch.arange(int(count), device=x.device)
                              for factor, count in enumerate(stored.counts)], -1).float()
        if i in self.encoding.images:
            x = x.movedim(-1, -3) if channels_are_last(stored.shape[-3:]) else x
            x = channels_last(x) if self.channels_last else x  # bytes, a quarter of the floats
            return self.encoding.scaled(i, x).float()
        if not self.encoding.numbers[i]:
            return self.encoding.scaled(i, x).float()  # a byte becomes one in the division
        columns = self.encoding.columns[i]
        flat = x.float().reshape(x.shape[0], stored.width)
        flat = (flat - self.shift[columns]) * self.scale[columns]
        return flat.clamp(-self.limit, self.limit).reshape(x.shape)


def update_snapshot(observer: ObservationNormaliser, keys: Any) -> None:
    """Sets shift and scale, which a state dict does not have, from the moments it had."""
    observer.restore(observer.state)


def channels_last(x: Tensor) -> Tensor:
    """Images [b c h w] with the channels last in memory, where convolutions are faster.

    Shape and values stay; images without channels and stacks of images are left as they are.
    """
    return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x
