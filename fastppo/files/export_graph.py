"""A policy as a module of tensors alone, which can be traced and exported.

    raw observation, one tensor per leaf (and state) -> action of the environment, one tensor per
                                                        leaf (and the next state)

The module calls the policy itself. Only the steps that the policy takes in numpy are written here
in torch: how an observation is stored, and how an action is mapped to the action space.
"""

from typing import Any, Callable, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fastppo.policy import Policy
from fastppo.spaces.actions import ActionMapping
from fastppo.spaces.leaves import MASK, leaves
from fastppo.spaces.observations import StoredLeaf
from fastppo.spaces.tensor_actions import TensorFunction, tensor_to_env, torch_dtype

TENSOR_DTYPES = "?Bbhilqefd"  # that all formats have, as numpy's characters


class Port(NamedTuple):
    """An input or output of a graph; dtype and shape are of one row."""

    name: str
    dtype: str
    shape: list[int]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{' '.join(map(str, ['batch', *self.shape]))}]"


class Graph(nn.Module):
    """The deterministic actions [b ...] of the environment for raw observations [b ...].

    Inputs and outputs are tensors in the order of `inputs_of` and `outputs_of`; a single output is
    not in a tuple.
    """

    def __init__(self, policy: Policy):
        super().__init__()
        self.policy, self.to_env = policy, env_action_function(policy.actions)
        self.store = [storage_function(column) for column in policy.observer.layout.leaves]

    def forward(self, *inputs: Tensor) -> Any:
        """Stores the observations as training does, then calls the policy."""
        policy = self.policy
        obs = policy.observer.layout.structure([store(x) for store, x in zip(self.store, inputs)])
        # A policy without memory ignores the state; an empty one would be a node of the graph.
        params, _, state = policy.step(obs, inputs[-1])
        outputs = self.to_env(policy.head.mode(params)) + [state] * bool(policy.memory)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]


def inputs_of(policy: Policy) -> list[Port]:
    """The inputs of a policy's graph: `obs`, or of a structure `obs.camera`, `obs.0`, ...

    An action mask is `action_mask`. With memory the last one is `state`, 0 when an episode begins.
    """
    seen = policy.observer.layout
    ports = [Port(MASK if i == seen.mask else leaf_name("obs", column.leaf.path[seen.wrapped:]),
                  input_dtype(column), list(column.shape)) for i, column in enumerate(seen.leaves)]
    return ports + [Port("state", "float32", [policy.memory])] * bool(policy.memory)


def outputs_of(policy: Policy) -> list[Port]:
    """The outputs of a policy's graph: `action`, or of a structure `action.go`, `action.0`, ...

    With memory the last one is `next_state`, the `state` of the next step.
    """
    ports = [Port(leaf_name("action", leaf.path), leaf.space.dtype.name, list(leaf.space.shape))
             for leaf in leaves(policy.act_space)]
    return ports + [Port("next_state", "float32", [policy.memory])] * bool(policy.memory)


def leaf_name(whole: str, path: tuple) -> str:
    """The name of a leaf: obs.camera for obs["camera"], obs.0 for obs[0]."""
    return ".".join([whole, *map(str, path)])


def input_dtype(column: StoredLeaf) -> str:
    """The dtype of an input: the space's own, or a wider one if no tensor has it."""
    own = column.leaf.space.dtype
    if own.char in TENSOR_DTYPES:
        return own.name
    return "float32" if column.counts is None else "int64"


def storage_function(column: StoredLeaf) -> TensorFunction:
    """The function from raw observations of a leaf [b ...] to stored ones, in torch."""
    dtype = torch_dtype(column.dtype)
    if column.counts is None or not column.start.any():
        return lambda x: x.to(dtype)
    start = torch.from_numpy(column.start.copy())
    return lambda x: (x.long() - start).to(dtype)


def env_action_function(actions: ActionMapping) -> Callable[[Tensor], list[Tensor]]:
    """The function from stored actions [b ...] to those of the environment, in torch."""
    spaces = [leaf.space for leaf in leaves(actions.space)]
    functions = [tensor_to_env(space, actions.form) for space in spaces]
    widths = [int(np.prod(space.shape)) for space in spaces]

    def to_env(act: Tensor) -> list[Tensor]:
        flat = act.reshape(act.shape[0], sum(widths))
        return [function(part) for function, part in zip(functions, flat.split(widths, -1))]
    return to_env
