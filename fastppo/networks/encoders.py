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
from fastppo.envs.observations import Column, Encoding, Observations, width
from fastppo.envs.spaces import parts
from fastppo.networks.cnn import NETWORKS, Picture, picture
from fastppo.networks.mlp import Hidden


def body_of(seen: Observations, config: Config, generator: torch.Generator | None = None,
            keys: Sequence[str] | None = None) -> nn.Module:
    """The body that a resolved Config asks for; `keys`: the parts of a Dict that it sees."""
    columns = columns_of(seen)
    places = [i for i, column in enumerate(columns) if keys is None or part(column, seen) in keys]
    if config.model != "mlp":
        return Mixed(columns, places, config, generator)
    sizes = list(map(width, columns))
    index = [torch.arange(sum(sizes[:i]), sum(sizes[:i + 1])) for i in places]
    layers = Hidden(sum(map(len, index)), config.hidden_sizes, config.activation, generator,
                    config.layer_norm)
    return layers if keys is None else Chosen(torch.cat(index), layers)


def columns_of(seen: Observations) -> list[Column]:
    """The leaves that a network sees: all but an action mask."""
    return [column for _, column in Encoding(seen).columns]


def part(column: Column, seen: Observations) -> Any:
    """The key of the Dict's part in which a leaf stands, also where a mask was put beside it."""
    return column.leaf.path[seen.wrapped]


def names_of(seen: Observations) -> list[str]:
    """The parts of a Dict observation by name, but for a mask; none of other spaces."""
    return [key for key, _ in parts(seen.shown)] if isinstance(seen.shown, Dict) else []


class Chosen(nn.Module):
    """A body of some of the columns."""

    flat = True

    def __init__(self, index: Tensor, body: Hidden):
        super().__init__()
        self.register_buffer("index", index, persistent=False)
        self.body, self.size, self.widths = body, body.size, body.widths

    def forward(self, obs: Tensor) -> Tensor:
        """Features [b f] of columns [b o]."""
        return self.body(obs[:, self.index])


class Mixed(nn.Module):
    """A body of several leaves, those at `places`: images by convolutions, the rest as it is.

    Hidden layers are behind them, unless an image is all there is.
    """

    flat = False

    def __init__(self, columns: Sequence[Column], places: Sequence[int], config: Config,
                 generator: torch.Generator | None):
        super().__init__()
        kind, self.places = NETWORKS[config.model], list(places)
        seen = [columns[i] for i in places]
        self.parts = nn.ModuleList(
            Picture(kind, picture(column), generator, config.layer_norm) if large(column, kind)
            else Hidden(width(column), ()) for column in seen)
        alone = len(seen) == 1 and large(seen[0], kind)
        self.hidden = Hidden(sum(one.size for one in self.parts), () if alone
                             else config.hidden_sizes, config.activation, generator,
                             config.layer_norm)
        self.size, self.widths = self.hidden.size, self.hidden.widths

    def forward(self, seen: Any) -> Tensor:
        """Features [b f] of the structure that the observer makes."""
        found = list(tensors(seen))
        return self.hidden(torch.cat([one(found[i]) for one, i in zip(self.parts, self.places)],
                                     -1))


def large(column: Column, kind: Any) -> bool:
    """Whether a leaf is an image that convolutions of `kind` can see."""
    shape = picture(column)
    return shape is not None and min(shape[1:]) >= kind.smallest


def tensors(seen: Any) -> Iterator[Tensor]:
    """The tensors of a structure, in the order of its space's leaves."""
    if isinstance(seen, (dict, tuple)):
        for inner in seen.values() if isinstance(seen, dict) else seen:
            yield from tensors(inner)
    else:
        yield seen
