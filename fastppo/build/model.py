"""Builds the policy that a resolved Config asks for."""

import torch
from gymnasium.spaces import Space

from fastppo.build.memory_estimate import check_size
from fastppo.build.user_model import ends_in_critic, is_own, made, tried
from fastppo.config import Config
from fastppo.envs.observations import Encoding, Observations
from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose
from fastppo.networks.encoders import body_of
from fastppo.networks.heads import Options, head_of
from fastppo.networks.mlp import COMPILED, MLP, ActorCritic
from fastppo.networks.recurrent import Recurrent, RecurrentBody
from fastppo.networks.torch_state import own_torch, seeded, torch_threads
from fastppo.networks.value_normalisation import NormValues
from fastppo.policy import Policy


@own_torch()
def build_policy(obs_space: Space, act_space: Space, config: Config, model=None) -> Policy:
    """The policy of a resolved Config; `model` is a class of the user's, or None for the Config's.

    One torch thread draws the weights, of which no bit may depend on how many the host has. Raises
    ModelError where what the model returns does not fit the spaces.
    """
    generator = torch.Generator().manual_seed(kernels.word(config.seed, Purpose.INIT, 0, 0))
    seen, options = Observations(obs_space, act_space), head_options(config)
    model = (model or config.model) if is_own(config.model) else config.model
    # Layers of the user's draw from the host's generator.
    with seeded(generator.initial_seed()), torch_threads(1):
        if is_own(model):
            net, features = made(model, seen.shown, act_space), 0
        else:
            check_size(config, Encoding(seen).size if plain(config) else 0)
            net = network(seen, config, generator)
            features = net.actor_body.size * net.features
        head = head_of(act_space, options, features)
        policy = tried(Policy(obs_space, act_space, net, config.norm_obs, head, config.seed,
                              config.obs_limit).eval(), config)
        if config.norm_values:
            policy.net = NormValues(policy.net, ends_in_critic(policy))
    return policy.eval()


def head_options(config: Config) -> Options:
    """What a Config says of action heads."""
    return Options(*(getattr(config, name) for name in Options._fields))


def network(seen: Observations, config: Config, generator: torch.Generator | None) -> ActorCritic:
    """The built-in network of a resolved Config, with weights from `generator`."""
    head = head_of(seen.act_space, head_options(config)._replace(sde=False))
    final_tanh = head.means if config.final_tanh else None
    if plain(config):
        return MLP(Encoding(seen).size, head.size, config.hidden_sizes, config.activation,
                   config.shared_critic, generator, config.sde, final_tanh)
    actor_body = body_of(seen, config, generator, config.actor_keys)
    critic_body = actor_body if config.shared_critic else body_of(seen, config, generator,
                                                                  config.critic_keys)
    kind = ActorCritic
    if config.rnn != "none":
        bodies = [RecurrentBody(body, config.rnn, config.rnn_size, generator)
                  for body in dict.fromkeys((actor_body, critic_body))]
        kind, actor_body, critic_body = Recurrent, bodies[0], bodies[-1]
    return kind(actor_body, critic_body, head.size, generator, config.sde, final_tanh)


def plain(config: Config) -> bool:
    """Whether the network is an MLP as the kernels know them."""
    return (config.model == "mlp" and config.activation in COMPILED and not config.layer_norm
            and config.rnn == "none" and config.actor_keys is None and config.critic_keys is None)
