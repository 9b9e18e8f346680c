"""Wires the environments, the actor and the learner of a run."""

import torch
from gymnasium.vector import AutoresetMode

from fastppo.build.arena_layout import _shares, groups_of
from fastppo.collect import Collector
from fastppo.config import Config
from fastppo.envs.source import Source
from fastppo.learner import Learner
from fastppo.learners.compiled import KernelLearner, recipe_of
from fastppo.learners.shared_minibatches import Together
from fastppo.machine.arena import Arena
from fastppo.networks.torch_state import own_torch
from fastppo.policy import Policy
from fastppo.stepping.actors import Central, Local
from fastppo.stepping.episodes import Views
from fastppo.stepping.native_vector import Native, mode_of
from fastppo.update.custom_loss import check_loss
from fastppo.update.flat_parameters import Flat
from fastppo.vecenv import Serial
from fastppo.workers.team import Team
from fastppo.workers.update_helper import Share
from fastppo.workers.worker_envs import Workers, jobs


@own_torch()
def flat_of(policy: Policy, arena: Arena) -> Flat:
    """The parameters as one vector; on the CPU it and the moments' snapshot are the arena's."""
    observer = policy.observer
    if observer.count.device.type != "cpu":
        return Flat(policy)
    for name, buffer in (("mean", "shift"), ("scale", "scale")):
        place = torch.from_numpy(arena[name])
        place.copy_(getattr(observer, buffer))
        setattr(observer, buffer, place)
    return Flat(policy, torch.from_numpy(arena["params"]))


@own_torch()
def learner_of(policy: Policy, config: Config, flat: Flat) -> Learner:
    """The learner a resolved Config asks for."""
    check_loss(config)
    return learner_class(config)(policy, config, flat)


def board(arena: Arena, source: Source, policy: Policy, learner: Learner,
          config: Config) -> Collector:
    """The Collector of a run: its environments in this process or in workers, and their actor."""
    seed, native, seen = config.seed, source.vector is not None, policy.observer.seen
    groups = [range(config.num_envs)] if native else groups_of(config.num_envs)
    recipe = recipe_of(policy, learner.flat) if config.acting == "local" else None
    late = native and mode_of(source.vector) is AutoresetMode.NEXT_STEP
    central = Central(arena, policy, groups, seed, late) if recipe is None else None
    if config.num_workers:
        share = (Share(learner.recipe, learner.terms, policy.observer.norm)
                 if _shares(config, policy) else None)
        todo = jobs(source.factories, arena, config.num_workers, groups, recipe, seen,
                    policy.actions, seed, share)
        team = Team(todo, arena, len(groups), config.step_timeout, config.reset_timeout,
                    busy=central is not None)
        vec = Workers(team, config.num_steps, central)
        if share:
            learner.share(Together(team, arena, policy.observer.norm))
    else:
        actor = central or Local(arena, 0, config.num_envs, recipe, seen, policy.actions, seed)
        vec = (Native(source.vector, arena, actor, seed) if native else
               Serial(source.factories, Views.of(arena, 0, config.num_envs), actor, seed,
                      groups=groups if central else ()))
    return Collector(arena, vec, policy, config)


def learner_class(config: Config) -> type[Learner]:
    """The class of the learner a resolved Config asks for."""
    if config.learner == "kernel":
        return KernelLearner
    return config.loss if isinstance(config.loss, type) else Learner
