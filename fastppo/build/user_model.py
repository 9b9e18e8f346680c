"""Networks of the user's: found by name, made, and tried on one batch before anything runs."""

import math
from typing import Any, Sequence

import numpy as np
import torch
from gymnasium.spaces import Discrete, Space
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent

from fastppo.config import Config
from fastppo.envs.make import import_callable
from fastppo.envs.observations import ObservationLayout
from fastppo.envs.spaces import CHOICES, choice_counts, leaf_arrays, leaves, tree_map
from fastppo.errors import ConfigError, ModelError
from fastppo.networks.torch_state import seeded_rng
from fastppo.networks.user_distribution import DistributionHead
from fastppo.policy import Policy

TRIAL_SAMPLES = 32  # of a distribution for two rows, each of which must be an action
MODEL_CLASS = "a torch.nn.Module subclass, whose __init__ takes (obs_space, act_space)"


def is_user_model(model: Any) -> bool:
    """Whether a setting `model` says a class of the user's: itself, or as module:Class."""
    return callable(model) or isinstance(model, str) and ":" in model


def make_user_network(model: Any, obs_space: Space, act_space: Space) -> nn.Module:
    """The network that a class of the user's makes; ModelError where it makes none."""
    said = model if isinstance(model, str) else ""
    if said and (model := import_callable(said, "model")) is None:
        raise ConfigError(f"model is {said!r}, which is no class",
                          f"--model=module:Class, the name of {MODEL_CLASS}")
    if isinstance(model, nn.Module):
        name = type(model).__name__
        itself = f"--model={type(model).__module__}:{name}" if said else f"model={name}"
        raise ModelError(f"model is a network of the class {name} that is made already, but every"
                         " trainer makes its own", f"{itself}, the class itself")
    try:
        net = model(obs_space, act_space)
    except Exception as error:  # a user's constructor may raise anything
        raise ModelError(f"{model!r} failed when called with {obs_space} and {act_space}:"
                         f" {type(error).__name__}: {error}",
                         f"for these two spaces {MODEL_CLASS}") from error
    if not isinstance(net, nn.Module):
        raise ModelError(f"{model!r} returned {type(net).__name__}, not a network", MODEL_CLASS)
    size = getattr(net, "state_size", 0)
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ModelError(f"the model's state_size is {size!r}, which is no number of floats",
                         "self.state_size = 64, say, in __init__; 0 or none for no memory")
    return net


def try_network(policy: Policy, config: Config) -> Policy:
    """`policy`, whose network has been run on a batch of two, which materialises lazy layers.

    With another head, if that returned a Distribution. Raises ModelError where what it returned
    does not fit the spaces, or is not finite.
    """
    size, memory, obs = policy.head.size, policy.memory, _seen(policy)
    given = f"forward(obs {tree_map(_axes, obs)}" + f", state [2, {memory}]" * bool(memory) + ")"
    fix = f"return (action parameters [2, {size}], value [2]" + (
        f", state [2, {memory}]), all float32" if memory else "), both float32")
    try:
        with torch.enable_grad():
            out = _answer(policy, obs)
    except Exception as error:  # a user's forward may raise anything
        raise ModelError(f"{given} of the model failed: {type(error).__name__}: {error}",
                         f"have it take just that, and {fix}") from error
    several = isinstance(out, (tuple, list))
    found = list(map(_shape, out)) if several else [_shape(out)]
    own = several and len(out) > 1 and isinstance(out[0], Distribution) and not memory
    wanted = [f"float32 {axes}" for axes in ([2, size], [2], *[[2, memory]] * bool(memory))]
    if not several or found[own:] != wanted[own:]:
        told = ", ".join(found)
        raise ModelError(f"{given} of the model returned {f'({told})' if several else told}", fix)
    for name, x in zip(("action parameters", "value", "state"), out):
        if isinstance(x, Tensor) and not (finite := x.isfinite()).all():
            raise ModelError(f"{given} of the model returned, with its first weights, the {name}"
                             f" {x[~finite][0].item()}", "return finite numbers: look for divisions"
                             " by 0, logarithms and weights that nobody has set")
    if own:
        with torch.no_grad():
            policy = with_distribution_head(policy, out[0], config)
        with torch.enable_grad():
            out = policy.head.sample(out[0], torch.zeros(2, 2))[1], out[1]
    _check_learns(policy.net, out[:2], given)
    return policy


@torch.no_grad()
def ends_in_critic(policy: Policy) -> bool:
    """Whether a network's value is what its layer `critic`, a Linear, gives and nothing else."""
    layer, found = getattr(policy.net, "critic", None), []
    if not isinstance(layer, nn.Linear):
        return False
    handle = layer.register_forward_hook(lambda layer, given, out: found.append(out.flatten()))
    value = _answer(policy, _seen(policy))[1]
    handle.remove()
    return len(found) == 1 and found[0].equal(value)


def _seen(policy: Policy) -> Any:
    """What the network of a policy sees of two probing observations."""
    return policy.observer(policy.observer.tensors(probe_rows(policy.observer.layout)))


def _answer(policy: Policy, obs: Any) -> Any:
    """What the network returns for a batch of two, at the start of an episode."""
    return policy.net(obs, *[policy.initial_state(2)] * bool(policy.memory))


def _check_learns(net: nn.Module, out: Sequence[Tensor], given: str) -> None:
    """Raise ModelError where nothing could be learnt: no gradient leads back to a parameter."""
    if not any(param.requires_grad for param in net.parameters()):
        raise ModelError(f"{type(net).__name__} has no parameter that requires a gradient",
                         "give the model layers in __init__, or do not freeze all of them")
    if not any(x.requires_grad for x in out):
        raise ModelError(f"{given} of the model returned tensors without a gradient",
                         "leave out detach(), .data and torch.no_grad() in forward")


def probe_rows(seen: ObservationLayout) -> np.ndarray:
    """Two stored observations of no meaning: numbers from -1 to 1, any bytes, the first choices."""
    rows = np.zeros((2, *seen.store.shape), seen.store.dtype)
    for array in leaf_arrays(rows):
        if array.dtype.kind in "fu":
            wave = np.cos(np.arange(array.size)).reshape(array.shape)
            array[...] = wave if array.dtype.kind == "f" else 127 * (1 + wave)
    return rows


def with_distribution_head(policy: Policy, dist: Distribution, config: Config) -> Policy:
    """The policy of a network that returns such distributions, of a batch of two.

    Raises ModelError for one that is not over the space's actions, or lacks what is asked of it.
    """
    store, space, name = policy.actions.store, policy.act_space, _shape(dist)
    wanted, fix = [2, *store.shape], "return (action parameters, value) instead"
    for setting, plain in (("std", None), ("distribution", "gaussian")):
        if getattr(config, setting) != plain:
            raise ModelError(f"the model returns the distribution {name}, of which {setting}"
                             " says nothing", f"leave {setting} out")
    axes = list(dist.batch_shape + dist.event_shape)
    if axes[:1] != [2] or math.prod(axes) != math.prod(wanted):
        raise ModelError(f"the model returned a distribution over {axes}, but a batch of two"
                         f" actions of {space} is {wanted}", f"make it of the shape {wanted}")
    if isinstance(space, Discrete) and _choices(dist) != space.n:
        many = "no number of" if _choices(dist) is None else _choices(dist)
        raise ModelError(f"the model returned {name}, which is over {many} choices, for the actions"
                         f" {space}", f"Categorical(logits=...) of [2, {space.n}]")
    if policy.observer.layout.mask is not None and type(dist) is not Categorical:
        raise ModelError(f"the model returned {name}, of which nobody knows how to take away the"
                         " actions that a mask forbids; only of a Categorical", fix)
    head = DistributionHead(store, "scale" if config.action_scaling else "clip")
    _ask(head, dist, config, name, fix)
    _check_samples(head, dist, space, name)
    return Policy(policy.obs_space, space, policy.net, config.norm_obs, head,
                  policy.seed, config.obs_limit).eval()


def _ask(head: DistributionHead, dist: Distribution, config: Config, name: str, fix: str) -> None:
    """Raise ModelError for a distribution that cannot be sampled, judged, or asked for its mode."""
    for what, ask in (("sample", lambda: head.sample(dist, torch.zeros(2, 2, dtype=torch.float32))),
                      ("mode or mean", lambda: head.mode(dist))):
        try:
            ask()
        except Exception as error:  # a distribution of the user's may raise anything
            raise ModelError(f"the model returned {name}, whose {what} failed:"
                             f" {type(error).__name__}: {error}", fix) from error
    try:
        dist.entropy()
    except NotImplementedError as error:
        if config.entropy_coef:
            raise ModelError(f"the model returned {name}, which has no entropy(), but entropy_coef"
                             f" is {config.entropy_coef}", "--entropy_coef=0") from error


def _check_samples(head: DistributionHead, dist: Distribution, space: Space, name: str) -> None:
    """Raise ModelError where a sample or the mode is none of the actions, as they are kept."""
    highest = torch.from_numpy(np.concatenate([
        choice_counts(leaf.space) - 1 if isinstance(leaf.space, CHOICES)
        else np.full(math.prod(leaf.space.shape), np.inf) for leaf in leaves(space)]))
    with seeded_rng(0):
        found = [head.mode(dist).trunc(), *(dist.sample() for _ in range(TRIAL_SAMPLES))]
    rows = torch.cat([x.reshape(2, len(highest)).double() for x in found])
    within = (rows >= 0) & (rows <= highest) & (rows == rows.trunc())
    wrong = (highest.isfinite() & ~within).any(1).nonzero()
    if len(wrong):
        wanted = ", ".join("any" if x == math.inf else f"0 to {x:g}" for x in highest.tolist())
        raise ModelError(f"the model returned {name}, which gave {rows[wrong[0, 0]].tolist()} for"
                         f" the actions {space}, which are kept as whole numbers ({wanted})",
                         "return one over these, or (action parameters, value) instead")


def _choices(dist: Distribution) -> Any:
    """How many whole numbers from 0 on a distribution is over; None if it is not over such."""
    while isinstance(dist, Independent):
        dist = dist.base_dist
    support = getattr(dist, "support", None)
    upper = getattr(support, "upper_bound", None) if getattr(support, "is_discrete", 0) else None
    return None if upper is None else int(torch.as_tensor(upper).max()) + 1


def _axes(x: Tensor) -> list[int]:
    return list(x.shape)


def _shape(out: Any) -> str:
    if isinstance(out, Distribution):
        return f"{type(out).__name__} {list(out.batch_shape + out.event_shape)}"
    if not isinstance(out, Tensor):
        return type(out).__name__
    return f"{str(out.dtype).removeprefix('torch.')} {_axes(out)}"
