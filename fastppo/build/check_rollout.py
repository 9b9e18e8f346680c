"""The check that a rollout given to an update is one of its trainer."""

import logging
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from fastppo.build.arena_layout import rollout_spec
from fastppo.collect import Rollout, as_rollout
from fastppo.errors import InputError
from fastppo.networks.frame_stacks import FrameStacks
from fastppo.policy import Policy
from fastppo.spaces.leaves import leaves, tree_map

log = logging.getLogger("fastppo")


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
        warn_of_observations(rollout, policy)
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


def warn_of_observations(rollout: Rollout, policy: Policy) -> None:
    """Warns of numbers that a network sees badly; they are taken as they are.

    Those are floats outside the bounds of their space, and large numbers that float32 rounds to the
    same few.
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
        step = np.spacing(np.maximum(abs(low), abs(high)), dtype=np.float32)
        alike = (step > 1) & (high - low < 16 * step) & (space.dtype != np.float32)
        if alike.any():
            log.warning("the %s has numbers near %g, of which float32 keeps multiples of %g only:"
                        " smaller differences are not seen\n  fix: subtract a constant from it in"
                        " the environment", leaf, high[alike].flat[0], step[alike].flat[0])


def _describe_tensor(here: set[torch.device], x: Any) -> str:
    if not isinstance(x, (torch.Tensor, FrameStacks)):
        return type(x).__name__
    return f"{x.device} " * (x.device not in here) + f"{x.dtype} {list(x.shape)}"
