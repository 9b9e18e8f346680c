"""The action head of a network that returns a torch.distributions.Distribution."""

import torch
from torch import Tensor
from torch.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Independent,
    TransformedDistribution,
    constraints,
)

from fastppo.envs.spaces import MASKED_LOGIT, Storage
from fastppo.errors import ModelError
from fastppo.networks.heads import Head
from fastppo.networks.torch_state import seeded_rng


class DistributionHead(Head):
    """What the network returns, a Distribution over actions, is sampled and judged by itself.

    Its first axis is the batch; log-probabilities and entropies are summed over the others. Its
    sampler draws from torch's generator, seeded by the noise of the group's first environment; so
    groups and steps have numbers of their own, however many processes there are. Where it has no
    entropy, one is estimated: -logp of the action, through which no gradient goes.
    """

    def __init__(self, store: Storage, form: str = "clip"):
        super().__init__(0, "uu")
        self.store, self.form = store, form
        self.dtype = torch.int64 if store.dtype == "<i8" else torch.float32

    def sample(self, params: Distribution, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(act [b ...], logp [b]); noise [b 2] is uniform, in steps of 2^-24."""
        high, low = (noise[0].double() * 2**24).long().tolist()
        with seeded_rng(high << 24 | low, noise.device):
            act = self._kept(clamp_to_support(params, params.sample()))
        return act, self.evaluate(params, act)[0]

    def evaluate(self, params: Distribution, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        shape = params.batch_shape + params.event_shape
        logp = _summed(params.log_prob(act.reshape(shape).float()))
        if not (finite := logp.isfinite()).all():
            raise ModelError(f"the model's {type(params).__name__} gives an action that was drawn"
                             f" the log-probability {logp[~finite][0].item()}",
                             "bound what the model returns: a std that does not vanish, no NaN")
        try:
            return logp, _summed(params.entropy())
        except NotImplementedError:
            return logp, -logp.detach()

    def mode(self, params: Distribution) -> Tensor:
        """The likeliest action, or else the mean [b ...]."""
        return self._kept(clamp_to_support(params, distribution_mode(params)))

    def masked(self, params: Distribution, mask: Tensor | None) -> Distribution:
        """A Categorical without the choices that `mask` [b n] forbids; of others none is known."""
        if mask is None:
            return params
        return Categorical(logits=params.logits.masked_fill(~mask, MASKED_LOGIT))

    def _kept(self, act: Tensor) -> Tensor:
        return act.reshape(act.shape[0], *self.store.shape).to(self.dtype)


def clamp_to_support(dist: Distribution, act: Tensor) -> Tensor:
    """`act` [b ...] within the open interval that is the support of `dist`, if it is one.

    In float32 a tanh is 1 from 9 on, and a Beta's draw may be 0: there densities are infinite.
    """
    try:
        support = dist.support
    except NotImplementedError:
        return act
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if not isinstance(support, constraints.interval):
        return act
    low, high = (torch.as_tensor(bound).to(act)
                 for bound in (support.lower_bound, support.upper_bound))
    return act.clamp(low.nextafter(high), high.nextafter(low))


def distribution_mode(dist: Distribution) -> Tensor:
    """The mode of a distribution, or else its mean; of a transformed one that of what is within.

    Raises NotImplementedError where it has neither.
    """
    if isinstance(dist, TransformedDistribution):
        found = distribution_mode(dist.base_dist)
        for transform in dist.transforms:
            found = transform(found)
        return found
    if isinstance(dist, Independent):
        return distribution_mode(dist.base_dist)
    if isinstance(dist, Bernoulli):  # whose mode is NaN where both are as likely
        return (dist.probs > 0.5).to(dist.probs)
    try:
        return dist.mode
    except NotImplementedError:
        return dist.mean


def _summed(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], -1).sum(-1)
