"""Who is on board: the arena of a run, its environments, and who acts for them."""

from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from .actors import Central, Local
from .arena import Arena, Spec
from .books import Views
from .collect import Collector, Rollout
from .config import Config
from .envs import Source
from .errors import InputError
from .flat import Flat, trained
from .forecast import beside, remedy
from .infos import shared_infos
from .kernel_learner import learner_class, recipe_of
from .learner import Learner
from .losses import check_loss
from .models import own_torch
from .native import Native, mode_of
from .policy import Policy
from .processes import Team, shared_spec
from .shards import Share, Together, helpers, shards_spec
from .spaces import fields, mapped
from .vecenv import Serial
from .workers import Workers, jobs


def arena_of(config: Config, policy: Policy, source: Source) -> Arena:
    """The shared block of a run; a ConfigError says which setting fits where this one does not."""
    def spec_of(config: Config) -> Spec:
        return arena_spec(config, policy)
    spec, one_id = spec_of(config), len(set(map(id, source.factories))) == 1
    return Arena(spec, beside=beside(config, spec),
                 remedy=partial(remedy, config, spec_of, one_id))


def arena_spec(config: Config, policy: Policy) -> Spec:
    """The arrays of a run: rollout, parameters, snapshot of the moments, cells, shards."""
    moments = ("<f4", (len(policy.observer.shift),))
    params, rows = sum(x.numel() for x in trained(policy)), config.num_envs * config.num_steps
    shared = shards_spec(params, rows) if _shares(config, policy) else {}
    return {
        **rollout_spec(policy, config.num_steps, config.num_envs),
        "params": ("<f4", (params,)), "mean": moments, "scale": moments, **shared,
        **shared_infos(config.num_workers),
        **shared_spec(config.num_workers, len(groups_of(config.num_envs)))}


def rollout_spec(policy: Policy, steps: int, envs: int) -> Spec:
    """The arrays of a rollout and of its episodes' ends, by name."""
    obs, act, te = policy.observer.seen.store, policy.actions.store, (steps, envs)
    scalars = dict.fromkeys(("logp", "val", "raw", "rew", "nxt", "adv", "ret"), ("<f4", te))
    return {"obs": (obs.dtype, (steps + 1, envs, *obs.shape)),
            "fin": (obs.dtype, (envs, *obs.shape)),
            "act": (act.dtype, (*te, *act.shape)), **scalars,
            **dict.fromkeys(("term", "trunc", "valid"), ("|b1", te)),
            "state": ("<f4", (steps + 1, envs, policy.memory)),
            "total": ("<f8", te), "length": ("<i8", te)}


def check_rollout(rollout: Rollout, policy: Policy, iterations: int) -> None:
    """Raise InputError for what no update can be made from after `iterations` rollouts.

    A rollout of other spaces, with a field missing, of another shape or dtype, or not on the CPU.
    """
    fix = "ppo.update(ppo.collect())"
    if not isinstance(rollout, Rollout):
        raise InputError(f"update was given {type(rollout).__name__}, not a Rollout", fix)
    if not iterations:
        raise InputError("update was given a rollout before this trainer has collected one", fix)
    axes = getattr(rollout.raw, "shape", ())
    spec = rollout_spec(policy, *(axes if len(axes) == 2 else (0, 0)))
    for name, x in zip(Rollout._fields, rollout):
        known = list(map(torch.from_numpy, fields(np.empty(spec[name][1], spec[name][0]))))
        got, wanted = _look(x), _look(
            policy.observer.seen.structure(known) if name == "obs" else known[0])
        if got != wanted:
            raise InputError(f"the {name} of this rollout is {got}, where this trainer's is"
                             f" {wanted}", fix)


def _look(x: Any) -> Any:
    """What can be seen of a tensor, or of each in a structure of them."""
    return mapped(lambda x: f"{x.device} {x.dtype} {list(x.shape)}" if isinstance(x, torch.Tensor)
                  else type(x).__name__, x)


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


def _shares(config: Config, policy: Policy) -> bool:
    """Whether workers compute shards of the update: of observations that lie there as seen."""
    return (config.learner == "kernel" and helpers(config.num_workers) > 0
            and policy.observer.encoding.identity)


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


def groups_of(envs: int) -> list[range]:
    """Two halves of the environments, so that one infers while the other steps."""
    halves = [range(0, envs // 2), range(envs // 2, envs)]
    return [half for half in halves if half]
