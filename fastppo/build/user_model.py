"""Creates a user's own network, and tries it on two made-up observations."""

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete, Space
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution

from fastppo.build.arena_layout import rollout_spec
from fastppo.collect import Rollout, as_rollout
from fastppo.config import Config, default_of
from fastppo.envs.make import import_callable
from fastppo.errors import ConfigError, ModelError
from fastppo.networks.user_distribution import DistributionHead
from fastppo.policy import Policy
from fastppo.settings.fixes import Omit, Set
from fastppo.spaces.leaves import brief_text, leaf_arrays
from fastppo.spaces.observations import ObservationLayout
from fastppo.update.custom_loss import describe_output

TRIAL_SAMPLES = 32  # drawn from a distribution for each of two observations
SUPER = "begin its __init__ with super().__init__()"
MODEL_CLASS = "a torch.nn.Module subclass, whose __init__ takes (obs_space, act_space)"


def make_user_network(model: Any, obs_space: Space, act_space: Space) -> nn.Module:
    """An instance of the user's class `model`; ModelError if there is none."""
    name = model if isinstance(model, str) else ""
    if name and (model := import_callable(name, "model")) is None:
        raise ConfigError(f"model={name!r} is not a class", (
            Set(model="module:Class"), f"give the name of {MODEL_CLASS}"))
    if isinstance(model, nn.Module):
        kind = type(model)
        raise ModelError(f"the model is made already, an instance of {kind.__name__}, but every"
                         " trainer makes its own", Set(model=f"{kind.__module__}:{kind.__name__}")
                         if name else f"give the class {kind.__name__}, or a function that makes"
                         " it: lambda obs_space, act_space: ...")
    try:
        net = model(obs_space, act_space)
    except Exception as error:  # a user's constructor may raise anything
        raise ModelError(f"{model!r} failed{user_line(error)} when called with"
                         f" ({brief_text(obs_space)}, {brief_text(act_space)}):"
                         f" {type(error).__name__}: {error}", _constructor_fix(error)) from error
    if isinstance(net, nn.Module) and "_modules" not in vars(net):
        raise ModelError(f"the __init__ of {model!r} does not begin with super().__init__()", SUPER)
    if not isinstance(net, nn.Module):
        raise ModelError(f"{model!r} returned {type(net).__name__}, not a torch.nn.Module",
                         f"give {MODEL_CLASS}")
    size = getattr(net, "state_size", 0)
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ModelError(f"the model's state_size is {size!r}, not a whole number, 0 or more",
                         "self.state_size = 64 in __init__, for example; leave it out for a model"
                         " without memory")
    return net


def _constructor_fix(error: Exception) -> str:
    """The fix for what the constructor of a user's model has raised."""
    if "before Module.__init__() call" in str(error):
        return SUPER
    return "correct it there" if user_line(error) else f"give {MODEL_CLASS}"


def try_network(policy: Policy, config: Config) -> Policy:
    """`policy` after one forward pass of its network, which also initialises lazy layers.

    It gets a DistributionHead if the network returns a Distribution. Raises ModelError if forward
    fails, or if its outputs have a wrong shape or dtype, are not finite, or have no gradient.
    """
    inputs, memory = trial_inputs(policy), policy.memory
    state = f", state [2, {memory}]" if memory else ""
    called = f"forward(obs {describe_output(inputs[0])}{state}) of the model"
    fix = f"return (action parameters [2, {policy.head.size}], value [2]{state}), all float32"
    try:
        out = policy.net(*inputs)
    except Exception as error:  # a user's forward may raise anything
        where = user_line(error)
        wanted = f"forward must accept these arguments, and {fix}"
        raise ModelError(f"{called} failed{where}: {type(error).__name__}: {error}",
                         f"correct that line; {wanted}" if where else wanted) from error
    parts = list(out) if isinstance(out, (tuple, list)) and out else [out]
    shapes = [[2, policy.head.size], [2], [2, memory]][:3 if memory else 2]
    own = isinstance(parts[0], Distribution) and not memory
    if [describe_output(x) for x in parts][own:] != [f"float32 {shape}" for shape in shapes][own:]:
        raise ModelError(f"{called} returned {describe_output(out)}", fix)
    for name, x in zip(("action parameters", "value", "state"), parts):
        if isinstance(x, Tensor) and not (finite := x.isfinite()).all():
            raise ModelError(f"{called} returned, with its first weights, the {name}"
                             f" {x[~finite][0].item()}", "return finite numbers: look for divisions"
                             " by 0, logarithms and weights that are not initialised")
    if own:
        policy = with_distribution_head(policy, parts[0], config)
        parts[0] = policy.head.sample(parts[0], torch.zeros(2, 2))[1]
    if not any(x.requires_grad for x in parts[:2]):
        raise ModelError(f"{called} returned tensors without a gradient",
                         "leave out detach(), .data, torch.no_grad() and requires_grad_(False)")
    return policy


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


def user_line(error: BaseException) -> str:
    """The last line in the traceback of an exception that is not torch's or ours; "" for none."""
    ours = Path(torch.__file__).parent, Path(__file__).parents[1]
    own = [one for one in traceback.extract_tb(error.__traceback__)
           if not any(place in Path(one.filename).parents for place in ours)]
    return f" in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""


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
    name = describe_output(dist)
    for setting in ("std", "distribution"):
        if (value := getattr(config, setting)) != default_of(setting):
            raise ModelError(f"the model returned {name}, on which {setting}={value} has no effect",
                             Omit(setting))
    head = DistributionHead(policy.actions.store, "scale" if config.action_scaling else "clip")
    _check_actions(policy, head, dist)
    try:
        dist.entropy()
    except NotImplementedError as error:
        if config.entropy_coef:
            raise ModelError(f"the model returned {name}, which has no entropy(), but entropy_coef"
                             f" is {config.entropy_coef}", Set(entropy_coef=0)) from error
    return Policy(policy.obs_space, policy.act_space, policy.net, config.norm_obs, head,
                  policy.seed, config.obs_limit).eval()


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


def _check_actions(policy: Policy, head: DistributionHead, dist: Distribution) -> None:
    """Raises ModelError if the mode of `dist` or a sample is not an action of the space."""
    name, actions = describe_output(dist), f"the actions are {policy.act_space}"
    fix = "return a distribution over these actions, or (action parameters, value)"
    try:
        noise = [torch.full((2, 2), i / TRIAL_SAMPLES) for i in range(TRIAL_SAMPLES)]
        rows = torch.cat([head.mode(dist), *(head.sample(dist, x)[0] for x in noise)])
    except Exception as error:  # a distribution of the user's may raise anything
        raise ModelError(f"the model returned {name}, but sampling it or its mode failed:"
                         f" {type(error).__name__}: {error}", fix) from error
    for action in policy.actions.to_env()(rows.numpy()):
        if not policy.act_space.contains(action):
            raise ModelError(f"the model returned {name}, which gave {action}, but {actions}", fix)
    if isinstance(dist, Categorical) and isinstance(policy.act_space, Discrete) \
            and dist.logits.shape[-1] < policy.act_space.n:
        raise ModelError(f"the model returned {name} over {dist.logits.shape[-1]} choices, but"
                         f" {actions}", fix)
