"""The built-in encoders by name, and the parts of an observation that each one takes.

    mlp                    hidden layers on all columns
    cnn, impala ...        convolutions for each image (cnn.IMAGE_NETWORKS), then hidden layers on
                           their features and on the columns of everything else
"""

from typing import Any, Sequence

import torch
from torch import Tensor, nn

from fastppo.config import IMAGE_MODELS, Config
from fastppo.networks.mlp import DenseEncoder
from fastppo.spaces.leaves import leaves
from fastppo.spaces.observations import ObservationEncoding, ObservationLayout


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
        from fastppo.networks.cnn import IMAGE_NETWORKS, ImageEncoder
        kind, stored = IMAGE_NETWORKS[config.model], ObservationEncoding(layout).leaves
        self.leaves = [leaves(layout.network_space)[i] for i in places]
        shapes, smallest = [leaf.image_shape for leaf in stored], IMAGE_MODELS[config.model]
        self.image_leaves = [i for i, shape in enumerate(shapes)
                             if shape is not None and min(shape[1:]) >= smallest]
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
