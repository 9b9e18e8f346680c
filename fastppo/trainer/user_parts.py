"""What a user may write in place of ours: the network, its distribution, the loss.

    loss(output, batch, coefficients) -> (loss [], statistics by name)

`output` is what the current policy computes for the samples that `batch` recorded
(batches.PolicyOutput and Batch), `coefficients` are the numbers of this iteration
(coefficients.Coefficients). The loss must be a mean over the samples. Each statistic is a number,
and is shown as losses/<name>. A network is tried once, on made-up observations.
"""

import functools
from typing import Any, Callable

import numpy as np
import torch
from gymnasium.spaces import Discrete, Space
from torch import Tensor, nn
from torch import distributions as td
from torch.distributions import Categorical, Distribution

from fastppo.config import Config, default_of
from fastppo.envs.make import import_callable
from fastppo.errors import ModelError, Omit, Set, user_code
from fastppo.networks.action_heads import Head
from fastppo.networks.popart import PopArt, normalised_loss
from fastppo.networks.torch_state import seeded_rng
from fastppo.policy import Policy
from fastppo.spaces.leaves import MASKED_LOGIT, Storage, brief_text, leaf_arrays
from fastppo.spaces.observations import ObservationLayout
from fastppo.update.batches import Batch, PolicyOutput
from fastppo.update.schedules import Coefficients
from fastppo.update.statistics import LOSSES

Weighed = tuple[Tensor, dict[str, Tensor]]
Loss = Callable[[PolicyOutput, Batch, Coefficients], Weighed]
MEASURED = {*LOSSES, "epochs", "explained_variance"} - {"policy_loss", "value_loss"}
MODEL_CLASS = ("a torch.nn.Module subclass, whose __init__ takes (obs_space, act_space) and begins"
               " with super().__init__()")


class DistributionHead(Head):
    """Samples and evaluates the Distribution over actions that the network returns.

    Its first axis is the batch; log-probabilities and entropies are summed over the others. It
    samples from torch's generator, which is seeded by the noise of the first environment in the
    batch; so every group and step has its own numbers, for any number of processes. A distribution
    without an entropy gets an estimate without gradient: -logp of the action.
    """

    def __init__(self, store: Storage, bounds_map: str = "clip"):
        super().__init__(0, "uu")
        self.store, self.bounds_map = store, bounds_map
        self.dtype = torch.int64 if store.dtype == "<i8" else torch.float32

    def draw(self, params: td.Distribution, noise: Tensor) -> Tensor:
        """Samples act [b ...]; noise [b 2] is uniform, in steps of 2^-24."""
        high, low = (noise[0].double() * 2**24).long().tolist()
        with seeded_rng(high << 24 | low, noise.device):
            return self._stored(params, params.sample())

    def evaluate(self, params: td.Distribution, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        shape = params.batch_shape + params.event_shape
        logp = _sum_components(params.log_prob(act.reshape(shape).float()))
        if not (finite := logp.isfinite()).all():
            raise ModelError(f"the model's {type(params).__name__} gives an action that was drawn"
                             f" the log-probability {logp[~finite][0].item()}",
                             "bound what the model returns: no NaN, and no std that vanishes")
        try:
            return logp, _sum_components(params.entropy())
        except NotImplementedError:
            return logp, -logp.detach()

    def mode(self, params: td.Distribution) -> Tensor:
        """The likeliest action, or else the mean [b ...]."""
        return self._stored(params, distribution_mode(params))

    def masked(self, params: td.Distribution, mask: Tensor | None) -> td.Distribution:
        """A Categorical without the choices that `mask` [b n] forbids; no other type has a mask."""
        if mask is None:
            return params
        return td.Categorical(logits=params.logits.masked_fill(~mask, MASKED_LOGIT))

    def std(self, params: td.Distribution) -> Tensor:
        """The standard deviation [a] of each component, a mean over rows; [0] if it has none."""
        try:
            return params.stddev.reshape(params.batch_shape[0], -1).mean(0)
        except NotImplementedError:
            return torch.zeros(0)

    def _stored(self, params: td.Distribution, act: Tensor) -> Tensor:
        act = clamp_to_support(params, act)
        return act.reshape(act.shape[0], *self.store.shape).to(self.dtype)


def clamp_to_support(dist: td.Distribution, act: Tensor) -> Tensor:
    """`act` [b ...] clamped to the open interval that is the support of `dist`, if it is one.

    In float32 tanh(x) is 1 for x above 9, and a Beta sample may be 0: densities there are infinite.
    """
    try:
        support = dist.support
    except NotImplementedError:
        return act
    while isinstance(support, td.constraints.independent):
        support = support.base_constraint
    if not isinstance(support, td.constraints.interval):
        return act
    low, high = (torch.as_tensor(bound).to(act)
                 for bound in (support.lower_bound, support.upper_bound))
    return act.clamp(low.nextafter(high), high.nextafter(low))


def distribution_mode(dist: td.Distribution) -> Tensor:
    """The mode of a distribution, or else its mean; a transformed one transforms that of its base.

    Raises NotImplementedError if it has neither.
    """
    if isinstance(dist, td.TransformedDistribution):
        found = distribution_mode(dist.base_dist)
        for transform in dist.transforms:
            found = transform(found)
        return found
    if isinstance(dist, td.Independent):
        return distribution_mode(dist.base_dist)
    if isinstance(dist, td.Bernoulli):  # torch's mode is NaN for a probability of 0.5
        return (dist.probs > 0.5).to(dist.probs)
    try:
        return dist.mode
    except NotImplementedError:
        return dist.mean


def _sum_components(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1).sum(-1)


def configured_loss(config: Config, policy: nn.Module, loss: Loss) -> Loss:
    """`loss`, unless the Config has a function instead; in PopArt's units if the policy has it."""
    if callable(config.loss) and not isinstance(config.loss, type):
        loss = functools.partial(_user_loss, config.loss)
    return normalised_loss(loss, policy.net) if isinstance(policy.net, PopArt) else loss


def _user_loss(function: Callable, output: PolicyOutput, batch: Batch, coefs: Coefficients
               ) -> Weighed:
    """The loss and statistics that the user's `function` returns."""
    loss, stats = function(output, batch, coefs)
    if taken := MEASURED & stats.keys():
        raise ValueError(f"{min(taken)!r} is the name of a statistic of every loss")
    return loss, {name: torch.as_tensor(x, dtype=loss.dtype, device=loss.device).reshape(())
                  for name, x in stats.items()}


def describe_output(out: Any) -> str:
    """Type and shape of a network's or a function's output, such as (float32 [2, 3], int)."""
    if isinstance(out, (tuple, list)):
        return f"({', '.join(map(describe_output, out))})"
    if isinstance(out, Distribution):
        return f"{type(out).__name__} {list(out.batch_shape + out.event_shape)}"
    if isinstance(out, Tensor):
        return f"{str(out.dtype).removeprefix('torch.')} {list(out.shape)}"
    return type(out).__name__


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
    if config.precision == "bf16":
        raise ModelError("precision is 'bf16', which would round the numbers of the distributions"
                         " that the model returns",
                         (Set(precision="fp32"), "return (action parameters, value)"))
    for setting in ("std", "distribution", "rpo_alpha"):
        if (value := getattr(config, setting)) != default_of(setting):
            raise ModelError(f"the model returned {name}, on which {setting}={value} has no effect",
                             Omit(setting))
    head = DistributionHead(policy.actions.store, "scale" if config.action_scaling else "clip")
    with user_code(ModelError, f"sampling {name}, which the model returned,",
                   "return a distribution over the actions, or (action parameters, value)"):
        rows = torch.cat([head.mode(dist), head.sample(dist, torch.zeros(2, 2))[0]])
        for action in policy.actions.to_env()(rows.numpy()):
            if not space.contains(action):
                raise ValueError(f"it gave {action}, but the actions are {space}")
        if isinstance(dist, Categorical) and isinstance(space, Discrete) \
                and dist.logits.shape[-1] != space.n:
            raise ValueError(f"it has {dist.logits.shape[-1]} choices, the actions are {space}")
    try:
        dist.entropy()
    except NotImplementedError as error:
        if config.entropy_coef:
            raise ModelError(f"the model returned {name}, which has no entropy(), but entropy_coef"
                             f" is {config.entropy_coef}", Set(entropy_coef=0)) from error
    return Policy(policy.obs_space, space, policy.net, config.norm_obs, head, policy.seed,
                  config.obs_limit).eval()
