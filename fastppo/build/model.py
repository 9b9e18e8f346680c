"""Builds the policy of a resolved Config."""

import logging
from itertools import pairwise

import torch
from gymnasium.spaces import Space
from torch import nn

from fastppo.build.compiled_support import is_plain_mlp
from fastppo.build.rules import is_user_model
from fastppo.config import IMAGE_MODELS, Config
from fastppo.errors import ConfigError
from fastppo.machine import kernels, limits
from fastppo.machine.kernels import Purpose
from fastppo.networks.encoders import make_encoder
from fastppo.networks.heads import least_outputs, make_head
from fastppo.networks.mlp import MLP, ActorCritic
from fastppo.networks.torch_state import default_torch, seeded_rng, torch_threads
from fastppo.policy import Policy
from fastppo.spaces.observations import ObservationEncoding, ObservationLayout

log = logging.getLogger("fastppo")

# Bytes of a weight: itself, its gradient and Adam's two moments, in float32.
WEIGHT_BYTES = 16


@default_torch()
def build_policy(obs_space: Space, act_space: Space, config: Config, model=None) -> Policy:
    """The policy of a resolved Config; `model` replaces the Config's model if that is the user's.

    Raises ModelError if a user's model does not fit the spaces.
    """
    generator = torch.Generator().manual_seed(kernels.word(config.seed, Purpose.INIT, 0, 0))
    seen, features = ObservationLayout(obs_space, act_space), 0
    own = is_user_model(config.model)
    # One thread, so that the weights do not depend on the host's cores; a user's layers draw from
    # torch's global generator.
    with seeded_rng(generator.initial_seed()), torch_threads(1):
        if own or config.norm_values or config.precision == "bf16":
            from fastppo.build import user_model
        if own:
            net = user_model.make_user_network(model or config.model, seen.network_space, act_space)
        else:
            check_network_size(config, seen)
            net = make_network(seen, config, generator)
            features = net.actor_body.size * net.features
        head = make_head(act_space, config, features)
        policy = Policy(obs_space, act_space, net, config.norm_obs, head, config.seed,
                        config.obs_limit).eval()
        if own:
            policy = user_model.try_network(policy, config)
        policy.observer.channels_last = not own or user_model.takes_channels_last(policy)
        if config.norm_values:
            from fastppo.networks.value_normalisation import PopArt
            policy.net = PopArt(policy.net, user_model.ends_in_critic(policy))
        if config.precision == "bf16":
            from fastppo.networks.precision import compute_in_bf16
            user_model.check_bf16_head(policy)
            compute_in_bf16(net, own)
    for part in policy.eval().modules():
        if isinstance(part, nn.RNNBase):  # in eval cuDNN has no gradient
            part.training, part.dropout = True, 0.0
    return policy


def compile_network(policy: Policy) -> None:
    """Compiles the network with torch.compile; a warning says so if that is not possible."""
    from fastppo.build.user_model import trial_inputs
    policy.net.compile()
    try:
        with torch.no_grad():
            policy.net(*trial_inputs(policy))
    except Exception as error:  # without a C++ compiler, or of a model of the user's
        policy.net._compiled_call_impl = None
        log.warning("compile=True has no effect, because torch.compile failed: %s: %s",
                    type(error).__name__, str(error).strip().partition("\n")[0])


def make_network(seen: ObservationLayout, config: Config, generator: torch.Generator | None
                 ) -> ActorCritic:
    """The built-in network of a resolved Config, with weights from `generator`."""
    head = make_head(seen.act_space, config)  # without features, for gSDE too
    final_tanh = head.means if config.final_tanh else None
    if is_plain_mlp(config):
        return MLP(ObservationEncoding(seen).size, head.size, config.hidden_sizes,
                   config.activation, config.shared_critic, generator, config.sde, final_tanh)
    actor_body = make_encoder(seen, config, generator, config.actor_keys)
    critic_body = actor_body if config.shared_critic else make_encoder(
        seen, config, generator, config.critic_keys)
    kind = ActorCritic
    if config.rnn != "none":
        from fastppo.networks.recurrent import RecurrentActorCritic, RecurrentEncoder
        bodies = [RecurrentEncoder(body, config.rnn, config.rnn_size, generator)
                  for body in dict.fromkeys((actor_body, critic_body))]
        kind, actor_body, critic_body = RecurrentActorCritic, bodies[0], bodies[-1]
    return kind(actor_body, critic_body, head.size, generator, config.sde, final_tanh)


def check_network_size(config: Config, seen: ObservationLayout) -> None:
    """Raises ConfigError if there is too little memory to train a built-in network.

    It is called before the network is built, which takes long where it is large.
    """
    encoding = ObservationEncoding(seen)
    count = least_parameters(config, encoding.size if is_plain_mlp(config) else 0,
                             least_outputs(seen.act_space))
    if config.model in IMAGE_MODELS:
        from fastppo.networks.cnn import dense_weights
        count += sum(dense_weights(config.model, shape)
                     for shape in (leaf.image_shape for leaf in encoding.leaves)
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
