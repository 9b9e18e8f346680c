"""The built-in bodies, by name: what each makes of the observations of a space.

    mlp                    hidden layers on all columns
    cnn, impala, impoola   each image through convolutions of its own (images.NETWORKS); what is
                           beside images as columns beside their features, and hidden layers behind
"""

from typing import Any, Iterator, Sequence

import torch
from gymnasium.spaces import Dict
from torch import Tensor, nn

from fastppo.config import Config
from fastppo.envs.observations import (
    ObservationEncoding,
    ObservationLayout,
    StoredLeaf,
    encoded_width,
)
from fastppo.envs.spaces import subspaces
from fastppo.networks.cnn import IMAGE_NETWORKS, ImageEncoder, image_shape
from fastppo.networks.mlp import DenseEncoder


def make_encoder(seen: ObservationLayout, config: Config, generator: torch.Generator | None = None,
            keys: Sequence[str] | None = None) -> nn.Module:
    """The body that a resolved Config asks for; `keys`: the parts of a Dict that it sees."""
    columns = visible_leaves(seen)
    places = [i for i, column in enumerate(columns) if keys is None or subspace_of(column, seen) in keys]
    if config.model != "mlp":
        return MixedEncoder(columns, places, config, generator)
    sizes = list(map(encoded_width, columns))
    index = [torch.arange(sum(sizes[:i]), sum(sizes[:i + 1])) for i in places]
    layers = DenseEncoder(sum(map(len, index)), config.hidden_sizes, config.activation, generator,
                    config.layer_norm)
    return layers if keys is None else SelectedColumns(torch.cat(index), layers)


def visible_leaves(seen: ObservationLayout) -> list[StoredLeaf]:
    """The leaves that a network sees: all but an action mask."""
    return [column for _, column in ObservationEncoding(seen).columns]


def subspace_of(column: StoredLeaf, seen: ObservationLayout) -> Any:
    """The key of the Dict's part in which a leaf stands, also where a mask was put beside it."""
    return column.leaf.path[seen.wrapped]


def subspace_names(seen: ObservationLayout) -> list[str]:
    """The parts of a Dict observation by name, but for a mask; none of other spaces."""
    return [key for key, _ in subspaces(seen.shown)] if isinstance(seen.shown, Dict) else []


class SelectedColumns(nn.Module):
    """A body of some of the columns."""

    flat = True

    def __init__(self, index: Tensor, body: DenseEncoder):
        super().__init__()
        self.register_buffer("index", index, persistent=False)
        self.body, self.size, self.widths = body, body.size, body.widths

    def forward(self, obs: Tensor) -> Tensor:
        """Features [b f] of columns [b o]."""
        return self.body(obs[:, self.index])


class MixedEncoder(nn.Module):
    """A body of several leaves, those at `places`: images by convolutions, the rest as it is.

    Hidden layers are behind them, unless an image is all there is.
    """

    flat = False

    def __init__(self, columns: Sequence[StoredLeaf], places: Sequence[int], config: Config,
                 generator: torch.Generator | None):
        super().__init__()
        kind, self.places = IMAGE_NETWORKS[config.model], list(places)
        seen = [columns[i] for i in places]
        self.parts = nn.ModuleList(
            ImageEncoder(kind, image_shape(column), generator, config.layer_norm) if is_large_image(column, kind)
            else DenseEncoder(encoded_width(column), ()) for column in seen)
        alone = len(seen) == 1 and is_large_image(seen[0], kind)
        self.hidden = DenseEncoder(sum(one.size for one in self.parts), () if alone
                             else config.hidden_sizes, config.activation, generator,
                             config.layer_norm)
        self.size, self.widths = self.hidden.size, self.hidden.widths

    def forward(self, seen: Any) -> Tensor:
        """Features [b f] of the structure that the observer makes."""
        found = list(structure_leaves(seen))
        return self.hidden(torch.cat([one(found[i]) for one, i in zip(self.parts, self.places)],
                                     -1))


def is_large_image(column: StoredLeaf, kind: Any) -> bool:
    """Whether a leaf is an image that convolutions of `kind` can see."""
    shape = image_shape(column)
    return shape is not None and min(shape[1:]) >= kind.smallest


def structure_leaves(seen: Any) -> Iterator[Tensor]:
    """The tensors of a structure, in the order of its space's leaves."""
    if isinstance(seen, (dict, tuple)):
        for inner in seen.values() if isinstance(seen, dict) else seen:
            yield from structure_leaves(inner)
    else:
        yield seen
