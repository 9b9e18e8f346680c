"""The built-in encoders by name, and the parts of an observation that each one takes.

mlp                    hidden layers on all columns
cnn, impala, impoola   convolutions for each image (IMAGE_NETWORKS), then hidden layers on their
                       features and on the columns of everything else

The compiled kernels run an mlp by its plan. In bf16 layers the numbers that flow are rounded to
8 bits, the weights are not.
"""

import itertools
import math
from functools import partial
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastppo.config import IMAGE_MODELS, Config
from fastppo.machine.kernels import CONVOLUTION, FLATTEN, IMAGE, SCAN
from fastppo.networks.normaliser import channels_last
from fastppo.spaces.leaves import BOARD_SIDE, leaves, tree_map
from fastppo.spaces.observations import ObservationEncoding, ObservationLayout, StoredLeaf

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU, "gelu": nn.GELU,
               "leaky_relu": nn.LeakyReLU}
ACTIVATION_CODES = {nn.Tanh: 1, nn.ReLU: 2, nn.ELU: 3}  # of kernels.forward; 0 is none
COMPILED_ACTIVATIONS = [name for name, kind in ACTIVATIONS.items() if kind in ACTIVATION_CODES]
HIDDEN_GAIN = math.sqrt(2)  # of layers before a nonlinearity [37 details, number 2]
BRANCH_GAIN = math.sqrt(2 / 6)  # with it six residual branches together double the variance
OUTPUT = -1  # in place of a buffer
DENSE = 0, 0, 0, 0, 0  # kind and geometry in the row of a dense layer


def init_orthogonal(layer: nn.Module, gain: float, generator: torch.Generator | None) -> nn.Module:
    """`layer` with orthogonal weights of that gain, drawn from `generator`, and zero biases."""
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


class DenseEncoder(nn.Sequential):
    """Dense layers with one activation, initialised orthogonally with gain sqrt 2, zero biases.

    With `layer_norm` each layer is normalised before its activation. Without layers the features
    are the columns.
    """

    flat, image_leaves = True, ()

    def __init__(self, inputs: int, hidden_sizes: Sequence[int], activation: str = "tanh",
                 generator: torch.Generator | None = None, layer_norm: bool = False):
        widths, layers = [inputs, *hidden_sizes], []
        for size, next_size in zip(widths, widths[1:]):
            dense = nn.Linear(size, next_size, dtype=torch.float32)
            layers.append(init_orthogonal(dense, HIDDEN_GAIN, generator))
            if layer_norm:
                layers.append(nn.LayerNorm(next_size, dtype=torch.float32))
            layers.append(ACTIVATIONS[activation]())
        super().__init__(*layers)
        self.inputs, self.size, self.widths = inputs, widths[-1], widths

    def forward(self, obs: Tensor) -> Tensor:
        """Features [b f] of observations [b ...], flattened."""
        return super().forward(obs.reshape(obs.shape[0], self.inputs))


class ActorCritic(nn.Module):
    """Two encoders, or one that is shared, followed by a linear actor and a linear critic.

    Their gains are 0.01 and 1 [37 details, number 2]. With `features` the actor's features follow
    the action parameters, for gSDE. Parameters in `final_tanh`, bool [p], pass through a tanh.
    """

    def __init__(self, actor_body: nn.Module, critic_body: nn.Module, outputs: int,
                 generator: torch.Generator | None = None, features: bool = False,
                 final_tanh: np.ndarray | None = None):
        super().__init__()
        self.flat, self.image_leaves = actor_body.flat, actor_body.image_leaves
        columns = None if final_tanh is None else torch.from_numpy(final_tanh)
        self.register_buffer("final_tanh", columns, persistent=False)
        self.actor_body, self.critic_body, self.features = actor_body, critic_body, features
        self.actor = nn.Linear(actor_body.size, outputs, dtype=torch.float32)
        init_orthogonal(self.actor, 0.01, generator)
        self.critic = nn.Linear(critic_body.size, 1, dtype=torch.float32)
        init_orthogonal(self.critic, 1.0, generator)

    def forward(self, obs) -> tuple[Tensor, Tensor]:
        """(action parameters [b p], value [b]) of normalised observations."""
        hidden = self.actor_body(obs)
        shared = self.critic_body is self.actor_body
        return self.apply_heads(hidden, hidden if shared else self.critic_body(obs))

    def apply_heads(self, hidden: Tensor, critic_hidden: Tensor) -> tuple[Tensor, Tensor]:
        """(action parameters [b p], value [b]) of the actor's and the critic's features [b f]."""
        params, val = self.actor(hidden), self.critic(critic_hidden).squeeze(-1)
        if self.final_tanh is not None:
            params = torch.where(self.final_tanh, params.tanh(), params)
        return torch.cat([params, hidden], -1) if self.features else params, val


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
        if x.ndim == 3:
            x = x[:, None]
        elif x.ndim == 5:  # stacked frames
            x = x.flatten(1, 2)
        return self.dense(self.convs(channels_last(x)))


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


class PaddedSequential(nn.Sequential):
    """Layers for images, which get zeros below and on the right up to 8 x 8."""

    def forward(self, x: Tensor) -> Tensor:
        """What the layers make of images [b c h w]."""
        down, across = (max(0, BOARD_SIDE - side) for side in x.shape[-2:])
        return super().forward(F.pad(x, (0, across, 0, down)) if down or across else x)


def impala(channels: int, generator: torch.Generator | None, pooled: bool = False
           ) -> nn.Sequential:
    """Fifteen convolutions in three sections of two residual blocks [Espeholt 2018, figure 3].

    With `pooled` a global average pooling follows [Trumpp 2025, arXiv:2503.05546].
    """
    layers = []
    for inputs, outputs in zip((channels, 16, 32), (16, 32, 32)):
        layers += [conv(inputs, outputs, 3, 1, generator, padding=1), nn.MaxPool2d(3, 2, 1),
                   Residual(outputs, generator), Residual(outputs, generator)]
    return PaddedSequential(*layers, nn.ReLU(), *[nn.AdaptiveAvgPool2d(1)] * pooled)


IMAGE_NETWORKS = {"cnn": ConvNetwork(nature, 512), "impala": ConvNetwork(impala, 256),
                  "impoola": ConvNetwork(partial(impala, pooled=True), 256)}


@torch.no_grad()
def conv_features(convs: nn.Module, shape: tuple[int, int, int]) -> int:
    """The number of features that convolutions make of an image (channels, height, width)."""
    return convs(torch.zeros(1, *shape, dtype=torch.float32)).numel()


def make_encoder(layout: ObservationLayout, config: Config,
                 generator: torch.Generator | None = None,
                 keys: Sequence[str] | None = None) -> nn.Module:
    """The encoder of a resolved Config; `keys`: the parts of a Dict that it sees, None for all."""
    encoding = ObservationEncoding(layout)
    places = [i for i, leaf in enumerate(leaves(layout.network_space))
              if keys is None or leaf.path[0] in keys]
    if config.model != "mlp":
        return MixedEncoder(layout, places, config, generator)
    columns = torch.cat([torch.arange(encoding.size)[encoding.columns[i]] for i in places])
    layers = DenseEncoder(len(columns), config.hidden_sizes, config.activation, generator,
                          config.layer_norm)
    return layers if keys is None else SelectedColumns(columns, layers)


class SelectedColumns(nn.Module):
    """An encoder of some of the columns."""

    flat, image_leaves = True, ()

    def __init__(self, index: Tensor, body: DenseEncoder):
        super().__init__()
        self.register_buffer("index", index, persistent=False)
        self.body, self.size, self.widths = body, body.size, body.widths

    def forward(self, obs: Tensor) -> Tensor:
        """Features [b f] of columns [b o]."""
        return self.body(obs[:, self.index])


class MixedEncoder(nn.Module):
    """An encoder of the leaves at `places`: convolutions for images, columns for the rest.

    Hidden layers follow, unless the only leaf is an image.
    """

    flat = False

    def __init__(self, layout: ObservationLayout, places: Sequence[int], config: Config,
                 generator: torch.Generator | None):
        super().__init__()
        kind, stored = IMAGE_NETWORKS[config.model], ObservationEncoding(layout).leaves
        self.leaves = [leaves(layout.network_space)[i] for i in places]
        shapes = [leaf.convolved(IMAGE_MODELS[config.model]) for leaf in stored]
        self.image_leaves = [i for i, shape in enumerate(shapes) if shape]
        self.parts = nn.ModuleList(
            ImageEncoder(kind, shapes[i], generator, config.layer_norm)
            if i in self.image_leaves else DenseEncoder(stored[i].width, ()) for i in places)
        alone = len(places) == 1 and places[0] in self.image_leaves
        self.hidden = DenseEncoder(sum(part.size for part in self.parts),
                                   () if alone else config.hidden_sizes, config.activation,
                                   generator, config.layer_norm)
        self.size, self.widths = self.hidden.size, self.hidden.widths

    def forward(self, obs: Any) -> Tensor:
        """Features [b f] of the structure that the normaliser returns."""
        features = [part(leaf.of(obs)) for part, leaf in zip(self.parts, self.leaves)]
        return self.hidden(features[0] if len(features) == 1 else torch.cat(features, -1))


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


def network_plan(net: ActorCritic, offsets: Mapping[int, int], image: StoredLeaf | None = None
                 ) -> np.ndarray:
    """The layers of `net` as rows, i64 [l 12].

    `offsets` maps id(parameter) to its place in the flat vector. `image` is the observation, if the
    network sees it as one.
    """
    rows, buffers, features, memory = [], itertools.count(1), {}, 0
    if image is not None:  # how its bytes lie, and which becomes 1
        planes, height, width = image.image_shape
        size, last = planes * height * width, image.shape[-2:] != (height, width)
        frames = image.shape[0] if len(image.shape) == 4 else 1
        rows.append((0, 0, size, size, 0, 0, 0, IMAGE, planes // frames, height * width, int(last),
                     int(image.image_range[1])))
    for body, head in ((net.actor_body, net.actor), (net.critic_body, net.critic)):
        if body not in features:  # a shared body is computed once
            features[body] = src = 0
            for layer in body_rows(body, offsets, image, memory):
                features[body] = next(buffers)
                rows.append((src, features[body], *layer))
                src = features[body]
            memory += getattr(body, "state_size", 0)
        rows.append((features[body], OUTPUT, head.in_features, head.out_features,
                     offsets[id(head.weight)], offsets[id(head.bias)], 0, *DENSE))
    return np.array(rows, np.int64)


def body_rows(body: nn.Module, offsets: Mapping[int, int], image: StoredLeaf | None,
              memory: int = 0) -> Iterator[tuple[int, ...]]:
    """The rows of a body's layers, without the buffers; an activation follows each layer.

    A minGRU remembers its state from the place `memory` on.
    """
    if hasattr(body, "cell"):
        yield from body_rows(body.body, offsets, image)
        cell, size = body.cell, body.state_size
        yield (cell.in_features, cell.out_features, offsets[id(cell.weight)],
               offsets[id(cell.bias)], 0, *DENSE)
        yield 2 * size, size, 0, 0, 0, SCAN, memory, 0, 0, 0
        return
    layers = [*body] if image is None else [*body.parts[0].convs, *body.parts[0].dense]
    channels, height, width = (0, 0, 0) if image is None else image.image_shape
    for layer, activation in zip(layers[::2], layers[1::2]):
        inputs, geometry = channels * height * width, DENSE
        if isinstance(layer, nn.Conv2d):
            (size, _), (stride, _) = layer.kernel_size, layer.stride
            geometry, channels = (CONVOLUTION, channels, width, size, stride), layer.out_channels
            height, width = ((side - size) // stride + 1 for side in (height, width))
            outputs = channels * height * width
        else:
            if channels:
                yield inputs, inputs, 0, 0, 0, FLATTEN, channels, 0, 0, 0
            inputs, outputs, channels = layer.in_features, layer.out_features, 0
        yield (inputs, outputs, offsets[id(layer.weight)], offsets[id(layer.bias)],
               ACTIVATION_CODES[type(activation)], *geometry)
