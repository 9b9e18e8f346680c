"""A policy as a module of tensors alone, which can be traced and exported.

    raw observation, one tensor per leaf (and state) -> action of the environment, one tensor per
                                                        leaf (and the next state)

The module calls the policy itself. Only the steps that the policy takes in numpy are written here
in torch: how an observation is stored, and how an action is mapped to the action space.
"""

from typing import Any, Callable, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Box, Space
from torch import Tensor, nn

from fastppo.errors import ExportError
from fastppo.policy import Policy
from fastppo.spaces.actions import ActionMapping, bounds_of
from fastppo.spaces.leaves import CHOICES, MASK, choice_starts, leaves
from fastppo.spaces.observations import StoredLeaf

Function = Callable[[Tensor], Tensor]
TENSOR_DTYPES = "?Bbhilqefd"  # that all formats have, as numpy's characters
# actions.FORMS in torch: from a stored component to its share of the range, 0 to 1.
SHARES_OF_RANGE: dict[str, Function | None] = {
    "clip": None, "scale": lambda act: (act.clamp(-1, 1) + 1) / 2,
    "tanh": lambda act: (act.tanh() + 1) / 2, "unit": lambda act: act.clamp(0, 1)}


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
    Raises ExportError if two have the same name.
    """
    seen = policy.observer.layout
    ports = [Port(MASK if i == seen.mask else leaf_name("obs", column.leaf.path[seen.wrapped:]),
                  input_dtype(column), list(column.shape)) for i, column in enumerate(seen.leaves)]
    return _with_state(ports, "state", policy)


def outputs_of(policy: Policy) -> list[Port]:
    """The outputs of a policy's graph: `action`, or of a structure `action.go`, `action.0`, ...

    With memory the last one is `next_state`, the `state` of the next step.
    """
    ports = [Port(leaf_name("action", leaf.path), leaf.space.dtype.name, list(leaf.space.shape))
             for leaf in leaves(policy.act_space)]
    return _with_state(ports, "next_state", policy)


def leaf_name(whole: str, path: tuple) -> str:
    """The name of a leaf: obs.camera for obs["camera"], obs.0 for obs[0]."""
    return ".".join([whole, *map(str, path)])


def input_dtype(column: StoredLeaf) -> str:
    """The dtype of an input: the space's own, or a wider one if no tensor has it."""
    own = column.leaf.space.dtype
    if own.char in TENSOR_DTYPES:
        return own.name
    return "float32" if column.counts is None else "int64"


def storage_function(column: StoredLeaf) -> Function:
    """The function from raw observations of a leaf [b ...] to stored ones, in torch."""
    dtype = torch_dtype(column.dtype)
    if column.counts is None or not column.start.any():
        return lambda x: x.to(dtype)
    start = torch.from_numpy(column.start.copy())
    return lambda x: (x.long() - start).to(dtype)


def env_action_function(actions: ActionMapping) -> Callable[[Tensor], list[Tensor]]:
    """The function from stored actions [b ...] to those of the environment, in torch."""
    spaces = [leaf.space for leaf in leaves(actions.space)]
    functions = [_choice_to_env(space) if isinstance(space, CHOICES)
                 else _box_function(space, actions.form) for space in spaces]
    widths = [int(np.prod(space.shape)) for space in spaces]

    def to_env(act: Tensor) -> list[Tensor]:
        flat = act.reshape(act.shape[0], sum(widths))
        return [function(part) for function, part in zip(functions, flat.split(widths, -1))]
    return to_env


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """The dtype of torch for a dtype of numpy."""
    return torch.from_numpy(np.zeros(0, np.dtype(dtype).newbyteorder("="))).dtype


def _choice_to_env(space: Space) -> Function:
    dtype = torch_dtype(space.dtype)
    start = torch.from_numpy(choice_starts(space).reshape(-1).copy())
    return lambda act: (act.long() + start).to(dtype).reshape(act.shape[0], *space.shape)


def _box_function(space: Box, form: str) -> Function:
    dtype = torch_dtype(space.dtype)
    wide = torch.promote_types(torch.float32, dtype) if dtype.is_floating_point else torch.float64
    low, high = (torch.from_numpy(bound.astype("f8")).to(wide) for bound in bounds_of(space))
    share = SHARES_OF_RANGE[form]

    def to_env(act: Tensor) -> Tensor:
        # The share is rounded to float32, as in ActionMapping.
        act = act.to(wide) if share is None else low + share(act).to(wide) * (high - low)
        if not dtype.is_floating_point:
            act = torch.round(act)
        return act.clamp(low, high).to(dtype).reshape(act.shape[0], *space.shape)
    return to_env


def _with_state(ports: list[Port], name: str, policy: Policy) -> list[Port]:
    """`ports`, and with memory one for the state; ExportError if two of them have one name."""
    names = [port.name for port in ports]
    for double in names:
        if names.count(double) > 1:
            raise ExportError(f"two parts of the space would both be called {double}",
                              "rename a key of the Dict that it is in")
    return ports + [Port(name, "float32", [policy.memory])] * bool(policy.memory)
