"""Creates a user's own network, and tries it on two made-up observations."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete, Space
from torch import nn
from torch.distributions import Categorical, Distribution

from fastppo.build.arena_layout import rollout_spec
from fastppo.collect import Rollout, as_rollout
from fastppo.config import Config, default_of
from fastppo.envs.make import import_callable
from fastppo.errors import ModelError, user_code
from fastppo.networks.user_distribution import DistributionHead
from fastppo.policy import Policy
from fastppo.settings.fixes import Omit, Set
from fastppo.spaces.leaves import brief_text, leaf_arrays
from fastppo.spaces.observations import ObservationLayout
from fastppo.update.custom_loss import describe_output

TRIAL_SAMPLES = 32  # drawn from a distribution for each of two observations
MODEL_CLASS = ("a torch.nn.Module subclass, whose __init__ takes (obs_space, act_space) and begins"
               " with super().__init__()")


def make_user_network(model: Any, obs_space: Space, act_space: Space) -> nn.Module:
    """An instance of the user's class `model`; ModelError if there is none."""
    name = model if isinstance(model, str) else ""
    model = import_callable(name, "model") if name else model
    if model is None or isinstance(model, nn.Module):
        raise ModelError(f"the model {name or model!r} is not a class, and every trainer makes its"
                         " own network", f"give {MODEL_CLASS}")
    spaces = f"({brief_text(obs_space)}, {brief_text(act_space)})"
    with user_code(ModelError, f"{model!r}, called with {spaces},", f"give {MODEL_CLASS}"):
        net = model(obs_space, act_space)
        if not isinstance(net, nn.Module):
            raise TypeError(f"it returned {type(net).__name__}")
        next(net.parameters(), None)  # as torch's error says, Module.__init__ was not called
    return net


def try_network(policy: Policy, config: Config) -> Policy:
    """`policy` after one forward pass of its network, which also initialises lazy layers.

    It gets a DistributionHead if the network returns a Distribution. Raises ModelError if forward
    fails, or if its outputs have a wrong shape or dtype.
    """
    shapes = [[2, policy.head.size], [2], [2, policy.memory]][:3 if policy.memory else 2]
    state = f", state [2, {policy.memory}]" * bool(policy.memory)
    fix = f"return (action parameters [2, {policy.head.size}], value [2]{state}), all float32"
    with user_code(ModelError, f"a forward pass of the model with two observations{state}", fix):
        out = policy.net(*trial_inputs(policy))
        parts = list(out) if isinstance(out, (tuple, list)) and out else [out]
        own = isinstance(parts[0], Distribution) and not policy.memory
        found = [describe_output(x) for x in parts]
        if found[own:] != [f"float32 {shape}" for shape in shapes][own:]:
            raise TypeError(f"it returned {describe_output(out)}")
    return with_distribution_head(policy, parts[0], config) if own else policy


@torch.no_grad()
def takes_channels_last(policy: Policy) -> bool:
    """True if the network has convolutions and its forward takes images with channels last.

    It may not: `view` needs the usual order in memory, where `reshape` and `flatten` do not.
    """
    if not any(isinstance(part, nn.Conv2d) for part in policy.net.modules()):
        return False
    policy.observer.channels_last = True
    try:
        policy.net(*trial_inputs(policy))
    except Exception:  # a user's forward may raise anything
        return False
    finally:
        policy.observer.channels_last = False
    return True


def check_bf16_head(policy: Policy) -> None:
    """Raises ModelError for distributions that the network returns: their numbers would be bf16."""
    if isinstance(policy.head, DistributionHead):
        raise ModelError("precision is 'bf16', which would round the numbers of the distributions"
                         " that the model returns",
                         (Set(precision="fp32"), "return (action parameters, value)"))


def trial_inputs(policy: Policy) -> list[Any]:
    """Inputs of the network: two made-up observations, and the initial state if it has memory."""
    obs = policy.observer(policy.observer.tensors(trial_rows(policy.observer.layout)))
    return [obs, policy.initial_state(2)] if policy.memory else [obs]


def trial_rows(seen: ObservationLayout) -> np.ndarray:
    """Two made-up stored observations: numbers from -1 to 1, any bytes, the first choices."""
    rows = np.zeros((2, *seen.store.shape), seen.store.dtype)
    for array in leaf_arrays(rows):
        if array.dtype.kind in "fu":
            wave = np.cos(np.arange(array.size)).reshape(array.shape)
            array[...] = wave if array.dtype.kind == "f" else 127 * (1 + wave)
    return rows


@torch.no_grad()
def ends_in_critic(policy: Policy) -> bool:
    """True if the network's value is the output of its layer `critic`, a Linear."""
    layer, outputs = getattr(policy.net, "critic", None), []
    if not isinstance(layer, nn.Linear):
        return False
    handle = layer.register_forward_hook(lambda layer, args, out: outputs.append(out.flatten()))
    value = policy.net(*trial_inputs(policy))[1]
    handle.remove()
    return len(outputs) == 1 and outputs[0].equal(value)


@torch.no_grad()
def with_distribution_head(policy: Policy, dist: Distribution, config: Config) -> Policy:
    """The policy whose head samples the distributions that its network returns, such as `dist` [2].

    Raises ModelError if `dist` is not over the actions, or cannot do what the settings need.
    """
    name, space = describe_output(dist), policy.act_space
    for setting in ("std", "distribution"):
        if (value := getattr(config, setting)) != default_of(setting):
            raise ModelError(f"the model returned {name}, on which {setting}={value} has no effect",
                             Omit(setting))
    head = DistributionHead(policy.actions.store, "scale" if config.action_scaling else "clip")
    with user_code(ModelError, f"sampling {name}, which the model returned,",
                   "return a distribution over the actions, or (action parameters, value)"):
        noise = [torch.full((2, 2), i / TRIAL_SAMPLES) for i in range(TRIAL_SAMPLES)]
        rows = torch.cat([head.mode(dist), *(head.sample(dist, x)[0] for x in noise)])
        for action in policy.actions.to_env()(rows.numpy()):
            if not space.contains(action):
                raise ValueError(f"it gave {action}, but the actions are {space}")
        if isinstance(dist, Categorical) and isinstance(space, Discrete) \
                and dist.logits.shape[-1] < space.n:
            raise ValueError(f"it has {dist.logits.shape[-1]} choices, the actions are {space}")
    try:
        dist.entropy()
    except NotImplementedError as error:
        if config.entropy_coef:
            raise ModelError(f"the model returned {name}, which has no entropy(), but entropy_coef"
                             f" is {config.entropy_coef}", Set(entropy_coef=0)) from error
    return Policy(policy.obs_space, space, policy.net, config.norm_obs, head, policy.seed,
                  config.obs_limit).eval()


def trial_rollout(policy: Policy) -> Rollout:
    """A made-up rollout of two samples, as the policy acts, to try an update."""
    arrays = {name: np.zeros(shape, dtype)
              for name, (dtype, shape) in rollout_spec(policy, 1, 2).items()}
    rows = trial_rows(policy.observer.layout)
    noise = np.zeros((2, len(policy.head.noise)), np.float32)
    state = np.zeros((2, policy.memory), np.float32)
    arrays["act"][:], arrays["logp"][:], arrays["val"][:], _ = policy.act(rows, noise, state)
    for name in ("raw", "rew", "adv"):
        arrays[name][:] = 1.0, -1.0
    arrays["obs"][:], arrays["valid"][:] = rows, True
    arrays["ret"][:] = arrays["adv"] + arrays["val"]
    return as_rollout(arrays, policy.observer.layout)
