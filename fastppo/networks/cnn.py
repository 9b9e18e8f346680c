"""Convolutions: bodies for images, which arrive as float32 [b channels height width], 0 to 1."""

import math
from functools import partial
from typing import Callable, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastppo.envs.observations import StoredLeaf
from fastppo.networks.mlp import HIDDEN_GAIN, DenseEncoder, init_orthogonal
from fastppo.networks.normaliser import channels_first

BRANCH = math.sqrt(2 / 6)  # the gain with which six residual branches double the variance together


class ConvNetwork(NamedTuple):
    """One way of seeing images: its convolutions, features, and the smallest side of an image."""

    convs: Callable[[int, torch.Generator | None], nn.Module]
    size: int
    smallest: int


class ImageEncoder(nn.Module):
    """The body of one image: convolutions, then a dense layer and a ReLU.

    `shape` is (channels, height, width); several frames are channels, one after the other.
    """

    flat = False

    def __init__(self, kind: ConvNetwork, shape: tuple[int, int, int],
                 generator: torch.Generator | None = None, layer_norm: bool = False):
        super().__init__()
        self.convs = kind.convs(shape[0], generator)
        with torch.no_grad():
            wide = self.convs(torch.zeros(1, *shape, dtype=torch.float32)).numel()
        self.dense = DenseEncoder(wide, (kind.size,), "relu", generator, layer_norm)
        self.size = kind.size

    def forward(self, x: Tensor) -> Tensor:
        """Features [b f] of images, as the observer gives them."""
        return self.dense(self.convs(as_planes(x)))


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3x3."""

    def __init__(self, channels: int, generator: torch.Generator | None):
        super().__init__()
        self.first = conv(channels, channels, 3, 1, generator, padding=1)
        self.second = conv(channels, channels, 3, 1, generator, BRANCH, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """As many images of the same size."""
        return x + self.second(F.relu(self.first(F.relu(x))))


def conv(channels: int, out: int, size: int, stride: int, generator: torch.Generator | None,
         gain: float = HIDDEN_GAIN, padding: int = 0) -> nn.Conv2d:
    """A convolution, initialised orthogonally."""
    return init_orthogonal(nn.Conv2d(channels, out, size, stride, padding, dtype=torch.float32), gain,
                      generator)


def nature(channels: int, generator: torch.Generator | None) -> nn.Sequential:
    """Three convolutions [Mnih 2015, methods]."""
    return nn.Sequential(conv(channels, 32, 8, 4, generator), nn.ReLU(),
                         conv(32, 64, 4, 2, generator), nn.ReLU(),
                         conv(64, 64, 3, 1, generator), nn.ReLU())


def impala(channels: int, generator: torch.Generator | None, pooled: bool = False
           ) -> nn.Sequential:
    """Fifteen convolutions in three sections of two residual blocks [Espeholt 2018, figure 3].

    With `pooled` a channel's mean is all that is left of it [Trumpp 2025, arXiv:2503.05546].
    """
    layers = []
    for wide, out in zip((channels, 16, 32), (16, 32, 32)):
        layers += [conv(wide, out, 3, 1, generator, padding=1), nn.MaxPool2d(3, 2, 1),
                   Residual(out, generator), Residual(out, generator)]
    return nn.Sequential(*layers, nn.ReLU(), *[nn.AdaptiveAvgPool2d(1)] * pooled)


IMAGE_NETWORKS = {"cnn": ConvNetwork(nature, 512, 36), "impala": ConvNetwork(impala, 256, 8),
            "impoola": ConvNetwork(partial(impala, pooled=True), 256, 8)}


def image_shape(column: StoredLeaf) -> tuple[int, int, int] | None:
    """(channels, height, width) of a leaf that is an image, or several frames; None of others.

    An image is of bytes, with two axes, or three with the shortest one, the channels, first or
    last; or several of them, with an axis for the frames in front.
    """
    if not column.like_image:
        return None
    x = as_planes(channels_first(column.shape, torch.empty(0, *column.shape, device="meta")))
    return tuple(x.shape[1:])


def as_planes(x: Tensor) -> Tensor:
    """Images as the observer gives them as [b channels height width]: frames become channels."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 5:
        last = x.shape[4] == min(x.shape[2:]) != x.shape[2]
        return (x.permute(0, 1, 4, 2, 3) if last else x).flatten(1, 2)
    return x
