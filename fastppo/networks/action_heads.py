"""Action heads: from a network's parameters to actions, log-probabilities and entropies (torch).

Every head has
    size      number of action parameters that the network must return
    means     bool [size], True for the means of what is sampled
    noise     one letter for each random number of an action: u uniform in [0, 1), n normal
    bounds_map   the map from a stored action to the environment's (ActionMapping)
    noise_steps  steps for which the noise stays the same; None: a whole rollout
and functions of parameters [b size]: sample, draw, evaluate, mode, masked, std. No head draws
random numbers: noise is an argument. Log-probabilities and entropies are in nats, summed over
components. Entropies are exact unless a head says that they are estimated.
"""

import math
from typing import Sequence

import numpy as np
import torch
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete, Space
from torch import Tensor, nn
from torch.nn import functional as F

from fastppo.config import Config
from fastppo.spaces.leaves import MASKED_LOGIT, choice_counts, leaves, subspaces

LOG_TWO_PI = math.log(2 * math.pi)
DEFAULT_CONFIG = Config()


class Head(nn.Module):
    """The base of all heads; the first `means` of the `size` parameters are means.

        draw(params, noise [b k])   -> act
        evaluate(params, act)       -> (logp [b] of act, entropy [b])
        mode(params)                -> the likeliest act
    """

    bounds_map, noise_steps = "clip", 1

    def __init__(self, size: int, noise: str = "u", means: int = 0):
        super().__init__()
        self.size, self.noise, self.means = size, noise, np.arange(size) < means

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(act, logp [b]); logp is computed from the stored action, as the update does."""
        act = self.draw(params, noise)
        return act, self.evaluate(params, act)[0]

    def masked(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Parameters with which actions that `mask`, bool [b choices], forbids are never taken."""
        return params

    def std(self, params: Tensor) -> Tensor:
        """The standard deviation [a] of each number in act, a mean over rows; choices have none."""
        return torch.zeros(0)


class Categorical(Head):
    """One of n actions, act i64 [b], from unnormalised log-probabilities [b n]."""

    def draw(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Samples act [b] by inverse CDF from one uniform number a row, noise [b 1]."""
        return _inverse_cdf(logits, noise)

    def evaluate(self, logits: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, [b] or [b 1], and entropy [b])."""
        logp = logits.log_softmax(-1)
        index = act.long().reshape(-1, 1)
        return logp.gather(-1, index).squeeze(-1), -(logp.exp() * logp).sum(-1)

    def mode(self, logits: Tensor) -> Tensor:
        """The likeliest action [b]."""
        return logits.argmax(-1)

    def masked(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        """Logits, so low for illegal actions that their probability is 0."""
        return logits if mask is None else logits.masked_fill(~mask, MASKED_LOGIT)


class MultiCategorical(Head):
    """One choice for each of k independent factors, act i64 [b k]; logits are concatenated."""

    def __init__(self, sizes: Sequence[int]):
        super().__init__(int(sum(sizes)), "u" * len(sizes))
        # Logits as a table [k, largest size]; short factors are padded with illegal choices.
        used = np.arange(max(sizes)) < np.array(sizes)[:, None]
        index = np.where(used, np.cumsum(used).reshape(used.shape) - 1, 0)
        self.register_buffer("index", torch.from_numpy(index), persistent=False)
        self.register_buffer("padding", torch.from_numpy(~used), persistent=False)

    def draw(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Samples act [b k] from one uniform number a factor."""
        return _inverse_cdf(self._factors(logits), noise[:, :, None])

    def evaluate(self, logits: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        logp = self._factors(logits).log_softmax(-1)
        index = act.long()[..., None]
        return logp.gather(-1, index).sum((-1, -2)), -(logp.exp() * logp).sum((-1, -2))

    def mode(self, logits: Tensor) -> Tensor:
        """The likeliest choice of every factor [b k]."""
        return self._factors(logits).argmax(-1)

    masked = Categorical.masked

    def _factors(self, logits: Tensor) -> Tensor:
        return logits[:, self.index].masked_fill(self.padding, MASKED_LOGIT)


class Bernoulli(Head):
    """k independent bits, act i64 [b k], from the log-odds [b k] of a 1."""

    def __init__(self, size: int):
        super().__init__(size, "u" * size)

    def draw(self, odds: Tensor, noise: Tensor) -> Tensor:
        """Samples act [b k] from one uniform number a bit."""
        return (noise < odds.sigmoid()).long()

    def evaluate(self, odds: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        logp = F.logsigmoid(torch.where(act > 0, odds, -odds))
        one, none = F.logsigmoid(odds), F.logsigmoid(-odds)
        return logp.sum(-1), -(one.exp() * one + none.exp() * none).sum(-1)

    def mode(self, odds: Tensor) -> Tensor:
        """The likelier value of every bit [b k]."""
        return (odds > 0).long()

    def masked(self, odds: Tensor, mask: Tensor | None) -> Tensor:
        """Log-odds, infinite for a bit with one legal value; `mask` [b 2k]: 0 legal, 1 legal."""
        if mask is None:
            return odds
        none, one = mask.reshape(mask.shape[0], self.size, 2).unbind(-1)
        return odds.masked_fill(~one, MASKED_LOGIT).masked_fill(~none, -MASKED_LOGIT)


class Normal(Head):
    """Independent normals; a subclass has `normal(params)`, which returns their means and stds."""

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        """Samples act [b a] from standard normal noise [b a]."""
        mean, std = self.normal(params)
        return mean + std * noise

    def evaluate(self, params: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        mean, std = self.normal(params)
        logp = -0.5 * ((act - mean) / std).square() - std.log() - 0.5 * LOG_TWO_PI
        return logp.sum(-1), (std.log() + 0.5 * (1 + LOG_TWO_PI)).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The mean [b a]."""
        return self.normal(params)[0]

    def std(self, params: Tensor) -> Tensor:
        """The standard deviation [a] of each component, a mean over rows."""
        return self.normal(params)[1].mean(0)


class Gaussian(Normal):
    """Normals with means [b a] and one log std for each component, free of the state.

    The log std begins at `log_std_init` and is trained unless `fixed`.
    """

    def __init__(self, size: int, log_std_init: float | Tensor = 0.0, bounds_map: str = "clip",
                 fixed: bool = False):
        super().__init__(size, "n" * size, size)
        start = torch.as_tensor(log_std_init, dtype=torch.float32).expand(size).clone()
        self.bounds_map, self.log_std = bounds_map, nn.Parameter(start, requires_grad=not fixed)

    def normal(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """(mean [b a], std [a])."""
        return mean, self.log_std.exp()

    def std(self, params: Tensor | None = None) -> Tensor:
        """The standard deviation [a] of each component, free of the state."""
        return self.log_std.exp()

    def evaluate(self, mean: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b]), in the order of operations of the kernels."""
        entropy = self.log_std.sum() + 0.5 * self.size * (1 + LOG_TWO_PI)
        z = (act - mean) * (-self.log_std).exp()
        logp = -0.5 * z.square().sum(-1) - self.log_std.sum() - 0.5 * self.size * LOG_TWO_PI
        return logp, entropy.expand(len(act))


class StateGaussian(Normal):
    """Normals of which the network returns means and raw stds, parameters [b 2a].

    std = scale softplus(raw + softplus^-1(exp(log_std_init) / scale)) + floor, so raw 0 gives
    exp(log_std_init) + floor.
    Source: Haarnoja 2018 lets the std depend on the state; softplus: Andrychowicz 2021, choice C59.
    """

    def __init__(self, size: int, log_std_init: float | Tensor, bounds_map: str, scale: float,
                 floor: float):
        super().__init__(2 * size, "n" * size, size)
        self.bounds_map, self.scale, self.floor = bounds_map, scale, floor
        start = torch.as_tensor(log_std_init, dtype=torch.float64).exp() / scale
        shift = start + torch.log(-torch.expm1(-start))
        self.register_buffer("shift", shift.float(), persistent=False)

    def normal(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """(mean [b a], std [b a])."""
        mean, raw = params.chunk(2, -1)
        return mean, self.scale * F.softplus(raw + self.shift) + self.floor


class SquashedGaussian(Gaussian):
    """The tanh of a Gaussian, mapped to the bounds; act [b a] is the value before the tanh.

    logp is the log-density of the tanh. Entropies are estimated by Gauss-Hermite quadrature with
    eight nodes: the error of a component is below 0.001 for a std up to 1.
    Source: Haarnoja 2018, arXiv:1801.01290, appendix C.
    """

    def __init__(self, size: int, log_std_init: float | Tensor = 0.0, fixed: bool = False):
        super().__init__(size, log_std_init, "tanh", fixed)
        nodes, weights = np.polynomial.hermite_e.hermegauss(8)
        for name, x in (("nodes", nodes), ("weights", weights / weights.sum())):
            self.register_buffer(name, torch.from_numpy(x).float(), persistent=False)

    def evaluate(self, mean: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, estimated entropy [b])."""
        logp, entropy = super().evaluate(mean, act)
        around = mean[..., None] + self.log_std.exp()[:, None] * self.nodes
        return (logp - _log_slope(act).sum(-1),
                entropy + (_log_slope(around) * self.weights).sum((-1, -2)))


class Beta(Head):
    """Independent Beta distributions between the bounds, parameters [b 2a]; act [b a] in (0, 1).

    alpha and beta are 1 + softplus of the parameters, so each density has one peak, not at a bound
    [Chou 2017]. Sampled as a ratio of gammas by Marsaglia and Tsang's method (2000), with ROUNDS
    attempts; the last one is taken if all fail, with a probability below 1e-10.
    """

    bounds_map, ROUNDS, EDGE = "unit", 8, 1e-6

    def __init__(self, size: int):
        super().__init__(2 * size, "nu" * (2 * self.ROUNDS * size))

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        """Samples act [b a] from the noise of all attempts."""
        alpha, beta = self._shapes(params)
        tries = noise.reshape(len(noise), alpha.shape[-1], 2, self.ROUNDS, 2)
        first, second = (_gamma(shape, tries[:, :, i]) for i, shape in enumerate((alpha, beta)))
        return (first / (first + second)).clamp(self.EDGE, 1 - self.EDGE)

    def evaluate(self, params: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        alpha, beta = self._shapes(params)
        both = alpha + beta
        norm = alpha.lgamma() + beta.lgamma() - both.lgamma()
        logp = (alpha - 1) * act.log() + (beta - 1) * (-act).log1p() - norm
        entropy = (norm - (alpha - 1) * alpha.digamma() - (beta - 1) * beta.digamma()
                   + (both - 2) * both.digamma())
        return logp.sum(-1), entropy.sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """(alpha - 1) / (alpha + beta - 2), [b a]."""
        first, second = F.softplus(params).clamp_min(1e-30).chunk(2, -1)  # not 0 / 0
        return first / (first + second)

    def std(self, params: Tensor) -> Tensor:
        """The standard deviation [a] of each component in (0, 1), a mean over rows."""
        alpha, beta = self._shapes(params)
        both = alpha + beta
        return (alpha * beta / (both.square() * (both + 1))).sqrt().mean(0)

    def _shapes(self, params: Tensor) -> Sequence[Tensor]:
        return (1 + F.softplus(params)).chunk(2, -1)


class GSDE(Normal):
    """Generalised state-dependent exploration: noise that is a linear function of the features.

    Parameters [b a + f] are means and the network's last features; act = mean + features @ E, with
    E [f a] normal of the trained std exp(log_std), the same for `noise_steps` steps. The gradient
    of the std does not reach the features.
    Source: Raffin 2021, arXiv:2005.05719.
    """

    EDGE = 1e-6

    def __init__(self, size: int, features: int, log_std_init: float | Tensor, bounds_map: str,
                 noise_steps: int | None):
        super().__init__(size + features, "n" * (features * size), size)
        self.bounds_map, self.noise_steps, self.components = bounds_map, noise_steps, size
        start = torch.as_tensor(log_std_init, dtype=torch.float32).expand(features, size)
        self.log_std = nn.Parameter(start.clone())

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        """Samples act [b a] from standard normal noise [b f*a]."""
        mean, features = self._split(params)
        drawn = self.log_std.exp() * noise.reshape(len(noise), *self.log_std.shape)
        return mean + (features[:, :, None] * drawn).sum(1)

    def normal(self, params: Tensor) -> tuple[Tensor, Tensor]:
        """(mean [b a], std [b a])."""
        mean, features = self._split(params)
        return mean, (features.square() @ (2 * self.log_std).exp() + self.EDGE).sqrt()

    def _split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return params[:, :self.components], params[:, self.components:].detach()


class CompositeHead(Head):
    """Independent heads; parameters, noise and act f32 [b k] are theirs, concatenated.

    `widths` are the numbers of each head in act.
    """

    def __init__(self, heads: Sequence[Head], widths: Sequence[int]):
        super().__init__(sum(head.size for head in heads), "".join(head.noise for head in heads))
        self.parts, self.widths = nn.ModuleList(heads), list(widths)
        maps = (head.bounds_map for head in heads if head.bounds_map != "clip")
        self.bounds_map = next(maps, "clip")
        self.means = np.concatenate([head.means for head in heads])

    def draw(self, params: Tensor, noise: Tensor) -> Tensor:
        """Samples act [b k], each part with its head."""
        noises = noise.split([len(head.noise) for head in self.parts], -1)
        return self._row([head.draw(x, z) for head, x, z in zip(
            self.parts, self._params(params), noises)])

    def evaluate(self, params: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        found = [head.evaluate(x, part) for head, x, part in zip(
            self.parts, self._params(params), act.split(self.widths, -1))]
        return sum(logp for logp, _ in found), sum(entropy for _, entropy in found)

    def mode(self, params: Tensor) -> Tensor:
        """The likeliest action of every head [b k]."""
        return self._row([head.mode(x) for head, x in zip(self.parts, self._params(params))])

    def std(self, params: Tensor) -> Tensor:
        """The standard deviations [a] of the numbers of every head, means over rows."""
        return torch.cat([head.std(x) for head, x in zip(self.parts, self._params(params))])

    def _params(self, params: Tensor) -> Sequence[Tensor]:
        return params.split([head.size for head in self.parts], -1)

    def _row(self, acts: Sequence[Tensor]) -> Tensor:
        return torch.cat([act.reshape(act.shape[0], width).float()
                          for act, width in zip(acts, self.widths)], -1)


COMPILED_HEADS = Categorical, Gaussian  # the heads that have kernels


def make_head(space: Space, config: Config = DEFAULT_CONFIG, features: int = 0) -> Head:
    """The head for a supported action space; `features`: the number of the network's, for gSDE."""
    if subspaces(space):
        parts = [leaf.space for leaf in leaves(space)]
        return CompositeHead([make_head(part, config) for part in parts],
                             [math.prod(part.shape) for part in parts])
    if isinstance(space, (Discrete, MultiDiscrete)):
        counts = choice_counts(space).tolist()
        return Categorical(*counts) if isinstance(space, Discrete) else MultiCategorical(counts)
    if isinstance(space, MultiBinary):
        return Bernoulli(math.prod(space.shape))
    count, init = math.prod(space.shape), config.log_std_init
    bounds_map = "scale" if config.action_scaling else "clip"
    if (fixed := config.std is not None) or init == "auto":
        std = fixed_std(space, config) if fixed else first_std(space, config)
        init = torch.from_numpy(np.log(std)).float()
    if config.sde:
        return GSDE(count, features, init, bounds_map, config.sde_sample_freq)
    if config.distribution == "beta":
        return Beta(count)
    if config.distribution == "squashed":
        return SquashedGaussian(count, init, fixed)
    if config.distribution == "state_gaussian":
        return StateGaussian(count, init, bounds_map, config.std_scale, config.min_std)
    return Gaussian(count, init, bounds_map, fixed)


def fixed_std(space: Space, config: Config) -> np.ndarray:
    """The std f64 [a] of a Box whose `std` is set: a number, or "10%" of the range of an action."""
    if isinstance(config.std, str):
        return float(config.std.rstrip("%")) / 100 * 2 * half_range(space, config)
    return np.full(math.prod(space.shape), float(config.std))


def first_std(space: Space, config: Config) -> np.ndarray:
    """The std f64 [a] that a Box begins with if log_std_init is auto.

    Half the range; of more than three actions times sqrt(2 / a), so that the noise has the same
    length for any number of them (bench/LOG.md). A range of nothing, or of more than two million,
    says nothing about the sizes of actions; half of it is taken as 1.
    """
    half, count = half_range(space, config), math.prod(space.shape)
    return np.where((half > 0) & (half < 1e6), half, 1.0) * math.sqrt(2 / count if count > 3 else 1)


def half_range(space: Space, config: Config) -> np.ndarray:
    """Half the range f64 [a] of the sampled value of a Box: 1 if actions are scaled to [-1, 1]."""
    if config.action_scaling or config.distribution == "squashed":
        return np.ones(math.prod(space.shape))
    return (space.high.astype("f8") / 2 - space.low.astype("f8") / 2).reshape(-1)


def _inverse_cdf(logits: Tensor, u: Tensor) -> Tensor:
    """The first index of the last axis whose cumulative weight exceeds u * sum of the weights."""
    weight = (logits - logits.amax(-1, keepdim=True)).exp()
    legal = weight > 0  # rounding may let the cumulative weight grow at a weight of 0
    above = legal & (weight.cumsum(-1) > u * weight.sum(-1, keepdim=True))
    last = legal.long().mul(torch.arange(logits.shape[-1], device=logits.device)).amax(-1)
    return torch.where(above.any(-1), above.long().argmax(-1), last)


def _log_slope(x: Tensor) -> Tensor:
    """log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2 x)), also exact where tanh rounds to 1."""
    return 2 * (math.log(2) - x - F.softplus(-2 * x))


def _gamma(shape: Tensor, tries: Tensor) -> Tensor:
    """Gamma variates [b a] of shape >= 1 from tries [b a rounds 2]: a normal, a uniform number."""
    d = shape[..., None] - 1 / 3
    v = (1 + tries[..., 0] / (3 * d.sqrt())).pow(3)
    u, z = tries[..., 1], tries[..., 0]
    good = (v > 0) & (u.log() < 0.5 * z.square() + d * (1 - v + v.clamp(min=1e-30).log()))
    first = torch.where(good.any(-1), good.int().argmax(-1), good.shape[-1] - 1)
    return (d * v.clamp(min=1e-8)).gather(-1, first[..., None])[..., 0]
