"""The settings and spaces that the compiled kernels, or CUDA graphs, do not support."""

from typing import Iterable, Sequence

from fastppo.config import Config, having
from fastppo.errors import format_value
from fastppo.machine import kernels
from fastppo.networks.encoders import COMPILED_ACTIVATIONS
from fastppo.networks.heads import COMPILED_HEADS, least_outputs, make_head
from fastppo.spaces.observations import (
    ObservationEncoding,
    ObservationLayout,
    clamps_normalised_only,
)
from fastppo.trainer.rules import first_changed, is_user_model


def unsupported_in_acting(config: Config, seen: ObservationLayout) -> str:
    """The first reason for which compiled kernels cannot act, such as rnn=gru; "" for none.

    The `config` has its model and device resolved.
    """
    if not kernels.COMPILED:
        return "an installation without the compiled extension"
    return (unsupported_value(config, device=("cpu",), precision=("auto", "fp32"))
            or _unsupported_network(config) or changed_setting(config, needing_torch("acting"))
            or _unsupported_spaces(config, seen))


def unsupported_in_learner(config: Config, seen: ObservationLayout) -> str:
    """The first reason for which the compiled learner cannot learn; "" for none."""
    return (unsupported_in_acting(config, seen) or "action masks" * (seen.mask is not None)
            or changed_setting(config, needing_torch("learner")))


def unsupported_in_graph(config: Config) -> str:
    """The first reason for which a minibatch cannot be a CUDA graph; "" for none."""
    rows = config.num_envs * config.num_steps
    uneven = f"num_minibatches={config.num_minibatches} with {rows} samples" * bool(
        rows % config.num_minibatches)
    return (unsupported_value(config, rnn=("none",))
            or changed_setting(config, ("optimizer", "loss")) or uneven)


def _unsupported_network(config: Config) -> str:
    """The first reason of the network's kind; "" for none."""
    if is_user_model(config.model):
        return "your own model"
    return (unsupported_value(config, model=("mlp", "cnn"), activation=COMPILED_ACTIVATIONS)
            or changed_setting(config, needing_torch("network")))


def _unsupported_spaces(config: Config, seen: ObservationLayout) -> str:
    """The first reason of the spaces, the head and the sizes of the layers; "" for none."""
    if (size := least_outputs(seen.act_space)) > kernels.MAX_CHOICES:  # no head is made
        return f"{size:,} actions (at most {kernels.MAX_CHOICES:,})"
    head = make_head(seen.act_space, config, 1)
    if type(head) not in COMPILED_HEADS:
        return (changed_setting(config, ("distribution", "sde"))
                or f"the action space {seen.act_space}")
    if config.model == "cnn":
        if not (seen.is_box and seen.leaves[0].like_image):
            return f"model=cnn with the observation space {seen.space}"
        planes, height, width = seen.leaves[0].image_shape
        # The first convolution makes 32 numbers of 4 x 4 pixels: 2 of each pixel.
        too_large = max(planes, 2) * height * width > kernels.MAX_WIDTH
        return f"images of this size: at most {kernels.MAX_WIDTH:,} numbers a layer" * too_large
    widest = max(ObservationEncoding(seen).size, *config.hidden_sizes, head.size)
    if len(config.hidden_sizes) > kernels.MAX_HIDDEN or widest > kernels.MAX_WIDTH:
        return (f"networks of this size: at most {kernels.MAX_HIDDEN} layers of"
                f" {kernels.MAX_WIDTH:,} units")
    return "" if clamps_normalised_only(seen, config.norm_obs, config.obs_limit) \
        else f"obs_limit={config.obs_limit:g}"


def unsupported_value(config: Config, **supported: Sequence[str]) -> str:
    """The first setting with a value that is not `supported`, as name=value; "" for none."""
    others = (name for name, values in supported.items() if getattr(config, name) not in values)
    return next((f"{name}={getattr(config, name)}" for name in others), "")


def needing_torch(part: str) -> list[str]:
    """The settings that compiled kernels know with their defaults alone, in the `part`."""
    return [name for name, place in having("needs_torch").items() if place == part]


def changed_setting(config: Config, names: Iterable[str]) -> str:
    """The first of some settings without its default, as name=value; "" if all have it."""
    if not (name := first_changed(config, names)):
        return ""
    value = getattr(config, name)
    return f"your own {name}" if callable(value) else f"{name}={format_value(value)}"
