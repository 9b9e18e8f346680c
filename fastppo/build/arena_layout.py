"""The arrays of a run's shared memory."""

from functools import partial
from typing import Any

import numpy as np
import torch

from fastppo.build.memory_estimate import bytes_beside_arena, fitting_setting
from fastppo.collect import Rollout
from fastppo.config import Config
from fastppo.envs.source import EnvSource
from fastppo.envs.spaces import leaf_arrays, tree_map
from fastppo.errors import InputError
from fastppo.machine.arena import Arena, Spec
from fastppo.policy import Policy
from fastppo.stepping.infos import infos_spec
from fastppo.update.flat_parameters import trained_parameters
from fastppo.workers.protocol import protocol_spec
from fastppo.workers.update_helper import helper_count, shards_spec


def make_arena(config: Config, policy: Policy, source: EnvSource) -> Arena:
    """The shared block of a run; a ConfigError says which setting fits where this one does not."""
    def spec_of(config: Config) -> Spec:
        return arena_spec(config, policy)
    spec, one_id = spec_of(config), len(set(map(id, source.factories))) == 1
    return Arena(spec, beside=bytes_beside_arena(config, spec),
                 remedy=partial(fitting_setting, config, spec_of, one_id))


def arena_spec(config: Config, policy: Policy) -> Spec:
    """The arrays of a run: rollout, parameters, snapshot of the moments, cells, shards."""
    moments = ("<f4", (len(policy.observer.shift),))
    params, rows = sum(x.numel() for x in trained_parameters(policy)), config.num_envs * config.num_steps
    shared = shards_spec(params, rows) if shares_update(config, policy) else {}
    return {
        **rollout_spec(policy, config.num_steps, config.num_envs),
        "params": ("<f4", (params,)), "mean": moments, "scale": moments, **shared,
        **infos_spec(config.num_workers),
        **protocol_spec(config.num_workers, len(env_groups(config.num_envs)))}


def rollout_spec(policy: Policy, steps: int, envs: int) -> Spec:
    """The arrays of a rollout and of its episodes' ends, by name."""
    obs, act, te = policy.observer.layout.store, policy.actions.store, (steps, envs)
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
        known = list(map(torch.from_numpy, leaf_arrays(np.empty(spec[name][1], spec[name][0]))))
        got, wanted = _look(x), _look(
            policy.observer.layout.structure(known) if name == "obs" else known[0])
        if got != wanted:
            raise InputError(f"the {name} of this rollout is {got}, where this trainer's is"
                             f" {wanted}", fix)


def _look(x: Any) -> Any:
    """What can be seen of a tensor, or of each in a structure of them."""
    return tree_map(lambda x: f"{x.device} {x.dtype} {list(x.shape)}" if isinstance(x, torch.Tensor)
                  else type(x).__name__, x)


def shares_update(config: Config, policy: Policy) -> bool:
    """Whether workers compute shards of the update: of observations that lie there as seen."""
    return (config.learner == "kernel" and helper_count(config.num_workers) > 0
            and policy.observer.encoding.identity)


def env_groups(envs: int) -> list[range]:
    """Two halves of the environments, so that one infers while the other steps."""
    halves = [range(0, envs // 2), range(envs // 2, envs)]
    return [half for half in halves if half]
