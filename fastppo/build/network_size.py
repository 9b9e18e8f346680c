"""The least size of a built-in network, and the refusal of one that no memory is there for."""

from itertools import pairwise

from fastppo.build.compiled_support import is_plain_mlp
from fastppo.config import IMAGE_MODELS, Config
from fastppo.errors import ConfigError
from fastppo.machine import limits
from fastppo.networks.heads import least_outputs
from fastppo.spaces.observations import ObservationEncoding, ObservationLayout

# Bytes of a weight: itself, its gradient and Adam's two moments, in float32.
WEIGHT_BYTES = 16


def check_network_size(config: Config, seen: ObservationLayout) -> None:
    """Raises ConfigError if there is too little memory to train a built-in network.

    It is called before the network is built, which takes long where it is large.
    """
    inputs = ObservationEncoding(seen).size if is_plain_mlp(config) else 0
    count = least_parameters(config, inputs, least_outputs(seen.act_space))
    if config.model in IMAGE_MODELS:
        from fastppo.networks.cnn import dense_weights
        shapes = [leaf.image_shape for leaf in ObservationEncoding(seen).leaves]
        count += sum(dense_weights(config.model, shape) for shape in shapes
                     if shape and min(shape[1:]) >= IMAGE_MODELS[config.model])
    if (need := WEIGHT_BYTES * count) > (free := limits.free_memory()):
        raise ConfigError(f"the network has at least {count:,} parameters and needs"
                          f" {need >> 20:,} MiB to be trained, but {free >> 20:,} MiB are free",
                          "use smaller layers, smaller observations (resize) or fewer actions")


def least_parameters(config: Config, inputs: int, outputs: int = 0) -> int:
    """The weights of a built-in network's hidden layers and `outputs`; it has biases, too."""
    widths, gates = [inputs, *config.hidden_sizes], {"none": 0, "gru": 3, "lstm": 4}[config.rnn]
    features = config.rnn_size if gates else widths[-1]
    count = sum(a * b for a, b in pairwise(widths))
    count += gates * config.rnn_size * (config.rnn_size + widths[-1])
    return count * (1 if config.shared_critic else 2) + features * outputs
