"""The arrays of a run's shared memory, and the check of a rollout that is given to an update."""

import logging
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from fastppo.collect import Rollout, as_rollout
from fastppo.config import Config
from fastppo.errors import InputError
from fastppo.machine.shared_memory import Arena, Spec
from fastppo.networks.frame_stacks import FrameStacks
from fastppo.policy import Policy
from fastppo.spaces.leaves import leaves, tree_map
from fastppo.stepping.environments import SNAPSHOTS
from fastppo.stepping.rollout_recorder import infos_spec
from fastppo.update.flat_parameters import trained_parameters

log = logging.getLogger("fastppo")
LARGE = 100.0  # observations


def make_arena(config: Config, policy: Policy, row_bytes: int) -> Arena:
    """The shared memory of a run; ConfigError if there is too little.

    It has the rollout, the parameters, a snapshot of the moments, cells and shards, and as many as
    `row_bytes` for each compiled environment. Frames of images that we stack are each stored once.
    """
    moments = ("<f4", (len(policy.observer.shift),))
    params = sum(x.numel() for x in trained_parameters(policy))
    seen = policy.observer.layout
    once = (config.vec not in ("native", "envpool") and policy.observer.encoding.images
            and seen.is_box and seen.leaves[0].shape[0] == config.frame_stack > 1)
    workers: Spec = {}
    if config.num_workers:
        from fastppo.workers.protocol import protocol_spec
        from fastppo.workers.worker import helper_count, shards_spec
        if config.learner == "kernel" and policy.observer.encoding.identity \
                and helper_count(config.num_workers):  # they read observations as they are stored
            workers = shards_spec(params, config.rows * config.num_steps)
        workers |= protocol_spec(config.num_workers, len(env_groups(config.num_envs)))
    kept = SNAPSHOTS * (config.past > 0)
    arena = Arena({
        **rollout_spec(policy, config.num_steps, config.rows,
                       config.frame_stack if once else 0),
        "rows": ("|u1", (config.rows, row_bytes)),
        "params": ("<f4", (params,)), "mean": moments, "scale": moments,
        "pool": ("<f4", (kept, params)),
        **dict.fromkeys(("pool_mean", "pool_scale"), ("<f4", (kept, *moments[1]))),
        "against": ("|i1", (config.num_steps + 1, config.rows)),
        "duels": ("<f4", (config.num_steps * (kept > 0), config.rows, 2)),
        **infos_spec(config.num_workers), **workers})
    arena["stacks"].fill(0)  # workers check these numbers before the first rollout
    arena["acting"].fill(True)
    return arena


def rollout_spec(policy: Policy, steps: int, envs: int, stacked: int = 0) -> Spec:
    """The arrays of a rollout and of the episodes that ended in it, by name.

    With `stacked` frames, each stored once, step t has row t % 2 of obs (see FrameStore).
    """
    obs, act, te = policy.observer.layout.store, policy.actions.store, (steps, envs)
    scalars = dict.fromkeys(("logp", "val", "raw", "rew", "nxt", "adv", "ret"), ("<f4", te))
    frames, rows = (steps + stacked, steps + 1) if stacked else (0, 0)
    return {"obs": (obs.dtype, (2 if stacked else steps + 1, envs, *obs.shape)),
            "frames": (obs.dtype, (envs if stacked else 0, frames, *obs.shape[1:])),
            "stacks": ("<i8", (rows, envs, stacked)),
            "fin": (obs.dtype, (envs, *obs.shape)),
            "act": (act.dtype, (*te, *act.shape)), **scalars,
            **dict.fromkeys(("term", "trunc", "valid", "same_game"), ("|b1", te)),
            "acting": ("|b1", (steps + 1, envs)),
            "state": ("<f4", (steps + 1, envs, policy.memory)),
            "total": ("<f8", te), "length": ("<i8", te), "times": ("<f8", (envs + 1, 3))}


def env_groups(envs: int, first: int = 0, agents: int = 1) -> list[range]:
    """The rows of two halves of environments from the `first` on, each with as many `agents`:
    inference for one overlaps with steps of the other.
    """
    middle, end = first + envs // 2, first + envs
    return [range(agents * one, agents * last) for one, last in ((first, middle), (middle, end))
            if one < last]


def check_rollout(ppo, rollout: Rollout) -> None:
    """Raises InputError if `rollout` is not one of `ppo`; warns of the observations in its first.

    Its fields must have the shapes and dtypes of the policy's spaces, and be on the CPU or on the
    device of the policy.
    """
    policy, fix = ppo.policy, "ppo.update(ppo.collect())"
    if not isinstance(rollout, Rollout):
        raise InputError(f"update was given {type(rollout).__name__}, not a Rollout", fix)
    if not ppo.progress.iteration:
        raise InputError("update was given a rollout before this trainer has collected one", fix)
    if rollout is ppo.rollout:
        if ppo.config.vec != "envpool":  # which declares wrong bounds
            warn_of_observations(rollout, policy, ppo.config.norm_obs)
        return
    axes = getattr(rollout.raw, "shape", ())
    spec = rollout_spec(policy, *(axes if len(axes) == 2 else (0, 0)))
    wanted = as_rollout({name: np.empty(shape, dtype) for name, (dtype, shape) in spec.items()},
                        policy.observer.layout)
    describe = partial(_describe_tensor, {torch.device("cpu"), policy.observer.count.device})
    for name, x, expected in zip(Rollout._fields, tree_map(describe, rollout),
                                 tree_map(describe, wanted)):
        if x != expected:
            raise InputError(f"the {name} of this rollout is {x}, where this trainer's is"
                             f" {expected}", fix)


def warn_of_observations(rollout: Rollout, policy: Policy, norm_obs: bool) -> None:
    """Warns of numbers that a network sees badly; they are taken as they are.

    Those are floats outside the bounds of their space, and large ones that are not normalised.
    """
    for leaf in leaves(policy.observer.layout.space):
        space = leaf.space
        if not isinstance(space, Box) or space.dtype.itemsize == 1:  # images would take long
            continue
        rows = leaf.of(rollout.obs).cpu().numpy()
        low, high = rows.min((0, 1)), rows.max((0, 1))
        if space.dtype.kind == "f" and ((low < space.low) | (high > space.high)).any():
            log.warning("the %s leaves the bounds of its space, %s: it has values from %g to %g"
                        "\n  fix: declare these bounds in observation_space, or clip to its own",
                        leaf, space, low.min(), high.max())
        if not norm_obs and (most := max(-low.min(), high.max())) > LARGE:
            log.warning("the %s reaches %g, where a network learns best from numbers near 1, and"
                        " norm_obs is off\n  fix: norm_obs=True", leaf, most)


def _describe_tensor(here: set[torch.device], x: Any) -> str:
    if not isinstance(x, (torch.Tensor, FrameStacks)):
        return type(x).__name__
    return f"{x.device} " * (x.device not in here) + f"{x.dtype} {list(x.shape)}"
