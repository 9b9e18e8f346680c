"""Builds the learner of a resolved Config."""

import logging
from functools import partial
from typing import Callable

import torch

from fastppo.build.rules import is_user_model
from fastppo.config import Config, default_of
from fastppo.errors import ConfigError, ModelError, NonFiniteError, user_code
from fastppo.learner import Learner
from fastppo.machine import limits
from fastppo.machine.arena import Arena
from fastppo.networks.torch_state import default_torch, preserved_buffers, seeded_rng
from fastppo.policy import Policy
from fastppo.update.batches import Batch, Fresh
from fastppo.update.coefficients import coefficients_at
from fastppo.update.flat_parameters import FlatParameters

log = logging.getLogger("fastppo")


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
    if is_user_model(config.model) or callable(config.optimizer) or callable(config.loss):
        flat.alone = False
        try_update(policy, config, flat)
    if policy.memory and default_of("num_minibatches") != config.num_minibatches > config.num_envs:
        log.warning("num_minibatches=%d, but minibatches of a network with memory are whole"
                    " environments, so there are %d per epoch\n  fix: num_minibatches=%d",
                    config.num_minibatches, *[config.num_envs] * 2)
    kind = learner_class(config)
    if ranks.size > 1:
        from fastppo.learners.ranked import ranked_learner
        return with_options(ranked_learner(kind, policy, config, flat, ranks))
    return with_options(kind(policy, config, flat))


def with_options(learner: Learner) -> Learner:
    """`learner` with the transforms, the loss and the sequences that its Config asks for."""
    config, policy = learner.config, learner.policy
    if config.norm_values or config.recompute_advantages or config.rpo_alpha \
            or config.norm_advantages == "rollout":
        from fastppo.update.epoch_transforms import make_epoch_transforms
        learner.transforms += make_epoch_transforms(config, policy)
    if config.norm_values or callable(config.loss):
        from fastppo.update.custom_loss import configured_loss
        learner.loss = configured_loss(config, policy, learner.loss)
    if policy.memory:
        from fastppo.update.sequences import flatten_sequences
        learner.flatten = flatten_sequences
    return learner


def try_update(policy: Policy, config: Config, flat: FlatParameters) -> None:
    """Makes one update of two made-up samples, then puts weights and moments back.

    Raises ModelError if a user's model, optimizer or loss fails in it.
    """
    from fastppo.build.user_model import trial_rollout
    once, weights = config.replace(epochs=1, num_minibatches=1, num_microbatches=1), flat.state
    once = once.replace(learner="torch") if config.learner == "graph" else once
    given = ", ".join(f"{x}={getattr(config, x)!r}" for x in ("model", "optimizer", "loss"))
    try:
        with preserved_buffers(policy), seeded_rng(config.seed), user_code(
                ModelError, f"an update of two made-up samples with {given}", "correct the model,"
                " optimizer or loss of your own where its traceback ends"):
            learner = with_options(learner_class(once)(policy, once, flat))
            learner.evaluate_actions = partial(_checked_fresh, learner.evaluate_actions)
            learner.update(trial_rollout(policy), coefficients_at(config, 1.0), 0)
    except NonFiniteError:
        pass  # of made-up samples it says nothing
    finally:
        flat.restore(weights)


def _checked_fresh(evaluate_actions: Callable, batch: Batch) -> Fresh:
    """What `evaluate_actions` returns; ModelError for other shapes, which would be broadcast."""
    fresh = evaluate_actions(batch)
    if any(x.shape != batch.adv.shape for x in fresh):
        from fastppo.update.custom_loss import describe_output
        raise ModelError(f"evaluate_actions returned for two samples {describe_output(fresh)}",
                         "return Fresh(logp [b], ent [b], val [b])")
    return fresh


def learner_class(config: Config) -> type[Learner]:
    """The class of the learner: compiled, torch's, or a subclass of the user's."""
    if config.learner == "kernel":
        from fastppo.learners.compiled import CompiledLearner
        return CompiledLearner
    if config.learner == "graph":
        from fastppo.learners.graphed import GraphedLearner
        return GraphedLearner
    if not isinstance(config.loss, type):
        return Learner
    if not issubclass(config.loss, Learner):
        raise ConfigError(
            f"the loss {config.loss!r} is a class, but no subclass of fastppo.learner.Learner",
            "give a function (fresh, batch, coefficients) -> (loss, statistics)")
    return config.loss
