"""Convolutional encoders of images, float32 [b channels height width] from 0 to 1."""

import math
from functools import partial
from typing import Callable, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastppo.networks.mlp import HIDDEN_GAIN, DenseEncoder, init_orthogonal
from fastppo.networks.normaliser import channels_last
from fastppo.spaces.leaves import channels_are_last

BRANCH_GAIN = math.sqrt(2 / 6)  # with it six residual branches together double the variance


class ConvNetwork(NamedTuple):
    """A named stack of convolutions: how to make it, and its features."""

    convs: Callable[[int, torch.Generator | None], nn.Module]
    size: int


class ImageEncoder(nn.Module):
    """The encoder of one image: convolutions, then a dense layer and a ReLU.

    `shape` is (channels, height, width); stacked frames are more channels.
    """

    def __init__(self, kind: ConvNetwork, shape: tuple[int, int, int],
                 generator: torch.Generator | None = None, layer_norm: bool = False):
        super().__init__()
        self.convs, self.size = kind.convs(shape[0], generator), kind.size
        self.dense = DenseEncoder(conv_features(self.convs, shape), (kind.size,), "relu", generator,
                                  layer_norm)

    def forward(self, x: Tensor) -> Tensor:
        """Features [b f] of images as the normaliser returns them."""
        return self.dense(self.convs(channels_last(frames_as_channels(x))))


class Residual(nn.Module):
    """x + conv(relu(conv(relu(x)))), 3x3."""

    def __init__(self, channels: int, generator: torch.Generator | None):
        super().__init__()
        self.first = conv(channels, channels, 3, 1, generator, padding=1)
        self.second = conv(channels, channels, 3, 1, generator, BRANCH_GAIN, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Features of the same shape."""
        return x + self.second(F.relu(self.first(F.relu(x))))


def conv(channels: int, out: int, size: int, stride: int, generator: torch.Generator | None,
         gain: float = HIDDEN_GAIN, padding: int = 0) -> nn.Conv2d:
    """A convolution, initialised orthogonally."""
    layer = nn.Conv2d(channels, out, size, stride, padding, dtype=torch.float32)
    return init_orthogonal(layer, gain, generator)


def nature(channels: int, generator: torch.Generator | None) -> nn.Sequential:
    """Three convolutions [Mnih 2015, methods]."""
    return nn.Sequential(conv(channels, 32, 8, 4, generator), nn.ReLU(),
                         conv(32, 64, 4, 2, generator), nn.ReLU(),
                         conv(64, 64, 3, 1, generator), nn.ReLU())


def impala(channels: int, generator: torch.Generator | None, pooled: bool = False
           ) -> nn.Sequential:
    """Fifteen convolutions in three sections of two residual blocks [Espeholt 2018, figure 3].

    With `pooled` a global average pooling follows [Trumpp 2025, arXiv:2503.05546].
    """
    layers = []
    for inputs, outputs in zip((channels, 16, 32), (16, 32, 32)):
        layers += [conv(inputs, outputs, 3, 1, generator, padding=1), nn.MaxPool2d(3, 2, 1),
                   Residual(outputs, generator), Residual(outputs, generator)]
    return nn.Sequential(*layers, nn.ReLU(), *[nn.AdaptiveAvgPool2d(1)] * pooled)


IMAGE_NETWORKS = {"cnn": ConvNetwork(nature, 512), "impala": ConvNetwork(impala, 256),
                  "impoola": ConvNetwork(partial(impala, pooled=True), 256)}


@torch.no_grad()
def conv_features(convs: nn.Module, shape: tuple[int, int, int]) -> int:
    """The number of features that convolutions make of an image (channels, height, width)."""
    return convs(torch.zeros(1, *shape, dtype=torch.float32)).numel()


def dense_weights(model: str, shape: tuple[int, int, int]) -> int:
    """The weights of the dense layer of an ImageEncoder, where nearly all of them are."""
    kind = IMAGE_NETWORKS[model]
    return kind.size * conv_features(kind.convs(shape[0], None), shape)


def frames_as_channels(x: Tensor) -> Tensor:
    """Images as the normaliser returns them, as [b channels height width]."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 5:
        return (x.permute(0, 1, 4, 2, 3) if channels_are_last(x.shape[2:]) else x).flatten(1, 2)
    return x
