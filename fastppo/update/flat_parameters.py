"""All trained parameters of a network as views of one vector, gradients as views of another."""

import itertools
from contextlib import ExitStack
from typing import Any, Iterator, Sequence

import torch
from torch import Tensor, nn

from fastppo.errors import ModelError

CRITIC = "critic", "value", "vf"  # how a part of the critic's is called, at its name's beginning


class FlatParameters:
    """The vector `values` f32 [q], its gradient `grad`, and `offsets`: id(parameter) -> its place.

    `place` may be memory of the caller's to put the values into (the arena's); the order is that of
    named_parameters. A user's model or loss may have gradients beside this one, or look at it while
    it is computed: then it is not `alone`. Raises ModelError for a parameter that is not float32.
    """

    alone = True

    def __init__(self, net: nn.Module, place: Tensor | None = None):
        self.net, params, self.pairs = net, trained_parameters(net), []
        sizes, self.offsets = [param.numel() for param in params], {}
        self.values = params[0].new_empty(sum(sizes)) if place is None else place
        self.grad = self.values.grad = torch.zeros_like(self.values)
        for param, own, grad in zip(params, self.values.split(sizes), self.grad.split(sizes)):
            self.offsets[id(param)] = own.storage_offset() - self.values.storage_offset()
            own.copy_(param.detach().reshape(-1))
            param.data, param.grad = own.view_as(param), grad.view_as(param)
            self.pairs.append((param, param.grad))

    def trained(self) -> Iterator[tuple[Tensor, ...]]:
        """(parameters, their places in `grad`) of those that are not frozen."""
        for param, own in self.pairs:
            param.grad = own  # a script may have dropped it
        return zip(*(pair for pair in self.pairs if pair[0].requires_grad))

    @property
    def state(self) -> Tensor:
        """A copy of the values."""
        return self.values.clone()

    def restore(self, state: Tensor) -> None:
        """Goes back to a `state`."""
        self.values.copy_(state)

    def parts(self) -> list[tuple[slice, bool]]:
        """The vector cut where actor and critic meet: (places, whether they are the critic's)."""
        found, params = [], ((is_critic(name), param.numel()) for name, param in
                             self.net.named_parameters() if param.requires_grad)
        for critic, some in itertools.groupby(params, key=lambda one: one[0]):
            start = found[-1][0].stop if found else 0
            found.append((slice(start, start + sum(size for _, size in some)), critic))
        return found

    def check(self) -> None:
        """Raises ModelError where the network no longer uses the vector."""
        start = self.values.data_ptr()
        for param in trained_parameters(self.net):
            if param.data_ptr() != start + 4 * self.offsets.get(id(param), -1):
                raise ModelError("the model replaced a parameter after it was built",
                                 "change parameters in place: param.data.copy_(value)")


def is_critic(name: str) -> bool:
    """Whether the parameter of this name, such as net.critic_body.0.weight, is the critic's.

    It is where a part of the name begins with critic, value or vf; what is shared is the actor's.
    """
    return any(part.startswith(CRITIC) for part in name.split("."))


def trained_parameters(net: nn.Module) -> list[nn.Parameter]:
    """The parameters that are updated, each once, in the order of named_parameters."""
    params = [param for _, param in net.named_parameters() if param.requires_grad]
    if not params:
        raise ModelError("the model has no parameters to train", "give it layers with weights")
    for param in params:
        if param.dtype != torch.float32:
            raise ModelError(f"the model has a parameter of {param.dtype}, not torch.float32",
                             "call model.float(), or freeze it with requires_grad_(False)")
    return params


def restored_at_end(parts: Sequence[Any]) -> ExitStack:
    """A context that restores the `state` of all parts, however it ends, unless by `pop_all`."""
    undo = ExitStack()
    for part in parts:
        undo.callback(part.restore, part.state)
    return undo
