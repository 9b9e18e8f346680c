"""Wires the environments, the actor and the learner of a run."""

import logging

import torch
from gymnasium.vector import AutoresetMode

from fastppo.build.arena_layout import env_groups, shares_update, trial_rollout
from fastppo.build.user_model import is_user_model
from fastppo.collect import Collector
from fastppo.config import Config
from fastppo.envs.source import EnvSource
from fastppo.errors import Error, ModelError
from fastppo.learner import Learner
from fastppo.learners.compiled import CompiledLearner, policy_plan
from fastppo.learners.shared_minibatches import SharedMinibatches
from fastppo.machine.arena import Arena
from fastppo.networks.torch_state import default_torch, preserved_buffers, seeded_rng
from fastppo.policy import Policy
from fastppo.stepping.actors import CentralActor, LocalActor
from fastppo.stepping.episodes import RolloutViews
from fastppo.stepping.native_vector import NativeVector, autoreset_mode
from fastppo.update.coefficients import coefficients_at
from fastppo.update.flat_parameters import FlatParameters
from fastppo.vecenv import Serial
from fastppo.workers.team import WorkerTeam
from fastppo.workers.update_helper import HelperPlan
from fastppo.workers.worker_envs import WorkerVecEnv, worker_jobs

log = logging.getLogger("fastppo")


@default_torch()
def make_flat_parameters(policy: Policy, arena: Arena) -> FlatParameters:
    """The parameters as one vector; on the CPU it and the moments' snapshot are the arena's."""
    observer = policy.observer
    if observer.count.device.type != "cpu":
        return FlatParameters(policy)
    for name, buffer in (("mean", "shift"), ("scale", "scale")):
        place = torch.from_numpy(arena[name])
        place.copy_(getattr(observer, buffer))
        setattr(observer, buffer, place)
    return FlatParameters(policy, torch.from_numpy(arena["params"]))


@default_torch()
def make_learner(policy: Policy, config: Config, flat: FlatParameters) -> Learner:
    """The learner of a resolved Config; a user's own parts of it are tried first."""
    if is_user_model(config.model) or callable(config.optimizer) or callable(config.loss):
        try_update(policy, config, flat)
    if policy.memory and config.num_minibatches > config.num_envs:
        log.warning("num_minibatches=%d, but minibatches of a network with memory are whole"
                    " environments, so there are %d per epoch\n  fix: num_minibatches=%d",
                    config.num_minibatches, *[config.num_envs] * 2)
    return learner_class(config)(policy, config, flat)


def try_update(policy: Policy, config: Config, flat: FlatParameters) -> None:
    """Make one update of two made-up samples, then put weights and moments back.

    Raises ModelError if a user's model, optimizer or loss fails in it.
    """
    once = config.replace(epochs=1, num_minibatches=1, num_microbatches=1)
    weights = flat.state
    try:
        with preserved_buffers(policy), seeded_rng(config.seed):
            learner_class(config)(policy, once, flat).update(
                trial_rollout(policy), coefficients_at(config, 1.0), 0)
    except Error:
        raise
    except Exception as error:  # a user's code may raise anything
        given = ", ".join(f"{name}={getattr(config, name)!r}"
                          for name in ("model", "optimizer", "loss"))
        raise ModelError(f"an update of two made-up samples with {given} failed:"
                         f" {type(error).__name__}: {error}", "correct the model, optimizer or"
                         " loss of your own where the exception above was raised") from error
    finally:
        flat.restore(weights)


def make_collector(arena: Arena, source: EnvSource, policy: Policy, learner: Learner,
          config: Config) -> Collector:
    """The Collector of a run: its environments in this process or in workers, and their actor."""
    seed, native, seen = config.seed, source.vector is not None, policy.observer.seen
    groups = [range(config.num_envs)] if native else env_groups(config.num_envs)
    recipe = policy_plan(policy, learner.flat) if config.acting == "local" else None
    late = native and autoreset_mode(source.vector) is AutoresetMode.NEXT_STEP
    central = CentralActor(arena, policy, groups, seed, late) if recipe is None else None
    if config.num_workers:
        share = (HelperPlan(learner.recipe, learner.terms, policy.observer.norm)
                 if shares_update(config, policy) else None)
        todo = worker_jobs(source.factories, arena, config.num_workers, groups, recipe, seen,
                    policy.actions, seed, share)
        team = WorkerTeam(todo, arena, len(groups), config.step_timeout, config.reset_timeout,
                    busy=central is not None)
        vec = WorkerVecEnv(team, config.num_steps, central)
        if share:
            learner.share(SharedMinibatches(team, arena, policy.observer.norm))
    else:
        actor = central or LocalActor(arena, 0, config.num_envs, recipe, seen, policy.actions, seed)
        vec = (NativeVector(source.vector, arena, actor, seed) if native else
               Serial(source.factories, RolloutViews.of(arena, 0, config.num_envs), actor, seed,
                      groups=groups if central else ()))
    return Collector(arena, vec, policy, config)


def learner_class(config: Config) -> type[Learner]:
    """The class of the learner a resolved Config asks for."""
    if config.learner == "kernel":
        return CompiledLearner
    return config.loss if isinstance(config.loss, type) else Learner
