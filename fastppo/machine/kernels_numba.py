"""The kernels of csrc/ in numpy and numba, for installs without a C compiler.

They are used only there, but for philox, by which compiled environments draw.

Same names, parameters and results as the compiled ones (bits may differ, integers do not).
kernels.py has checked the arrays. numba compiles what cannot be written with numpy's arrays, at the
first call. It is not cached: a cache on disk is a pickle, which can run code.
"""

import numpy as np
from numba import njit, uint32, uint64

from fastppo.reference import Purpose
from fastppo.reference import first_nonfinite as first_nonfinite
from fastppo.reference import word as word

SHUFFLE = int(Purpose.SHUFFLE)


def gae(rew, val, nxt, term, trunc, valid, gamma, lam, adv):
    """A_t = sum over k >= t of (gamma lam)^(k-t) delta_k, while t's own episode lasts."""
    delta = rew.astype(float) + gamma * np.where(term, 0.0, nxt.astype(float)) - val
    trace = np.zeros(rew.shape[1])
    for t in reversed(range(len(rew))):
        rest = np.where(term[t] | trunc[t], 0.0, trace)
        trace = np.where(valid[t], delta[t] + gamma * lam * rest, trace)
        adv[t] = np.where(valid[t], trace, np.nan)


def discounted(rew, ended, valid, gamma, carry, out):
    """g_t = sum over k <= t of gamma^(t-k) rew_k, over the steps since t's own episode began."""
    for t in range(len(rew)):
        out[t] = np.where(valid[t], gamma * carry + rew[t], carry)
        carry[:] = np.where(ended[t], 0.0, out[t])


def merge_moments(x, count, mean, m2):
    """Count, mean and sum of squared deviations of all rows seen so far, x [n o] the newest."""
    if len(x) == 0:
        return
    x_mean = x.mean(axis=0, dtype=float)
    x_m2 = ((x - x_mean) ** 2).sum(axis=0)
    if count[0] == 0:
        mean[:], m2[:] = x_mean, x_m2
    else:
        share, shift = len(x) / (count[0] + len(x)), x_mean - mean
        m2 += x_m2 + shift * shift * (count[0] * share)
        mean += shift * share
    count += len(x)


@njit
def philox(seed, component, step, env, purpose):
    """The first two words at a counter; every argument an unsigned integer."""
    low, high = uint32(seed), uint32(seed >> uint64(32))
    a, b, c, d = uint32(component), uint32(step), uint32(env), uint32(purpose)
    for _ in range(10):
        p, q = uint64(0xD2511F53) * uint64(a), uint64(0xCD9E8D57) * uint64(c)
        a, b = uint32(uint32(q >> uint64(32)) ^ b ^ low), uint32(q)
        c, d = uint32(uint32(p >> uint64(32)) ^ d ^ high), uint32(p)
        low, high = uint32(low + uint32(0x9E3779B9)), uint32(high + uint32(0xBB67AE85))
    return a, b


@njit
def _uniform(seed, purpose, env0, step, out):
    for e in range(out.shape[0]):
        for k in range(out.shape[1]):
            first, _ = philox(seed, uint32(k), step, uint32(env0 + uint32(e)), purpose)
            out[e, k] = (first >> uint32(8)) * 2.0**-24


@njit
def _normal(seed, purpose, env0, step, out):
    for e in range(out.shape[0]):
        for k in range(out.shape[1]):
            first, second = philox(seed, uint32(k), step, uint32(env0 + uint32(e)), purpose)
            radius = np.sqrt(-2.0 * np.log(((first >> uint32(8)) + 1) * 2.0**-24))
            out[e, k] = radius * np.cos(2.0 * np.pi * ((second >> uint32(8)) * 2.0**-24))


@njit
def _permutation(seed, iteration, epoch, out):
    for i in range(len(out)):
        out[i] = i
    for i in range(len(out) - 1, 0, -1):
        first, _ = philox(seed, uint32(i), iteration, epoch, uint32(SHUFFLE))
        j = uint64(first) * uint64(i + 1) >> uint64(32)
        out[i], out[j] = out[j], out[i]


def uniform(seed, purpose, env0, step, out):
    """Uniforms in [0, 1), [e k]: (word0 >> 8) 2^-24 at component k of environment env0 + e."""
    _uniform(np.uint64(seed), np.uint32(purpose), np.uint32(env0), np.uint32(step % 2**32), out)


def normal(seed, purpose, env0, step, out):
    """Standard normals [e k]: sqrt(-2 ln u1) cos(2 pi u2), with u1 in (0, 1] and u2 in [0, 1)."""
    _normal(np.uint64(seed), np.uint32(purpose), np.uint32(env0), np.uint32(step % 2**32), out)


def permutation(seed, iteration, epoch, out):
    """A permutation of 0 .. n-1: from the last place down, each swaps with one at or below it."""
    _permutation(np.uint64(seed), np.uint32(iteration % 2**32), np.uint32(epoch % 2**32), out)


def recolour(indices, table, out):
    """out = table[indices] [h w]; returns False if one of these entries is negative."""
    found = table[indices]
    out[:] = found.astype(np.uint8)
    return bool((found >= 0).all())


def resize_area(image, channels, out):
    """out [y x] = the mean of image [h w] over the area of each new pixel, rounded half to even."""
    pixels = image.reshape(len(image), -1, channels).astype(np.float32)
    narrow = _area_means(pixels.swapaxes(0, 1), out.shape[1] // channels).swapaxes(0, 1)
    out[:] = np.rint(_area_means(narrow, len(out))).reshape(out.shape)


def resize_largest(image, indices, table, out):
    """out [y x] = resize_area of the larger of image and table[indices], both [h w]."""
    other = table[indices]
    resize_area(np.maximum(image, other), 1, out)
    return bool((other >= 0).all())


def _area_means(pixels, size):
    """f32 [size ...]: the rows of `pixels` f32 [n ...] as `size` rows, each the mean over its area.

    In units of 1 / (n size) a row is `size` long and a new one n, so shares are rounded only once.
    """
    n, new = len(pixels), np.arange(size)[:, None, None]
    total = np.zeros((size, *pixels.shape[1:]), np.float32)
    for k in range(-(-n // size) + 1):  # the most rows that a new one lies over
        row = np.minimum(new * n // size + k, n - 1)
        common = np.minimum((new + 1) * n, (row + 1) * size) - np.maximum(new * n, row * size)
        share = (np.maximum(common, 0) / n).astype(np.float32)
        total += np.where(row == new * n // size + k, share, 0) * pixels[row[:, 0, 0]]
    return total
