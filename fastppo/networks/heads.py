"""Action heads: from a network's parameters to actions, log-probabilities and entropies (torch).

Every head has
    size      number of action parameters that the network must return
    means     bool [size], True for the means of what is sampled
    noise     one letter for each random number of an action: u uniform in [0, 1), n normal
    form      the map from a stored action to the environment's (ActionMapping)
    hold      steps for which the noise stays the same; None: a whole rollout
and four functions of parameters [b size]: sample, evaluate, mode, masked. No head draws random
numbers: noise is an argument. Log-probabilities and entropies are in nats, summed over components.
Entropies are exact unless a head says that they are estimated.
"""

import math
from typing import NamedTuple, Sequence

import numpy as np
import torch
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete, Space
from torch import Tensor, nn
from torch.nn import functional as F

from fastppo.envs.spaces import MASKED_LOGIT, choice_counts, leaves, subspaces

LOG_TWO_PI = math.log(2 * math.pi)


class HeadOptions(NamedTuple):
    """The settings of a Config that choose the distribution of the numbers of a Box."""

    distribution: str = "gaussian"
    std: float | str | None = None
    log_std_init: float = 0.0
    min_std: float = 0.0
    std_scale: float = 1.0
    action_scaling: bool = False
    sde: bool = False
    sde_sample_freq: int | None = None


DEFAULT_OPTIONS = HeadOptions()


class Head(nn.Module):
    """The base of all heads; the first `means` of the `size` parameters are means.

        sample(params, noise [b k]) -> (act, logp [b])
        evaluate(params, act)       -> (logp [b] of act, entropy [b])
        mode(params)                -> the likeliest act
    """

    form, hold = "clip", 1

    def __init__(self, size: int, noise: str, means: int = 0):
        super().__init__()
        self.size, self.noise, self.means = size, noise, np.arange(size) < means

    def masked(self, params: Tensor, mask: Tensor | None) -> Tensor:
        """Parameters with which actions that `mask`, bool [b choices], forbids are never taken."""
        return params


class Categorical(Head):
    """One of n actions, act i64 [b], from unnormalised log-probabilities [b n]."""

    def __init__(self, n: int):
        super().__init__(n, "u")

    def sample(self, logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(act [b], logp [b]) by inverse CDF from one uniform number a row, noise [b 1]."""
        act = _inverse_cdf(logits, noise)
        return act, self.evaluate(logits, act)[0]

    def evaluate(self, logits: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        logp = logits.log_softmax(-1)
        return logp.gather(-1, act[:, None])[:, 0], -(logp.exp() * logp).sum(-1)

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

    def sample(self, logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(act [b k], logp [b]) from one uniform number a factor."""
        act = _inverse_cdf(self._factors(logits), noise[:, :, None])
        return act, self.evaluate(logits, act)[0]

    def evaluate(self, logits: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        logp = self._factors(logits).log_softmax(-1)
        return logp.gather(-1, act[..., None])[..., 0].sum(-1), -(logp.exp() * logp).sum((-1, -2))

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

    def sample(self, odds: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(act [b k], logp [b]) from one uniform number a bit."""
        act = (noise < odds.sigmoid()).long()
        return act, self.evaluate(odds, act)[0]

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


class Gaussian(Head):
    """Independent normals with means [b a] and one log std for each component, free of the state.

    The log std begins at `log_std_init` and is trained unless `fixed`.
    """

    def __init__(self, size: int, log_std_init: float | Tensor = 0.0, form: str = "clip",
                 fixed: bool = False):
        super().__init__(size, "n" * size, size)
        start = torch.as_tensor(log_std_init, dtype=torch.float32).expand(size).clone()
        self.form, self.log_std = form, nn.Parameter(start, requires_grad=not fixed)

    def sample(self, mean: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(act [b a], logp [b]) from standard normal noise [b a]."""
        act = mean + self.log_std.exp() * noise
        return act, self._log_density(mean, act)

    def evaluate(self, mean: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        entropy = self.log_std.sum() + 0.5 * self.size * (1 + LOG_TWO_PI)
        return self._log_density(mean, act), entropy.expand(len(act))

    def mode(self, mean: Tensor) -> Tensor:
        """The mean [b a]."""
        return mean

    def _log_density(self, mean: Tensor, act: Tensor) -> Tensor:
        """Computed from the stored action and not from the noise, as the update does."""
        z = (act - mean) * (-self.log_std).exp()
        return -0.5 * z.square().sum(-1) - self.log_std.sum() - 0.5 * self.size * LOG_TWO_PI


class StateGaussian(Head):
    """Independent normals; the network returns means and raw stds, parameters [b 2a].

    std = scale softplus(raw + softplus^-1(exp(log_std_init) / scale)) + floor, so raw 0 gives
    exp(log_std_init) + floor.
    Source: Haarnoja 2018 lets the std depend on the state; softplus: Andrychowicz 2021, choice C59.
    """

    def __init__(self, size: int, log_std_init: float, form: str, scale: float, floor: float):
        super().__init__(2 * size, "n" * size, size)
        self.form, self.scale, self.floor = form, scale, floor
        start = math.exp(log_std_init) / scale
        self.shift = start + math.log(-math.expm1(-start))

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(act [b a], logp [b]) from standard normal noise [b a]."""
        mean, std = self._normal(params)
        act = mean + std * noise
        return act, _normal_log_density(mean, std, act)

    def evaluate(self, params: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        mean, std = self._normal(params)
        return _normal_log_density(mean, std, act), _normal_entropy(std)

    def mode(self, params: Tensor) -> Tensor:
        """The mean [b a]."""
        return params.chunk(2, -1)[0]

    def _normal(self, params: Tensor) -> tuple[Tensor, Tensor]:
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

    def sample(self, mean: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(act [b a], logp [b]) from standard normal noise [b a]."""
        act, logp = super().sample(mean, noise)
        return act, logp - _log_slope(act).sum(-1)

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

    form, ROUNDS, EDGE = "unit", 8, 1e-6

    def __init__(self, size: int):
        super().__init__(2 * size, "nu" * (2 * self.ROUNDS * size))

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(act [b a], logp [b])."""
        alpha, beta = self._shapes(params)
        tries = noise.reshape(len(noise), alpha.shape[-1], 2, self.ROUNDS, 2)
        first, second = (_gamma(shape, tries[:, :, i]) for i, shape in enumerate((alpha, beta)))
        act = (first / (first + second)).clamp(self.EDGE, 1 - self.EDGE)
        return act, self.evaluate(params, act)[0]

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
        first, second = F.softplus(params).chunk(2, -1)
        return first / (first + second)

    def _shapes(self, params: Tensor) -> Sequence[Tensor]:
        return (1 + F.softplus(params)).chunk(2, -1)


class GSDE(Head):
    """Generalised state-dependent exploration: noise that is a linear function of the features.

    Parameters [b a + f] are means and the network's last features; act = mean + features @ E, with
    E [f a] normal of the trained std exp(log_std), the same for `hold` steps. The gradient of the
    std does not reach the features.
    Source: Raffin 2021, arXiv:2005.05719.
    """

    EDGE = 1e-6

    def __init__(self, size: int, features: int, log_std_init: float, form: str,
                 hold: int | None):
        super().__init__(size + features, "n" * (features * size), size)
        self.form, self.hold, self.components = form, hold, size
        start = torch.full((features, size), float(log_std_init), dtype=torch.float32)
        self.log_std = nn.Parameter(start)

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(act [b a], logp [b]) from standard normal noise [b f*a]."""
        mean, features = self._split(params)
        drawn = self.log_std.exp() * noise.reshape(len(noise), *self.log_std.shape)
        act = mean + (features[:, :, None] * drawn).sum(1)
        return act, self.evaluate(params, act)[0]

    def evaluate(self, params: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        mean, features = self._split(params)
        std = (features.square() @ (2 * self.log_std).exp() + self.EDGE).sqrt()
        return _normal_log_density(mean, std, act), _normal_entropy(std)

    def mode(self, params: Tensor) -> Tensor:
        """The mean [b a]."""
        return self._split(params)[0]

    def _split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        return params[:, :self.components], params[:, self.components:].detach()


class CompositeHead(Head):
    """Independent heads; parameters, noise and act f32 [b k] are theirs, concatenated.

    `widths` are the numbers of each head in act.
    """

    def __init__(self, heads: Sequence[Head], widths: Sequence[int]):
        super().__init__(sum(head.size for head in heads), "".join(head.noise for head in heads))
        self.parts, self.widths = nn.ModuleList(heads), list(widths)
        self.form = next((head.form for head in heads if head.form != "clip"), "clip")
        self.means = np.concatenate([head.means for head in heads])

    def sample(self, params: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """(act [b k], logp [b])."""
        noises = noise.split([len(head.noise) for head in self.parts], -1)
        acts, logps = zip(*(head.sample(x, z) for head, x, z in zip(
            self.parts, self._params(params), noises)))
        return self._row(acts), sum(logps)

    def evaluate(self, params: Tensor, act: Tensor) -> tuple[Tensor, Tensor]:
        """(logp [b] of act, entropy [b])."""
        logp = entropy = 0
        for head, x, part in zip(self.parts, self._params(params), act.split(self.widths, -1)):
            if not isinstance(head, (Gaussian, StateGaussian, Beta)):
                part = part.long()
            found = head.evaluate(x, part[:, 0] if isinstance(head, Categorical) else part)
            logp, entropy = logp + found[0], entropy + found[1]
        return logp, entropy

    def mode(self, params: Tensor) -> Tensor:
        """The likeliest action of every head [b k]."""
        return self._row([head.mode(x) for head, x in zip(self.parts, self._params(params))])

    def _params(self, params: Tensor) -> Sequence[Tensor]:
        return params.split([head.size for head in self.parts], -1)

    def _row(self, acts: Sequence[Tensor]) -> Tensor:
        return torch.cat([act.reshape(act.shape[0], width).float()
                          for act, width in zip(acts, self.widths)], -1)


COMPILED_HEADS = Categorical, Gaussian  # the heads that have kernels


def make_head(space: Space, options: HeadOptions = DEFAULT_OPTIONS, features: int = 0) -> Head:
    """The head for a served action space; `features`: the number of the network's, for gSDE."""
    if subspaces(space):
        parts = [leaf.space for leaf in leaves(space)]
        return CompositeHead([make_head(part, options) for part in parts],
                             [math.prod(part.shape) for part in parts])
    if isinstance(space, Discrete):
        return Categorical(int(space.n))
    if isinstance(space, MultiDiscrete):
        return MultiCategorical(choice_counts(space).tolist())
    if isinstance(space, MultiBinary):
        return Bernoulli(math.prod(space.shape))
    return _box_head(space, options, features)


def size(space: Space) -> int:
    """The number of action parameters that a network must return for an action space."""
    return make_head(space).size


def _box_head(space: Space, options: HeadOptions, features: int) -> Head:
    count, init = math.prod(space.shape), options.log_std_init
    form = "scale" if options.action_scaling else "clip"
    fixed = options.std is not None
    if fixed:
        init = torch.from_numpy(np.log(fixed_std(space, options, form))).float()
    if options.sde:
        return GSDE(count, features, init, form, options.sde_sample_freq)
    if options.distribution == "beta":
        return Beta(count)
    if options.distribution == "squashed":
        return SquashedGaussian(count, init, fixed)
    if options.distribution == "state_gaussian":
        return StateGaussian(count, init, form, options.std_scale, options.min_std)
    return Gaussian(count, init, form, fixed)


def fixed_std(space: Space, options: HeadOptions, form: str) -> np.ndarray:
    """The std f64 [a] of a Box whose `std` is set: a number, or "10%" of the range of an action.

    The range is that of the sampled value: 2 if actions are scaled from [-1, 1].
    """
    count = math.prod(space.shape)
    if not isinstance(options.std, str):
        return np.full(count, float(options.std))
    extent = 2.0 if form == "scale" or options.distribution == "squashed" else (
        space.high.astype("f8") - space.low).reshape(-1)
    return np.broadcast_to(float(options.std.rstrip("%")) / 100 * extent, count)


def _inverse_cdf(logits: Tensor, u: Tensor) -> Tensor:
    """The first index of the last axis whose cumulative weight exceeds u * sum of the weights."""
    weight = (logits - logits.amax(-1, keepdim=True)).exp()
    legal = weight > 0  # rounding may let the cumulative weight grow at a weight of 0
    above = legal & (weight.cumsum(-1) > u * weight.sum(-1, keepdim=True))
    last = legal.long().mul(torch.arange(logits.shape[-1], device=logits.device)).amax(-1)
    return torch.where(above.any(-1), above.long().argmax(-1), last)


def _normal_log_density(mean: Tensor, std: Tensor, act: Tensor) -> Tensor:
    return (-0.5 * ((act - mean) / std).square() - std.log() - 0.5 * LOG_TWO_PI).sum(-1)


def _normal_entropy(std: Tensor) -> Tensor:
    return (std.log() + 0.5 * (1 + LOG_TWO_PI)).sum(-1)


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
