"""From a Config to a policy: which network, which first weights, and does it fit its spaces."""

import threading
from contextlib import contextmanager

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from . import kernels
from .config import Config
from .errors import ModelError
from .heads import Options, head_of
from .kernels import Purpose
from .nets import MLP
from .observations import Encoding, Observations
from .policy import Policy
from .spaces import mapped
from .values import NormValues


@contextmanager
def torch_threads(count: int):
    """Torch's intra-op threads inside the block, and no inference mode: training needs its tensors.

    What the host script had is put back. Its default device holds: an environment's own torch, or a
    model's forward, may count on it.
    """
    before, grad = torch.get_num_threads(), torch.is_grad_enabled()
    torch.set_num_threads(count)
    try:
        with torch.inference_mode(False), torch.set_grad_enabled(grad):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def own_torch():
    """Torch as a fresh interpreter has it, for building and files, whatever the host script set.

    The CPU is the default device, gradients are recorded, tensors are no inference tensors.
    """
    with torch.device("cpu"), torch.inference_mode(False), torch.enable_grad():
        yield

SEEDING = threading.RLock()  # one thread at a time borrows the host's generator


@own_torch()
def build_policy(obs_space: Space, act_space: Space, config: Config, model=None) -> Policy:
    """The policy of a resolved Config; `model` is a class of the user's, or None for the built-in.

    Raises ModelError where what the model returns does not fit the spaces.
    """
    generator = torch.Generator().manual_seed(kernels.word(config.seed, Purpose.INIT, 0, 0))
    seen, options = Observations(obs_space, act_space), head_options(config)
    features = config.hidden_sizes[-1] if config.sde and config.hidden_sizes else 0
    head = head_of(act_space, options, features)
    with SEEDING, torch.random.fork_rng(devices=[]):  # layers draw from the host's generator
        torch.manual_seed(generator.initial_seed())
        if config.model == "mlp":
            net = MLP(Encoding(seen).size, head.size - features, config.hidden_sizes,
                      config.activation, config.shared_critic, generator, bool(features),
                      config.final_tanh)
        else:
            net = _own(model or config.model, obs_space, act_space)
        net = NormValues(net) if config.norm_values else net
        policy = Policy(obs_space, act_space, net, config.norm_obs, head, config.seed,
                        config.obs_limit).eval()
        _check_outputs(policy, head.size)
    return policy


def head_options(config: Config) -> Options:
    """What a Config says of action heads."""
    return Options(*(getattr(config, name) for name in Options._fields))


def _own(model, obs_space: Space, act_space: Space) -> nn.Module:
    """The network that a class of the user's makes."""
    fix = "a torch.nn.Module subclass, whose __init__ takes (obs_space, act_space)"
    try:
        net = model(obs_space, act_space)
    except Exception as error:  # a user's constructor may raise anything
        raise ModelError(f"{model!r} failed when called with the two spaces:"
                         f" {type(error).__name__}: {error}", fix) from error
    if not isinstance(net, nn.Module):
        raise ModelError(f"{model!r} returned {type(net).__name__}, not a network", fix)
    return net


def _check_outputs(policy: Policy, outputs: int) -> None:
    """Run the network on a batch of two, which also materialises lazy layers."""
    seen, fix = policy.observer.seen, f"return (action parameters [2, {outputs}], value [2])"
    fix, rows = f"{fix}, both float", np.zeros((2, *seen.store.shape), seen.store.dtype)
    obs = policy.observer(policy.observer.tensors(rows))
    given = mapped(lambda x: list(x.shape), obs)
    try:
        with torch.no_grad():
            made = policy.net(obs, policy.start(obs)) if policy.memory else policy.net(obs)
    except Exception as error:  # a user's forward may raise anything
        raise ModelError(f"forward(obs {given}) of the model failed:"
                         f" {type(error).__name__}: {error}", fix) from error
    several = isinstance(made, (tuple, list))
    told = ", ".join(map(_shape, made)) if several else _shape(made)
    if not several or told != f"float [2, {outputs}], float [2]":
        raise ModelError(f"forward(obs {given}) of the model returned"
                         f" {f'({told})' if several else told}", fix)


def _shape(out) -> str:
    if not isinstance(out, Tensor):
        return type(out).__name__
    kind = "float" if out.is_floating_point() else str(out.dtype).removeprefix("torch.")
    return f"{kind} {list(out.shape)}"
