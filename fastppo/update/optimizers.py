"""Gradient clipping, Adam, and optimizers of torch on our parameters."""

import copy
import functools
import math
from typing import Any, Callable

import torch
from torch import Tensor

from fastppo.config import Config
from fastppo.errors import ConfigError
from fastppo.update.flat_parameters import FlatParameters, is_critic, trained_parameters

OPTIMIZER_FIX = "optimizer=torch.optim.SGD, or functools.partial(torch.optim.AdamW, weight_decay=0.01)"


class Adam:
    """Adam on a Flat's vector, with betas 0.9 and 0.999; its moments are f32 vectors beside it.

    `rates` are the learning rates of actor and critic, who share the actor's unless `apart`.
    Written here because on one vector it is five lines, while importing torch.optim's costs more
    than a second of start-up. Source: Kingma 2015, arXiv:1412.6980, algorithm 1.
    """

    BETAS = 0.9, 0.999

    def __init__(self, flat: FlatParameters, eps: float, apart: bool = False):
        self.flat, self.eps, self.rates, self.steps = flat, eps, (0.0, 0.0), 0
        self.mean, self.square = torch.zeros_like(flat.values), torch.zeros_like(flat.values)
        self.parts = flat.parts() if apart else [(slice(None), False)]

    @property
    def lr(self) -> float:
        """The actor's learning rate."""
        return self.rates[0]

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
        """Go back to a `state`."""
        self.steps = state[0]
        self.mean.copy_(state[1])
        self.square.copy_(state[2])


class TorchOptimizer:
    """An optimizer of torch's on the parameters, with our learning rates in its param_groups.

    `make` is called with the parameters, or with a group for each network where the critic has a
    rate of its own. Raises ConfigError where that gives no optimizer, or one that cannot step.
    """

    def __init__(self, make: Callable[[Any], Any], flat: FlatParameters, apart: bool):
        _check_rate(make)
        params = [(is_critic(name), param) for name, param in flat.net.named_parameters()
                  if param.requires_grad]
        self.owners = sorted({critic for critic, _ in params}) if apart else [False]
        groups = [{"params": [param for critic, param in params if critic is owner]}
                  for owner in self.owners]
        try:
            self.made = make(groups if apart else trained_parameters(flat.net))
        except Exception as error:  # a user's callable may raise anything
            raise ConfigError(f"the optimizer {make!r} failed when called with the parameters:"
                              f" {type(error).__name__}: {error}", OPTIMIZER_FIX) from error
        if not isinstance(self.made, torch.optim.Optimizer):
            raise ConfigError(f"the optimizer {make!r} returned {type(self.made).__name__}, not a"
                              " torch.optim.Optimizer", OPTIMIZER_FIX)
        held = {id(param) for group in self.made.param_groups for param in group["params"]}
        if not any(id(param) in held for _, param in params):
            raise ConfigError(f"the optimizer {make!r} holds none of the parameters that it was"
                              " called with", "optimizer=lambda params: torch.optim.SGD(params)")
        if not apart:  # however it has grouped the parameters
            self.owners *= len(self.made.param_groups)
        if len(self.made.param_groups) != len(self.owners):
            raise ConfigError(f"the optimizer {make!r} made {len(self.made.param_groups)} groups of"
                              " the two it was given, the actor's and the critic's, each of which"
                              " has a learning rate of its own by critic_lr",
                              "keep the two groups, or leave --critic_lr out")
        self._try(make, flat)
        self.rates = 0.0, 0.0

    @property
    def lr(self) -> float:
        """The actor's learning rate."""
        return self.rates[0]

    def step(self) -> None:
        """One step of the optimizer at the `rates`."""
        for group, critic in zip(self.made.param_groups, self.owners, strict=True):
            group["lr"] = self.rates[critic]
        self.made.step()

    def _try(self, make: Callable[[Any], Any], flat: FlatParameters) -> None:
        """One step on a gradient of zeros, taken back."""
        values, self.rates = flat.state, (1e-3, 1e-3)
        try:
            before = self.state
            self.step()
            self.restore(before)
        except Exception as error:  # a user's optimizer may raise anything
            raise ConfigError(f"the optimizer {make!r} failed in step(), which is called without a"
                              f" closure, on dense gradients: {type(error).__name__}: {error}",
                              OPTIMIZER_FIX) from error
        finally:
            flat.restore(values)

    @property
    def state(self) -> dict[str, Any]:
        """A copy of what the optimizer remembers."""
        return copy.deepcopy(self.made.state_dict())

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a `state`."""
        self.made.load_state_dict(state)


def _check_rate(make: Callable[[Any], Any]) -> None:
    """Raise ConfigError for a learning rate in a partial, which `rates` would replace."""
    if isinstance(make, functools.partial) and "lr" in make.keywords:
        raise ConfigError(f"the optimizer is given lr={make.keywords['lr']!r}, but the learning"
                          " rate of every optimizer is the setting lr, by its schedule",
                          f"take it out of the partial, and --lr={make.keywords['lr']}")


def make_optimizer(config: Config, flat: FlatParameters) -> Adam | TorchOptimizer:
    """The optimizer a Config asks for, on the parameters of `flat`."""
    if apart := config.critic_lr is not None:
        _check_apart("critic_lr", config, flat)
    if config.optimizer == "adam":
        return Adam(flat, config.adam_eps, apart)
    return TorchOptimizer(config.optimizer, flat, apart)


def _check_apart(name: str, config: Config, flat: FlatParameters) -> None:
    """Raise ConfigError where a setting tells actor and critic apart and the names do not."""
    if len({critic for _, critic in flat.parts()}) < 2:
        raise ConfigError(f"{name} is {getattr(config, name)}, but no parameter's name tells the"
                          " actor's from the critic's",
                          f"name the critic's critic, value or vf, or leave --{name} out")


def make_clipping(config: Config, flat: FlatParameters) -> Callable[[], Tensor]:
    """A function that brings the gradient down to max_grad_norm and returns the norm it had.

    All of it at once, or actor and critic each on its own. Source: Pascanu 2013, arXiv:1211.5063.
    """
    parts = [(slice(None), False)]
    if config.grad_clipping == "network":
        _check_apart("grad_clipping", config, flat)
        parts = flat.parts()
    networks = [[flat.grad[part] for part, one in parts if one is critic]
                for critic in sorted({one for _, one in parts})]
    return functools.partial(_clip, networks, config.max_grad_norm)


def _clip(networks: list[list[Tensor]], limit: float) -> Tensor:
    norms = [functools.reduce(torch.hypot, [view.norm() for view in views]) for views in networks]
    for views, norm in zip(networks, norms):
        for view in views:
            view.mul_((limit / (norm + 1e-6)).clamp(max=1.0))
    return functools.reduce(torch.hypot, norms)
