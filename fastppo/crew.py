"""Who is on board: the arena of a run, its environments, and who acts for them."""

from functools import partial

import numpy as np
import torch
from gymnasium.spaces import Space

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
from .kernel_learner import learner_class
from .learner import Learner
from .models import own_torch
from .native import Native
from .policy import Policy
from .processes import Team, shared_spec
from .shards import Share, Together, helpers, shards_spec
from .spaces import action_store, observation_store
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
    moments, params = ("<f4", (len(policy.shift),)), sum(x.numel() for x in trained(policy))
    shared = shards_spec(params, config.num_envs * config.num_steps) if _shares(config) else {}
    return {
        **rollout_spec(policy.obs_space, policy.act_space, config.num_steps, config.num_envs),
        "params": ("<f4", (params,)), "mean": moments, "scale": moments, **shared,
        **shared_infos(config.num_workers),
        **shared_spec(config.num_workers, len(groups_of(config.num_envs)))}


def rollout_spec(obs_space: Space, act_space: Space, steps: int, envs: int) -> Spec:
    """The arrays of a rollout and of its episodes' ends, by name."""
    obs, act, te = observation_store(obs_space), action_store(act_space), (steps, envs)
    scalars = dict.fromkeys(("logp", "val", "raw", "rew", "nxt", "adv", "ret"), ("<f4", te))
    return {"obs": (obs.dtype, (steps + 1, envs, *obs.shape)),
            "fin": (obs.dtype, (envs, *obs.shape)),
            "act": (act.dtype, (*te, *act.shape)), **scalars,
            **dict.fromkeys(("term", "trunc", "valid"), ("|b1", te)),
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
    spec = rollout_spec(policy.obs_space, policy.act_space, *(axes if len(axes) == 2 else (0, 0)))
    for name, x in zip(Rollout._fields, rollout):
        dtype, shape = np.dtype(spec[name][0]).name, spec[name][1]
        wanted = f"cpu torch.{dtype} {list(shape)}"
        got = (f"{x.device} {x.dtype} {list(x.shape)}" if isinstance(x, torch.Tensor)
               else type(x).__name__)
        if got != wanted:
            raise InputError(f"the {name} of this rollout is {got}, where this trainer's is"
                             f" {wanted}", fix)


@own_torch()
def flat_of(policy: Policy, arena: Arena) -> Flat:
    """The parameters as one vector; on the CPU it and the moments' snapshot are the arena's."""
    if policy.count.device.type != "cpu":
        return Flat(policy)
    for name, buffer in (("mean", "shift"), ("scale", "scale")):
        place = torch.from_numpy(arena[name])
        place.copy_(getattr(policy, buffer))
        setattr(policy, buffer, place)
    return Flat(policy, torch.from_numpy(arena["params"]))


@own_torch()
def learner_of(policy: Policy, config: Config, flat: Flat) -> Learner:
    """The learner a resolved Config asks for."""
    return learner_class(config)(policy, config, flat)


def _shares(config: Config) -> bool:
    """Whether workers compute shards of the update."""
    return config.learner == "kernel" and helpers(config.num_workers) > 0


def board(arena: Arena, source: Source, policy: Policy, learner: Learner,
          config: Config) -> Collector:
    """The Collector of a run: its environments in this process or in workers, and their actor."""
    seed, space, native = config.seed, policy.act_space, source.vector is not None
    groups = [range(config.num_envs)] if native else groups_of(config.num_envs)
    recipe = policy.recipe(learner.flat.offsets) if config.acting == "local" else None
    central = Central(arena, policy, groups, space, seed) if recipe is None else None
    if config.num_workers:
        share = Share(learner.recipe, learner.terms, policy.norm_obs) if _shares(config) else None
        todo = jobs(source.factories, arena, config.num_workers, groups, recipe, space, seed, share)
        team = Team(todo, arena, len(groups), config.step_timeout, config.reset_timeout)
        vec = Workers(team, config.num_steps, central)
        if share:
            learner.share(Together(team, arena, policy.norm_obs))
    else:
        actor = central or Local(arena, 0, config.num_envs, recipe, space, seed)
        vec = (Native(source.vector, arena, actor, seed) if native else
               Serial(source.factories, Views.of(arena, 0, config.num_envs), actor, seed,
                      groups=groups if central else ()))
    return Collector(arena, vec, policy, config)


def groups_of(envs: int) -> list[range]:
    """Two halves of the environments, so that one infers while the other steps."""
    halves = [range(0, envs // 2), range(envs // 2, envs)]
    return [half for half in halves if half]
