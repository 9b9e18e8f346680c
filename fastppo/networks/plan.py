"""The plan of a built-in network: its layers as rows of numbers, for the compiled kernels.

    (src, dst, n_in, n_out, w_offset, b_offset, activation, kind, channels, width, size, stride)

The columns are described in csrc/network/forward.h.
"""

import itertools
from typing import Iterator, Mapping, Sequence

import numpy as np
from torch import nn

from fastppo.machine.kernels import CONVOLUTION, FLATTEN, IMAGE
from fastppo.networks.encoders import MixedEncoder
from fastppo.networks.mlp import ACTIVATION_CODES, ActorCritic
from fastppo.spaces.observations import StoredLeaf

PLAN_COLUMNS = 12
OUTPUT = -1  # in place of a buffer


def network_plan(net: ActorCritic, offsets: Mapping[int, int], image: StoredLeaf | None = None
                 ) -> np.ndarray:
    """The layers of `net` as rows, i64 [l 12].

    `offsets` maps id(parameter) to its place in the flat vector. `image` is the observation, if the
    network sees it as one.
    """
    rows = [] if image is None else [image_row(image)]
    buffers, features = itertools.count(1), {}
    for body, head in ((net.actor_body, net.actor), (net.critic_body, net.critic)):
        if body not in features:  # a shared body is computed once
            features[body] = src = 0
            for layer in body_rows(body, offsets, image):
                features[body] = next(buffers)
                rows.append((src, features[body], *layer))
                src = features[body]
        rows.append((features[body], OUTPUT, *dense_row(head, 0, offsets)))
    return plan_array(rows)


def plan_array(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Rows as i64 [l 12]; columns that are missing are 0."""
    return np.array([(*row, *[0] * (PLAN_COLUMNS - len(row))) for row in rows], np.int64)


def image_row(image: StoredLeaf) -> tuple[int, ...]:
    """The row of an image that is the observation: how its bytes lie, and which becomes 1."""
    planes, height, width = image.image_shape
    last = image.shape[-2:] != (height, width)
    frames = image.shape[0] if len(image.shape) == 4 else 1
    size = planes * height * width
    return 0, 0, size, size, 0, 0, 0, IMAGE, planes // frames, height * width, int(last), \
        int(image.image_range[1])


def body_rows(body: nn.Module, offsets: Mapping[int, int], image: StoredLeaf | None
              ) -> Iterator[tuple[int, ...]]:
    """The rows of a body's layers, without the buffers."""
    if not isinstance(body, MixedEncoder):
        yield from dense_rows(body, offsets)
        return
    encoder = body.parts[0]
    channels, height, width = image.image_shape
    for layer, activation in pairs(encoder.convs):
        inputs, (size, _), (stride, _) = channels * height * width, layer.kernel_size, layer.stride
        geometry = CONVOLUTION, channels, width, size, stride
        channels = layer.out_channels
        height, width = ((side - size) // stride + 1 for side in (height, width))
        yield (inputs, channels * height * width, *places(layer, offsets), activation, *geometry)
    yield (encoder.dense.inputs,) * 2 + (0, 0, 0, FLATTEN, channels)
    yield from dense_rows(encoder.dense, offsets)


def dense_rows(layers: nn.Sequential, offsets: Mapping[int, int]) -> Iterator[tuple[int, ...]]:
    """The rows of dense layers, each followed by its activation."""
    for layer, activation in pairs(layers):
        yield dense_row(layer, activation, offsets)


def dense_row(layer: nn.Linear, activation: int, offsets: Mapping[int, int]) -> tuple[int, ...]:
    """The row of one dense layer."""
    return layer.in_features, layer.out_features, *places(layer, offsets), activation


def places(layer: nn.Linear | nn.Conv2d, offsets: Mapping[int, int]) -> tuple[int, int]:
    """The places of weight and bias in the flat vector."""
    return offsets[id(layer.weight)], offsets[id(layer.bias)]


def pairs(layers: nn.Sequential) -> Iterator[tuple[nn.Module, int]]:
    """Layers with the codes of the activations that follow them."""
    every = list(layers)
    for layer, activation in zip(every[::2], every[1::2]):
        yield layer, ACTIVATION_CODES[type(activation)]
