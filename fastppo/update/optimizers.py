"""Gradient clipping, Adam, and torch's optimizers on the parameters of a policy."""

import copy
import functools
import math
from typing import Any, Callable

import torch
from torch import Tensor

from fastppo.config import Config
from fastppo.errors import ConfigError, ModelError, Omit
from fastppo.update.flat_parameters import FlatParameters, is_critic, trained_parameters


class Adam:
    """Adam on the vector of FlatParameters, with betas 0.9 and 0.999.

    `rates` are the learning rates of actor and critic; without `apart` both have the actor's.
    torch.optim is not used because importing it adds more than a second to the start.
    Source: Kingma 2015, arXiv:1412.6980, algorithm 1.
    """

    BETAS = 0.9, 0.999

    def __init__(self, flat: FlatParameters, eps: float, apart: bool = False):
        self.flat, self.eps, self.rates, self.steps = flat, eps, (0.0, 0.0), 0
        self.mean, self.square = torch.zeros_like(flat.values), torch.zeros_like(flat.values)
        self.parts = flat.parts() if apart else [(slice(None), False)]

    def step(self) -> None:
        """values -= lr * m / (sqrt(v) + eps), with m and v corrected for their start at zero."""
        self.steps += 1
        (first, second), grad = self.BETAS, self.flat.grad
        self.mean.lerp_(grad, 1 - first)
        self.square.mul_(second).addcmul_(grad, grad, value=1 - second)
        scale = self.square.sqrt().div_(math.sqrt(1 - second**self.steps)).add_(self.eps)
        for part, critic in self.parts:
            self.flat.values[part].addcdiv_(
                self.mean[part], scale[part], value=-self.rates[critic] / (1 - first**self.steps))

    @property
    def state(self) -> tuple[int, Tensor, Tensor]:
        """A copy of (steps, first moments, second moments)."""
        return self.steps, self.mean.clone(), self.square.clone()

    def restore(self, state: tuple[int, Tensor, Tensor]) -> None:
        """Goes back to a `state`."""
        self.steps = state[0]
        self.mean.copy_(state[1])
        self.square.copy_(state[2])


class DeviceAdam(Adam):
    """An Adam whose step can read its rates from the device, so that a CUDA graph can have it.

    `numbers` f32 [3] are those of `planned` for the next step; None: the step is Adam's own.
    """

    numbers: Tensor | None = None

    def planned(self, count: int) -> Tensor:
        """f32 [count 3] for the next steps, which count as taken: both rates, and its number."""
        steps = range(self.steps + 1, self.steps + count + 1)
        self.steps += count
        return torch.tensor([[*self.rates, step] for step in steps], dtype=torch.float32,
                            device="cpu", pin_memory=self.mean.is_cuda)

    def step(self) -> None:
        """As Adam's, in one operation of torch's, which rounds otherwise."""
        if self.numbers is None:
            super().step()
            return
        flat, (first, second), (*rates, step) = self.flat, self.BETAS, self.numbers.unbind()
        for part, critic in self.parts:
            vectors = ([x[part]] for x in (flat.values, flat.grad, self.mean, self.square))
            torch._fused_adam_(*vectors, [], [step], lr=rates[critic], beta1=first, beta2=second,
                               weight_decay=0.0, eps=self.eps, amsgrad=False, maximize=False)


class TorchOptimizer:
    """A torch optimizer on the parameters, with our learning rates in its param_groups.

    `make` is called with the parameters, or with a group for each network if `apart`, where the
    critic has its own rate. Raises ModelError if it holds none of them.
    """

    def __init__(self, make: Callable[[Any], Any], flat: FlatParameters, apart: bool):
        params = trained_parameters(flat.net)
        if apart:
            names = [name for name, param in flat.net.named_parameters() if param.requires_grad]
            params = [{"params": [param for name, param in zip(names, params)
                                  if is_critic(name) == critic]} for critic in (False, True)]
        self.optimizer, self.rates, self.apart = make(params), (0.0, 0.0), apart
        if flat.offsets.keys().isdisjoint(
                id(param) for group in self.optimizer.param_groups for param in group["params"]):
            raise ModelError("the optimizer has none of the policy's parameters",
                             "make it from the parameters that it is called with")

    def step(self) -> None:
        """One step of the optimizer at the `rates`."""
        groups = self.optimizer.param_groups
        rates = self.rates if self.apart else self.rates[:1] * len(groups)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate
        self.optimizer.step()

    @property
    def state(self) -> dict[str, Any]:
        """A copy of the optimizer's state."""
        return copy.deepcopy(self.optimizer.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        """Goes back to a `state`."""
        self.optimizer.load_state_dict(state)


def make_optimizer(config: Config, flat: FlatParameters) -> Adam | TorchOptimizer:
    """The optimizer of a Config, on the parameters of `flat`."""
    apart = config.critic_lr is not None
    if apart:
        _check_two_networks("critic_lr", config, flat)
    if config.optimizer == "adam":
        kind = DeviceAdam if config.learner == "graph" else Adam
        return kind(flat, config.adam_eps, apart)
    return TorchOptimizer(config.optimizer, flat, apart)


def _check_two_networks(name: str, config: Config, flat: FlatParameters) -> None:
    """Raises ConfigError if a setting is for actor and critic, and the names do not tell them."""
    if len({critic for _, critic in flat.parts()}) < 2:
        raise ConfigError(f"{name} is {getattr(config, name)}, but the names of the parameters do"
                          " not tell the actor's from the critic's",
                          ("begin the names of the critic's with critic, value or vf", Omit(name)))


def make_clipping(config: Config, flat: FlatParameters) -> Callable[[], Tensor]:
    """A function that scales the gradient down to max_grad_norm and returns its former norm.

    The whole gradient, or the actor's and the critic's each. Source: Pascanu 2013, arXiv:1211.5063.
    """
    networks = [[flat.grad]]
    if config.grad_clipping == "network":
        _check_two_networks("grad_clipping", config, flat)
        networks = [[flat.grad[part] for part, one in flat.parts() if one is critic]
                    for critic in (False, True)]
    return functools.partial(_clip, networks, config.max_grad_norm)


def _clip(networks: list[list[Tensor]], limit: float) -> Tensor:
    """Scales the gradients of each network to a norm of `limit` at most; returns the whole norm."""
    norms = [functools.reduce(torch.hypot, [part.norm() for part in parts]) for parts in networks]
    for parts, norm in zip(networks, norms):
        for part in parts:
            part.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
    return functools.reduce(torch.hypot, norms)
