"""The check that a rollout given to an update is one of its trainer."""

from typing import Any

import numpy as np
import torch

from fastppo.build.arena_layout import rollout_spec
from fastppo.collect import Rollout, as_rollout
from fastppo.envs.spaces import tree_map
from fastppo.errors import InputError
from fastppo.policy import Policy


def check_rollout(rollout: Rollout, policy: Policy, iterations: int) -> None:
    """Raises InputError if `rollout` is not one of this trainer, or `iterations` is 0.

    Its fields must have the shapes and dtypes of the policy's spaces, and be on the CPU.
    """
    fix = "ppo.update(ppo.collect())"
    if not isinstance(rollout, Rollout):
        raise InputError(f"update was given {type(rollout).__name__}, not a Rollout", fix)
    if not iterations:
        raise InputError("update was given a rollout before this trainer has collected one", fix)
    axes = getattr(rollout.raw, "shape", ())
    spec = rollout_spec(policy, *(axes if len(axes) == 2 else (0, 0)))
    wanted = as_rollout({name: np.empty(shape, dtype) for name, (dtype, shape) in spec.items()},
                        policy.observer.layout)
    for name, x, expected in zip(Rollout._fields, tree_map(_describe_tensor, rollout),
                                 tree_map(_describe_tensor, wanted)):
        if x != expected:
            raise InputError(f"the {name} of this rollout is {x}, where this trainer's is"
                             f" {expected}", fix)


def _describe_tensor(x: Any) -> str:
    if not isinstance(x, torch.Tensor):
        return type(x).__name__
    return f"{x.device} {x.dtype} {list(x.shape)}"
