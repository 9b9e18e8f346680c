"""The mathematics by definition, in plain numpy: slow, obvious, and what every kernel is held to.

Nothing here is the recursion a kernel uses, so that the two cannot share a mistake. Arrays are
time-major, [t e]; results are float64 arrays that are returned, where a kernel fills an `out`.
The networks and the losses have no entry: torch's modules and learner.py are their definition. Nor
have images: the versions in kernels_numba.py are plain numpy, and a resized image is OpenCV's.
"""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What noise is for: the last word of its counter; never renumbered."""

    ACT = 0
    SHUFFLE = 1
    INIT = 2
    ENV_SEED = 3
    EVALUATE = 4
    WARMUP = 5
    RPO = 6
    PAST = 7
    ENVIRONMENT = 8


def gae(rew, val, nxt, term, trunc, valid, gamma, lam):
    """A_t = sum over k >= t of (gamma lam)^(k-t) delta_k, while t's own episode lasts.

    delta_k = rew_k + gamma nxt_k - val_k, without nxt where term. `nxt` is the value of the
    successor before any reset; it may be NaN where term. All [t e]. Returns adv [t e]. Where not
    `valid` is no step: adv is NaN there, and the others are as if it were not in the rollout.
    Source: Schulman 2016, arXiv:1506.02438, eq. 16; the two masks: Pardo 2018, arXiv:1712.00378.
    """
    delta = rew.astype(float) + gamma * np.where(term, 0.0, nxt) - val
    adv, valid = np.zeros_like(delta), np.broadcast_to(valid, rew.shape)  # which may be True
    for t, k in zip(*np.triu_indices(len(rew)), strict=True):
        ended, away = (valid & (term | trunc))[t:k].any(axis=0), valid[t:k].sum(axis=0)
        adv[t] += np.where(valid[t] & valid[k] & ~ended, (gamma * lam) ** away * delta[k], 0.0)
    return np.where(valid, adv, np.nan)


def discounted(rew, ended, valid, gamma, carry):
    """g_t = sum over k <= t of gamma^(t-k) rew_k, over the steps since t's own episode began.

    `carry` [e] is g before the first step, 0 where an episode begins there; rew, ended [t e].
    Returns g [t e] and the carry [e] after the last step, 0 where that ended an episode. Where not
    `valid` is no step: its reward is 0, and g is that of the step before.
    """
    valid, before = np.broadcast_to(valid, ended.shape), np.zeros(len(carry), bool)
    rew, ended, valid = map(np.vstack, ([carry, rew], [before, ended], [~before, valid]))
    g = np.zeros_like(rew)  # from here on, the carry is the reward of a step before the first
    for k, t in zip(*np.triu_indices(len(rew)), strict=True):
        away = valid[k + 1:t + 1].sum(axis=0)
        g[t] += np.where(ended[k:t].any(axis=0) | ~valid[k], 0.0, gamma ** away * rew[k])
    return g[1:], np.where(ended[-1], 0.0, g[-1])


def moments(xs):
    """Count, mean and variance (biased) of all the rows seen so far, xs: blocks [n o]."""
    rows = np.concatenate(xs).astype(float)
    return len(rows), rows.mean(axis=0), rows.var(axis=0)


def philox(seed, component, step, env, purpose):
    """The four words of Philox4x32-10 at counter (component, step, env, purpose), key `seed`.

    Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    words, key = (component, step % 2**32, env, purpose), (seed % 2**32, seed >> 32)
    for r in range(10):
        low, high = (key[0] + r * 0x9E3779B9) % 2**32, (key[1] + r * 0xBB67AE85) % 2**32
        p, q = 0xD2511F53 * int(words[0]), 0xCD9E8D57 * int(words[2])
        words = q >> 32 ^ words[1] ^ low, q % 2**32, p >> 32 ^ words[3] ^ high, p % 2**32
    return words


def word(seed, purpose, env, step, component=0):
    """The first word of Philox at (component, step modulo 2^32, env, purpose), below 2^32."""
    return philox(seed, component, step, env, purpose)[0]


def uniform(seed, purpose, env0, step, shape):
    """Uniforms in [0, 1), [e k]: (word0 >> 8) 2^-24 at component k of environment env0 + e."""
    at = np.ndindex(shape)
    return np.reshape([(word(seed, purpose, env0 + e, step, k) >> 8) / 2**24 for e, k in at], shape)


def normal(seed, purpose, env0, step, shape):
    """Standard normals [e k]: sqrt(-2 ln u1) cos(2 pi u2), with u1 in (0, 1] and u2 in [0, 1).

    u1 = ((word0 >> 8) + 1) 2^-24, u2 = (word1 >> 8) 2^-24. Source: Box and Muller 1958.
    """
    words = np.array([philox(seed, k, step, env0 + e, purpose) for e, k in np.ndindex(shape)])
    u1, u2 = ((words[:, :2] >> 8) + [1, 0]).T / 2**24
    return np.reshape(np.sqrt(-2 * np.log(u1)) * np.cos(2 * np.pi * u2), shape)


def permutation(seed, iteration, epoch, n):
    """A permutation of 0 .. n-1: from the last place down, each swaps with one at or below it.

    Place i swaps with (word0 (i + 1)) >> 32 at (i, iteration, epoch, SHUFFLE).
    Source: Durstenfeld 1964.
    """
    order = list(range(n))
    for i in reversed(range(1, n)):
        j = word(seed, Purpose.SHUFFLE, epoch, iteration, i) * (i + 1) >> 32
        order[i], order[j] = order[j], order[i]
    return np.array(order, dtype=np.int64)


def sample_categorical(logits, u):
    """act = the first i whose cumulative softmax probability exceeds u, logp = its log-probability.

    logits [n k], -inf for what may not be chosen; u [n] in [0, 1). Returns act i64 [n], logp [n].
    """
    weight = np.exp(logits - logits.max(axis=1, keepdims=True).astype(float))
    p = weight / weight.sum(axis=1, keepdims=True)
    act = np.argmax(np.cumsum(p, axis=1) > u[:, None], axis=1)
    return act, np.log(p[np.arange(len(act)), act])


def sample_gaussian(mean, log_std, z):
    """act = mean + exp(log_std) z, logp = the sum of its components' log densities.

    mean and z [n a], log_std [a], one for all rows. Returns act [n a] and logp [n].
    """
    std = np.exp(log_std.astype(float))
    density = np.exp(-0.5 * z.astype(float) ** 2) / (std * np.sqrt(2 * np.pi))
    return mean + std * z, np.log(density).sum(axis=1)


def first_nonfinite(x):
    """The flat index of the first NaN or infinity of x, of any shape, or -1."""
    return next(iter(np.flatnonzero(~np.isfinite(x)).tolist()), -1)
