"""The settings and spaces that the compiled kernels, or CUDA graphs, do not support."""

from typing import Any, Sequence

from fastppo.config import MODELS, Config, default_of, having
from fastppo.errors import format_value
from fastppo.machine import kernels
from fastppo.networks.action_heads import COMPILED_HEADS, make_head
from fastppo.networks.encoders import COMPILED_ACTIVATIONS
from fastppo.spaces.observations import ObservationEncoding, ObservationLayout

NEEDS_TORCH = having("needs_torch")


def unsupported_in_acting(config: Config, seen: ObservationLayout) -> str:
    """The first reason for which compiled kernels cannot act, such as rnn=gru; "" for none.

    The `config` has its model and device resolved.
    """
    if not kernels.COMPILED:
        return "an installation without the compiled extension"
    return (unsupported_value(config, "network", device=("cpu",), precision=("auto", "fp32"),
                              model=("mlp", "cnn"), activation=COMPILED_ACTIVATIONS,
                              rnn=("none", "mingru"))
            or "memory against past selves" * (config.rnn != "none" and config.past > 0)
            or unsupported_value(config, "acting") or _unsupported_spaces(config, seen))


def unsupported_in_learner(config: Config, seen: ObservationLayout) -> str:
    """The first reason for which the compiled learner cannot learn; "" for none."""
    return unsupported_in_acting(config, seen) or unsupported_value(config, "learner")


def unsupported_in_graph(config: Config) -> str:
    """The first reason for which a minibatch cannot be a CUDA graph; "" for none."""
    rows = config.rows * config.num_steps
    uneven = f"num_minibatches={config.num_minibatches} with {rows} samples" * bool(
        rows % config.num_minibatches)
    return unsupported_value(config, rnn=("none",), optimizer=("adam",), loss=("ppo",)) or \
        "games of several agents" * (config.agents > 1) or uneven  # their samples vary in number


def _unsupported_spaces(config: Config, seen: ObservationLayout) -> str:
    """The first reason of the spaces, the head and the sizes of the layers; "" for none."""
    head = make_head(seen.act_space, config, 1)
    if head.size > kernels.MAX_CHOICES:
        return f"{head.size:,} actions (at most {kernels.MAX_CHOICES:,})"
    if type(head) not in COMPILED_HEADS:
        return (unsupported_value(config, distribution=("gaussian",), sde=(False,))
                or f"the action space {seen.act_space}")
    if config.model == "cnn":
        if not (seen.is_box and seen.leaves[0].like_image):
            return f"model=cnn with the observation space {seen.space}"
        planes, height, width = seen.leaves[0].image_shape
        # The first convolution makes 32 numbers of 4 x 4 pixels: 2 of each pixel.
        too_large = max(planes, 2) * height * width > kernels.MAX_WIDTH
        return f"images of this size: at most {kernels.MAX_WIDTH:,} numbers a layer" * too_large
    encoding = ObservationEncoding(seen)
    actor, critic = config.hidden_sizes, config.critic_sizes
    widest = max(encoding.size, *actor, *critic, head.size, 2 * config.rnn_size)
    if max(map(len, (actor, critic))) > kernels.MAX_HIDDEN or widest > kernels.MAX_WIDTH:
        return (f"networks of this size: at most {kernels.MAX_HIDDEN} layers of"
                f" {kernels.MAX_WIDTH:,} units")
    # Kernels clamp all columns. Those that are not normalised are 0 or 1.
    mixed = encoding.normalised.any() and not encoding.normalised.all()
    return f"obs_limit={config.obs_limit:g}" * bool(
        config.norm_obs and config.obs_limit < 1 and mixed)


def unsupported_value(config: Config, part: str = "", **supported: Sequence[Any]) -> str:
    """The first setting with a value that is not `supported`, as name=value; "" for none.

    Then those that kernels know with their defaults alone in a `part`: network, acting or learner.
    """
    defaults = {name: (default_of(name),) for name, place in NEEDS_TORCH.items() if place == part}
    for name, values in (supported | defaults).items():
        if (value := getattr(config, name)) not in values:
            own = callable(value) or name == "model" and value not in MODELS
            return f"your own {name}" if own else f"{name}={format_value(value)}"
    return ""
