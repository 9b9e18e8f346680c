"""What a policy sees of an observation, and what it answers, as data."""

from typing import Any, NamedTuple, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributions as td
from torch.nn import functional as F

from fastppo.networks import heads
from fastppo.policy import Policy
from fastppo.spaces.leaves import channels_are_last, leaf_arrays, leaves
from fastppo.spaces.observations import ObservationEncoding

SHOWN_DEVIATIONS = 3.0  # normalised observations are shown up to this
TINY = 1e-6  # of others, an input that is always 0


class Choices(NamedTuple):
    """The probabilities of choices, or of bits to be 1."""

    probs: np.ndarray  # f32 [n]


class Normals(NamedTuple):
    """The means and standard deviations of numbers, as they are sampled."""

    mean: np.ndarray  # f32 [a]
    std: np.ndarray  # f32 [a]


class NetworkView(NamedTuple):
    """The inputs of the network at one step, and its outputs."""

    images: list[np.ndarray]  # u8 [h w] or [h w 3], the frames of image observations
    numbers: np.ndarray  # f32 [k], the other inputs: normalised, choices one-hot
    limits: np.ndarray  # f32 [k], each number is shown between -limit and limit
    actions: list[Choices | Normals]  # one for each factor or part of the action space
    value: float
    parts: Sequence[tuple[str, int]] = ()  # key, and how many of the numbers, of a Dict or Tuple
    normalised: bool = False  # the numbers are, by the observer
    names: Sequence[str] = ()  # of the choices, if there is one Choices; () for their numbers


@torch.inference_mode()
def network_view(policy: Policy, rows: np.ndarray, states: np.ndarray) -> NetworkView:
    """The view of a stored observation [1 ...] with the recurrent state f32 [1 s]."""
    observer = policy.observer
    stored = observer.tensors(rows)
    params, value, _ = policy.step(stored, torch.from_numpy(states).to(observer.count.device))
    arrays = [array[0] for i, array in enumerate(leaf_arrays(rows)) if i != observer.layout.mask]
    seen = [leaf.like_image or i in observer.encoding.images
            for i, leaf in enumerate(observer.encoding.leaves)]
    images = [frame for i, array in enumerate(arrays) if seen[i]
              for frame in image_frames(as_bytes(observer.encoding, i, array))]
    named = zip(seen, leaves(observer.layout.network_space), network_inputs(policy, stored))
    found = [(".".join(map(str, place.path)), part) for image, place, part in named if not image]
    numbers = [part for _, part in found]
    shown = np.nan_to_num(np.concatenate([np.zeros(0, np.float32), *numbers]))
    limits = np.full_like(shown, SHOWN_DEVIATIONS) if observer.norm else \
        np.maximum(np.abs(shown), TINY)
    return NetworkView(images, shown, limits, action_view(policy.head, params), float(value),
                       [(key, len(part)) for key, part in found if key], observer.norm)


def network_inputs(policy: Policy, stored: Any) -> list[np.ndarray]:
    """The network's input for each leaf of a stored observation, tensors [1 ...]: f32 [k]."""
    observer = policy.observer
    x = observer(stored)
    parts = [x[0, columns] for columns in observer.encoding.columns] if observer.flat else [
        leaf.of(x)[0].flatten() for leaf in leaves(observer.layout.network_space)]
    return [part.cpu().numpy() for part in parts]


def as_bytes(encoding: ObservationEncoding, i: int, image: np.ndarray) -> np.ndarray:
    """The image of leaf `i` in uint8, with floats scaled from their bounds."""
    if image.dtype == np.uint8:
        return image
    return np.clip(encoding.scaled(i, image) * 255, 0, 255).round().astype(np.uint8)


def image_frames(array: np.ndarray) -> list[np.ndarray]:
    """The pictures, [h w] or [h w 3], in an image observation: its channels or stacked frames."""
    if array.ndim == 4:
        return [picture for frame in array for picture in image_frames(frame)]
    if array.ndim == 2:
        return [array]
    if channels_are_last(array.shape):
        return [array] if array.shape[2] == 3 else [*np.moveaxis(array, 2, 0)]
    return [*array]


def action_view(head: nn.Module, params: Any) -> list[Choices | Normals]:
    """The distributions of actions that a head makes of parameters [1 p]; [] if it is unknown."""
    if isinstance(head, heads.CompositeHead):
        each = params.split([part.size for part in head.parts], -1)
        return [view for part, x in zip(head.parts, each) for view in action_view(part, x)]
    if isinstance(head, heads.Categorical):
        return [Choices(_finite(params.softmax(-1)))]
    if isinstance(head, heads.MultiCategorical):
        sizes = (~head.padding).sum(1).tolist()
        return [Choices(_finite(part.softmax(-1))) for part in params.split(sizes, -1)]
    if isinstance(head, heads.Bernoulli):
        return [Choices(_finite(params.sigmoid()))]
    if isinstance(head, heads.Normal):
        return [_moments(*head.normal(params))]
    if isinstance(head, heads.Beta):
        params = td.Beta(*(1 + F.softplus(params)).chunk(2, -1))
    if isinstance(params, td.Categorical):
        return [Choices(_finite(params.probs))]
    try:
        return [_moments(params.mean, params.stddev)]
    except (AttributeError, NotImplementedError):  # an unknown head, or distribution
        return []


def _moments(mean: Tensor, std: Tensor) -> Normals:
    return Normals(_finite(mean), _finite(std.expand_as(mean)))


def _finite(x: Tensor) -> np.ndarray:
    """The first row of x; 0 for NaN, with which the next action is an error."""
    return np.nan_to_num(x[0].flatten().cpu().numpy())
