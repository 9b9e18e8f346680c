"""A policy as a function of tensors alone, which is what a file of it holds.

    raw observation, one tensor a leaf (and state) -> the environment's action, one tensor a leaf
                                                      (and the state after)

Between the two is the policy's own code; here is only what it does in numpy: how an observation is
stored (StoredLeaf.to_array), and how an action becomes the environment's (ActionMapping.to_env).
"""

from typing import Any, Callable, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import Tensor, nn

from fastppo.envs.actions import ActionMapping, bounds_of
from fastppo.envs.observations import StoredLeaf
from fastppo.envs.spaces import CHOICES, MASK, choice_starts, leaves
from fastppo.errors import ExportError
from fastppo.policy import Policy

TENSORS = "?Bbhilqefd"  # dtypes, as numpy's characters, that all formats take
# actions.FORMS in torch: from a stored component to a place between the bounds, 0 to 1.
PLACES: dict[str, Callable[[Tensor], Tensor] | None] = {
    "clip": None, "scale": lambda act: (act.clamp(-1, 1) + 1) / 2,
    "tanh": lambda act: (act.tanh() + 1) / 2, "unit": lambda act: act.clamp(0, 1)}
Function = Callable[[Tensor], Tensor]


class Port(NamedTuple):
    """An input or output of a graph: its name, and what one row of it is."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]


class Graph(nn.Module):
    """The environment's actions [b ...] for raw observations [b ...]; the likeliest ones.

    Inputs and outputs are tensors in the order of `inputs_of` and `outputs_of`; one output is no
    tuple.
    """

    def __init__(self, policy: Policy):
        super().__init__()
        self.policy, self.finish = policy, env_action_function(policy.actions)
        self.keep = [storage_function(column) for column in policy.observer.layout.leaves]

    def forward(self, *inputs: Tensor) -> Any:
        """Stored as training stores it, then the policy's own way."""
        policy = self.policy
        obs = policy.observer.layout.structure([keep(x) for keep, x in zip(self.keep, inputs)])
        # Without memory the state is passed on as it is: no rows of nothing in the graph.
        params, _, after = policy.step(obs, inputs[-1])
        found = self.finish(policy.head.mode(params)) + [after] * bool(policy.memory)
        return tuple(found) if len(found) > 1 else found[0]


def inputs_of(policy: Policy) -> list[Port]:
    """What a policy's graph takes: `obs`, or of a structure `obs.camera`, `obs.0`, ...

    An action mask is `action_mask`; with memory the last one is `state`, 0 where an episode begins.
    Raises ExportError where two have the same name.
    """
    seen = policy.observer.layout
    ports = [Port(MASK if i == seen.mask else leaf_name("obs", column.leaf.path[seen.wrapped:]),
                  input_dtype(column), column.shape) for i, column in enumerate(seen.leaves)]
    return _distinct(ports) + [Port("state", np.dtype("f4"), (policy.memory,))] * bool(
        policy.memory)


def outputs_of(policy: Policy) -> list[Port]:
    """What a policy's graph gives: `action`, or of a structure `action.go`, `action.0`, ...

    With memory the last one is `next_state`, the `state` of the next step.
    """
    ports = [Port(leaf_name("action", leaf.path), np.dtype(leaf.space.dtype).newbyteorder("="),
                  leaf.space.shape) for leaf in leaves(policy.act_space)]
    return _distinct(ports) + [Port("next_state", np.dtype("f4"), (policy.memory,))] * bool(
        policy.memory)


def leaf_name(whole: str, path: tuple) -> str:
    """The name of a leaf: obs.camera for obs["camera"], obs.0 for obs[0]."""
    return ".".join([whole, *map(str, path)])


def input_dtype(column: StoredLeaf) -> np.dtype:
    """The dtype of an input: the space's own, or where no tensor has that, one that holds it."""
    own = np.dtype(column.leaf.space.dtype).newbyteorder("=")
    return own if own.char in TENSORS else np.dtype("f4" if column.counts is None else "i8")


def storage_function(column: StoredLeaf) -> Function:
    """The torch twin of StoredLeaf.to_array: from raw observations of a leaf [b ...] to stored."""
    dtype = torch_dtype(column.dtype)
    if column.counts is None or not column.start.any():
        return lambda x: x.to(dtype)
    start = torch.from_numpy(column.start.copy())
    return lambda x: (x.long() - start).to(dtype)


def env_action_function(actions: ActionMapping) -> Callable[[Tensor], list[Tensor]]:
    """The twin in torch of Actions.to_env: from stored actions [b ...] to the environment's."""
    found = leaves(actions.space)
    makes = [_choices(leaf.space) if isinstance(leaf.space, CHOICES)
             else _numbers(leaf.space, actions.form) for leaf in found]
    widths = [int(np.prod(leaf.space.shape)) for leaf in found]

    def finish(act: Tensor) -> list[Tensor]:
        flat = act.reshape(act.shape[0], sum(widths))
        return [make(part) for make, part in zip(makes, flat.split(widths, -1))]
    return finish


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """The dtype of torch's that a dtype of numpy's is."""
    return torch.from_numpy(np.zeros(0, np.dtype(dtype).newbyteorder("="))).dtype


def _choices(space: Space) -> Function:
    start, dtype = torch.from_numpy(choice_starts(space).reshape(-1).copy()), torch_dtype(space.dtype)
    if isinstance(space, Discrete):
        return lambda act: (act[:, 0].long() + int(space.start)).to(dtype)
    return lambda act: (act.long() + start).to(dtype).reshape(act.shape[0], *space.shape)


def _numbers(space: Box, form: str) -> Function:
    dtype = torch_dtype(space.dtype)
    wide = torch.promote_types(torch.float32, dtype) if dtype.is_floating_point else torch.float64
    low, high = (torch.from_numpy(bound.astype("f8")).to(wide) for bound in bounds_of(space))
    place, whole = PLACES[form], torch.round if space.dtype.kind != "f" else lambda act: act

    def finish(act: Tensor) -> Tensor:
        # The place between the bounds is rounded to float32, as Actions has it.
        act = act.to(wide) if place is None else low + place(act).to(wide) * (high - low)
        return whole(act).clamp(low, high).to(dtype).reshape(act.shape[0], *space.shape)
    return finish


def _distinct(ports: list[Port]) -> list[Port]:
    names = [port.name for port in ports]
    for name in names:
        if names.count(name) > 1:
            raise ExportError(f"two parts of the space would both be called {name}",
                              "rename a key of the Dict in which it stands")
    return ports
