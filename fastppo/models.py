"""From a Config to a policy: which network, which first weights, and does it fit its spaces."""

import math
from contextlib import contextmanager

import torch
from gymnasium.spaces import Space

from . import kernels
from .config import Config
from .errors import ModelError
from .heads import size
from .kernels import Purpose
from .nets import MLP
from .policy import Policy
from .spaces import observation_store

TORCH = {"<f4": torch.float32, "|u1": torch.uint8, "|b1": torch.bool}


@contextmanager
def torch_threads(count: int):
    """Torch's intra-op threads inside the block; what the host script had is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def build_policy(obs_space: Space, act_space: Space, config: Config, model=None) -> Policy:
    """The policy of a resolved Config; `model` is a class of the user's, or None for the built-in.

    Raises ModelError where what the model returns does not fit the spaces.
    """
    generator = torch.Generator().manual_seed(kernels.word(config.seed, Purpose.INIT, 0, 0))
    inputs, outputs = math.prod(obs_space.shape), size(act_space)
    with torch.random.fork_rng(devices=[]):  # layers draw from the generator that is the host's
        torch.manual_seed(generator.initial_seed())
        if config.model == "mlp":
            net = MLP(inputs, outputs, config.hidden_sizes, config.activation, config.shared_critic,
                      generator)
        else:
            net = (model or config.model)(obs_space, act_space)
        policy = Policy(obs_space, act_space, net, config.norm_obs, config.log_std_init,
                        config.seed).eval()
        _check_outputs(policy, outputs)
    return policy


def _check_outputs(policy: Policy, outputs: int) -> None:
    """Run the network on a batch of two, which also materialises lazy layers."""
    store = observation_store(policy.obs_space)
    with torch.no_grad():
        made = policy(torch.zeros(2, *store.shape, dtype=TORCH[store.dtype]))
    shapes = [tuple(getattr(out, "shape", ())) for out in made] if isinstance(made, tuple) else made
    if shapes != [(2, outputs), (2,)]:
        raise ModelError(f"forward(obs [2 ...]) of the model returned {shapes}",
                         f"return (action parameters [2, {outputs}], value [2])")
