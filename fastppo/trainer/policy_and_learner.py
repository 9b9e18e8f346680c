"""Builds the policy of a resolved Config, if there is memory for it, and its learner."""

import logging
from functools import partial
from typing import Any, Callable

import torch
from gymnasium.spaces import Space
from torch import nn

from fastppo.config import MODELS, Config, default_of
from fastppo.errors import ConfigError, ModelError
from fastppo.learner import Learner
from fastppo.machine import kernels, limits
from fastppo.machine.kernels import Purpose
from fastppo.machine.shared_memory import Arena
from fastppo.networks.action_heads import make_head
from fastppo.networks.encoders import ActorCritic, compute_in_bf16, make_encoder
from fastppo.networks.torch_state import default_torch, seeded_rng, torch_threads
from fastppo.policy import Policy
from fastppo.spaces.observations import ObservationLayout
from fastppo.update.batches import Batch, PolicyOutput, flatten_sequences
from fastppo.update.flat_parameters import FlatParameters
from fastppo.update.schedules import coefficients_at

log = logging.getLogger("fastppo")


@default_torch()
def build_policy(obs_space: Space, act_space: Space, config: Config, model=None) -> Policy:
    """The policy of a resolved Config; `model` replaces the Config's model if that is the user's.

    Raises ModelError if a user's model does not fit the spaces.
    """
    generator = torch.Generator().manual_seed(kernels.word(config.seed, Purpose.INIT, 0, 0))
    seen, features = ObservationLayout(obs_space, act_space), 0
    own = config.model not in MODELS
    # One thread, so that the weights do not depend on the host's cores; a user's layers draw from
    # torch's global generator.
    with seeded_rng(generator.initial_seed()), torch_threads(1):
        if own or config.norm_values:
            from fastppo.trainer import user_parts
        if own:
            net = user_parts.make_user_network(model or config.model, seen.network_space, act_space)
        else:
            net = make_network(seen, config, generator)
            features = net.actor_body.size * net.features
        head = make_head(act_space, config, features)
        policy = Policy(obs_space, act_space, net, config.norm_obs, head, config.seed,
                        config.obs_limit).eval()
        if own:
            policy = user_parts.try_network(policy, config)
        policy.observer.channels_last = not own or user_parts.takes_channels_last(policy)
        if config.norm_values:
            from fastppo.networks.popart import PopArt
            policy.net = PopArt(policy.net, user_parts.ends_in_critic(policy))
        if config.precision == "bf16":
            compute_in_bf16(net, own)
    for part in policy.eval().modules():
        if isinstance(part, nn.RNNBase):  # in eval cuDNN has no gradient
            part.training, part.dropout = True, 0.0
    return policy


def compile_network(policy: Policy) -> None:
    """Compiles the network with torch.compile; a warning says so if that is not possible."""
    from fastppo.trainer.user_parts import trial_inputs
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
    actor_body = make_encoder(seen, config, generator, config.actor_keys)
    critic_body = actor_body if config.shared_critic else make_encoder(
        seen, config.replace(hidden_sizes=config.critic_sizes), generator, config.critic_keys)
    kind = ActorCritic
    if config.rnn != "none":
        from fastppo.networks.recurrent import RecurrentActorCritic, RecurrentEncoder
        bodies = [RecurrentEncoder(body, config.rnn, config.rnn_size, generator)
                  for body in dict.fromkeys((actor_body, critic_body))]
        kind, actor_body, critic_body = RecurrentActorCritic, bodies[0], bodies[-1]
    return kind(actor_body, critic_body, head.size, generator, config.sde, final_tanh)


@default_torch()
def make_learner(policy: Policy, config: Config, arena: Arena, ranks: limits.OneProcess) -> Learner:
    """The learner that a resolved Config describes, with its optional parts attached."""
    coefficients_at(config, 1.0)  # a schedule of the user's that fails is an error now, not later
    observer, place = policy.observer, None
    if observer.count.device.type == "cpu":  # they and the normaliser's snapshot are the arena's
        place = torch.from_numpy(arena["params"])
        for name, buffer in (("mean", "shift"), ("scale", "scale")):
            shared = torch.from_numpy(arena[name])
            shared.copy_(getattr(observer, buffer))
            setattr(observer, buffer, shared)
    flat = FlatParameters(policy, place)
    if config.model not in MODELS or callable(config.optimizer) or callable(config.loss):
        flat.alone = False
    if policy.memory and default_of("num_minibatches") != config.num_minibatches > config.rows:
        log.warning("num_minibatches=%d, but minibatches of a network with memory are whole"
                    " environments, so there are %d per epoch\n  fix: num_minibatches=%d",
                    config.num_minibatches, *[config.rows] * 2)
    return new_learner(policy, config, flat, ranks)


def new_learner(policy: Policy, config: Config, flat: FlatParameters, ranks: limits.OneProcess
                ) -> Learner:
    """The learner with the transforms, the loss and the sequences that its Config asks for."""
    kind: Any = config.loss if isinstance(config.loss, type) else Learner
    if not issubclass(kind, Learner):
        raise ConfigError(
            f"the loss {kind!r} is a class, but no subclass of fastppo.learner.Learner",
            "give a function (output, batch, coefficients) -> (loss, statistics)")
    if config.learner == "kernel":
        from fastppo.compiled.learner import CompiledLearner as kind
    elif config.learner == "graph":
        from fastppo.gpu.graphs import GraphedLearner as kind
    if ranks.size > 1:
        from fastppo.ranks.learner import ranked_learner
        kind = partial(ranked_learner, kind, ranks=ranks)
    learner = kind(policy, config, flat)
    if isinstance(config.loss, type):
        learner.evaluate_actions = partial(_checked_output, learner.evaluate_actions)
    if config.norm_values or config.recompute_advantages or config.rpo_alpha \
            or config.norm_advantages == "rollout":
        from fastppo.update.epoch_transforms import make_epoch_transforms
        learner.transforms += make_epoch_transforms(config, policy)
    if config.norm_values or callable(config.loss):
        from fastppo.trainer.user_parts import configured_loss
        learner.loss = configured_loss(config, policy, learner.loss)
    if policy.memory:
        learner.flatten = flatten_sequences
    return learner


def _checked_output(evaluate_actions: Callable, batch: Batch) -> PolicyOutput:
    """What `evaluate_actions` returns; ModelError for other shapes, which would be broadcast."""
    fresh = evaluate_actions(batch)
    if any(x.shape != batch.adv.shape for x in fresh):
        from fastppo.trainer.user_parts import describe_output
        raise ModelError(f"evaluate_actions returned {describe_output(fresh)} for"
                         f" {len(batch.adv)} samples",
                         "return PolicyOutput(logp [b], ent [b], val [b])")
    return fresh
