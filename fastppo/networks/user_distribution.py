"""The action head of a network that returns a torch.distributions.Distribution."""

import torch
from torch import Tensor
from torch import distributions as td

from fastppo.errors import ModelError
from fastppo.networks.heads import Head
from fastppo.networks.torch_state import seeded_rng
from fastppo.spaces.leaves import MASKED_LOGIT, Storage


class DistributionHead(Head):
    """Samples and evaluates the Distribution over actions that the network returns.

    Its first axis is the batch; log-probabilities and entropies are summed over the others. It
    samples from torch's generator, which is seeded by the noise of the first environment in the
    batch; so every group and step has its own numbers, for any number of processes. A distribution
    without an entropy gets an estimate without gradient: -logp of the action.
    """

    def __init__(self, store: Storage, form: str = "clip"):
        super().__init__(0, "uu")
        self.store, self.form = store, form
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
