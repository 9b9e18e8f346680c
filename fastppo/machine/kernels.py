"""The compiled kernels, or their numba versions where the extension was not built."""

from typing import NamedTuple

import numpy as np

from fastppo.errors import KernelError
from fastppo.machine.kernel_checks import ARRAYS, check_arrays
from fastppo.reference import Purpose

try:
    import fastppo._kernels as _twin

    COMPILED = True
except ModuleNotFoundError:  # a broken extension is an ImportError, and meant to be seen
    import fastppo.machine.kernels_numba as _twin

    COMPILED = False

__all__ = ["ARRAYS", "COMPILED", "Purpose", "backend", "discounted", "episode_seed", "forward"]
__all__ += ["first_nonfinite", "gae", "merge_moments", "normal", "pack", "packed_size"]
__all__ += ["permutation", "sample_categorical", "sample_gaussian", "uniform", "word"]
__all__ += ["UpdateBuffers", "UpdateSamples", "UpdateCoefficients", "MinibatchUpdate", "update_memory", "MAX_SHARDS"]
__all__ += ["unroll", "unroll_back", "unroll_floats"]

MAX_SHARDS = 8  # of a minibatch, as csrc/update/update.h has it
MAX_CHOICES, MAX_HIDDEN = 6144, 16  # of a categorical (csrc/mlp/heads.h); layers of a network
MAX_WIDTH = 1 << 20  # inputs and units of a layer (csrc/mlp/mlp.h)

_REFUSALS = (ValueError, TypeError, OverflowError, BufferError)


def _refusal(kernel, bad, **arrays):
    """The error for a kernel's own refusal `bad`; raises a more exact one where ARRAYS knows it."""
    if isinstance(bad, KernelError):
        raise bad
    check_arrays(kernel, **arrays)
    return KernelError(f"{kernel}: {bad}")


def _compiled(kernel):
    """The extension, or the KernelError that says how to get it."""
    if hasattr(_twin, kernel):
        return _twin
    raise KernelError(
        f"{kernel} has no numba twin and the compiled extension is not installed",
        fix="install a C compiler and Python's headers, then `pip install -e .`; or num_workers=0",
    )


def backend():
    """Which twin runs: "compiled" or "numba"."""
    return "compiled" if COMPILED else "numba"


def gae(rew, val, nxt, term, trunc, gamma, lam, adv):
    """A_t = sum over k >= t of (gamma lam)^(k-t) delta_k, while t's own episode lasts.

    Fills adv [t e]. nxt [t e] is the value of the successor before any reset, NaN where term.
    """
    check_arrays("gae", rew=rew, val=val, nxt=nxt, term=term, trunc=trunc, adv=adv)
    _twin.gae(rew, val, nxt, term.view("u1"), trunc.view("u1"), gamma, lam, adv)


def discounted(rew, ended, gamma, carry, out):
    """g_t = sum over k <= t of gamma^(t-k) rew_k, over the steps since t's own episode began.

    Fills out [t e] and leaves in carry [e] what the next rollout goes on with: g, 0 where ended.
    """
    check_arrays("discounted", rew=rew, ended=ended, carry=carry, out=out)
    _twin.discounted(rew, ended.view("u1"), gamma, carry, out)


def merge_moments(x, count, mean, m2):
    """Count, mean and sum of squared deviations of all rows seen so far, x [n o] the newest.

    Updates count [1], mean and m2 [o] in place; variance is m2 / count. At count 0 they become
    exactly x's, whatever mean and m2 held. Source: Chan, Golub, LeVeque 1979.
    """
    check_arrays("merge_moments", x=x, count=count, mean=mean, m2=m2)
    _twin.merge_moments(x, count, mean, m2)


def uniform(seed, purpose, env0, step, out):
    """Uniforms in [0, 1), [e k]: (word0 >> 8) 2^-24 at component k of environment env0 + e."""
    try:
        _twin.uniform(seed, purpose, env0, step, out)
    except _REFUSALS as bad:
        raise _refusal("uniform", bad, out=out) from bad


def normal(seed, purpose, env0, step, out):
    """Standard normals [e k]: sqrt(-2 ln u1) cos(2 pi u2), with u1 in (0, 1] and u2 in [0, 1)."""
    try:
        _twin.normal(seed, purpose, env0, step, out)
    except _REFUSALS as bad:
        raise _refusal("normal", bad, out=out) from bad


def word(seed, purpose, env, step, component=0):
    """The first word of Philox at (component, step modulo 2^32, env, purpose), below 2^32."""
    try:
        return _twin.word(seed, purpose, env, step, component)
    except _REFUSALS as bad:
        raise _refusal("word", bad) from bad


def episode_seed(seed, purpose, env, episode):
    """The seed of an environment's episode: the upper 31 bits of its word, an int in [0, 2^31)."""
    return word(seed, purpose, env, episode) >> 1


def permutation(seed, iteration, epoch, out):
    """A permutation of 0 .. n-1: from the last place down, each swaps with one at or below it.

    Fills out i64 [n], n < 2^32; another for every iteration and epoch.
    """
    try:
        _twin.permutation(seed, iteration, epoch, out)
    except _REFUSALS as bad:
        raise _refusal("permutation", bad, out=out) from bad


def packed_size(plan):
    """The number of floats `pack` writes for a plan, i64 [l 7].

    A row a layer, in execution order: (src, dst, n_in, n_out, w_offset, b_offset, activation).
    Buffer 0 is the normalised observation, 1..63 are the plan's own, dst -1 appends columns to the
    output; offsets point into the flat parameters (weight [n_out n_in], bias [n_out]); activation
    is 0 none, 1 tanh, 2 relu, 3 elu.
    """
    try:
        return _compiled("packed_size").packed_size(plan)
    except _REFUSALS as bad:
        raise _refusal("packed_size", bad, plan=plan) from bad


def pack(plan, params, packed):
    """Copy the flat params f32 [q] to packed f32 [packed_size(plan)], the order `forward` reads."""
    try:
        _compiled("pack").pack(plan, params, packed)
    except _REFUSALS as bad:
        raise _refusal("pack", bad, plan=plan, params=params, packed=packed) from bad


def forward(plan, packed, mean, scale, obs, out, limit=10.0):
    """out [n p] = the plan's networks at clip((obs - mean) * scale, -limit, limit), obs f32 [n o].

    mean and scale, f32 [o], may both be None: obs then enter as they are, unclipped. A row's bits
    do not depend on the rows beside it. torch's Linear, Tanh, ReLU and ELU are the definition.
    """
    try:
        _compiled("forward").forward(plan, packed, mean, scale, obs, out, limit)
    except _REFUSALS as bad:
        norm = {} if mean is None or scale is None else {"mean": mean, "scale": scale}
        raise _refusal("forward", bad, plan=plan, packed=packed, **norm, obs=obs, out=out) from bad


def sample_categorical(logits, u, act, logp):
    """act = the first i whose cumulative softmax probability exceeds u, logp = its log-probability.

    logits f32 [n k], possibly a slice of columns; u f32 [n]. Fills act i64 [n] and logp f32 [n].
    The last index of any probability where rounding leaves none; NaN logits give a NaN logp.
    """
    try:
        _compiled("sample_categorical").sample_categorical(logits, u, act, logp)
    except _REFUSALS as bad:
        raise _refusal("sample_categorical", bad, logits=logits, u=u, act=act, logp=logp) from bad


def sample_gaussian(mean, log_std, z, act, logp):
    """act = mean + exp(log_std) z, logp = the sum of its components' log densities.

    mean f32 [n a], possibly a slice of columns; log_std f32 [a]; z f32 [n a].
    Fills act f32 [n a] and logp f32 [n].
    """
    try:
        _compiled("sample_gaussian").sample_gaussian(mean, log_std, z, act, logp)
    except _REFUSALS as bad:
        arrays = {"mean": mean, "log_std": log_std, "z": z, "act": act, "logp": logp}
        raise _refusal("sample_gaussian", bad, **arrays) from bad


def first_nonfinite(x):
    """The flat index of the first NaN or infinity of x, of any shape, or -1."""
    try:
        return _twin.first_nonfinite(x)
    except _REFUSALS as bad:
        raise _refusal("first_nonfinite", bad, x=x) from bad


def unroll_floats(size, rows):
    """The number of floats of `work` that unroll and unroll_back need for `rows` sequences."""
    try:
        return _compiled("unroll_floats").unroll_floats(size, rows)
    except _REFUSALS as bad:
        raise _refusal("unroll_floats", bad) from bad


def unroll(sizes, x, weight, bias, state, work, prev, kept, out):
    """out [n h] = a GRU over packed sequences; torch.nn.GRU is the definition.

    sizes i64 [t]: sequences that have such a step, never growing; samples stand step by step.
    x f32 [n 3h]: what the cell makes of its inputs; weight [3h h] and bias [3h]: of its hidden
    part; state [sizes[0] h]. Fills prev [n h], the h before each sample, and kept [n 4h], for
    unroll_back; work f32 [unroll_floats(h, sizes[0])] is scratch.
    """
    arrays = {"sizes": sizes, "x": x, "weight": weight, "bias": bias, "state": state,
              "work": work, "prev": prev, "kept": kept, "out": out}
    try:
        _compiled("unroll").unroll(*arrays.values())
    except _REFUSALS as bad:
        raise _refusal("unroll", bad, **arrays) from bad


def unroll_back(sizes, weight, dout, prev, kept, work, dx, inner):
    """dx [n g] = the gradient of unroll's x from that of its out, dout f32 [n h].

    Fills inner [n g] with that of the gates' hidden part: the weight's is inner^T prev, the bias's
    its sum. The state gets none.
    """
    arrays = {"sizes": sizes, "weight": weight, "dout": dout, "prev": prev, "kept": kept,
              "work": work, "dx": dx, "inner": inner}
    try:
        _compiled("unroll_back").unroll_back(*arrays.values())
    except _REFUSALS as bad:
        raise _refusal("unroll_back", bad, **arrays) from bad


class UpdateBuffers(NamedTuple):
    """What an Update writes; all of it the caller's, none of it read before it is written but the
    first three.
    """

    params: np.ndarray  # f32 [q] the flat parameters
    exp_avg: np.ndarray  # f32 [q] Adam's first moments
    exp_avg_sq: np.ndarray  # f32 [q] Adam's second moments
    grads: np.ndarray  # f32 [8 s] gradients of shards, s >= q; row 0: that of the last minibatch
    sums: np.ndarray  # f64 [8 6] statistics of shards
    work: np.ndarray  # f32 [w] scratch


class UpdateSamples(NamedTuple):
    """What an Update reads: samples of a rollout, and the normaliser's snapshot or twice None."""

    obs: np.ndarray  # f32 [n o]
    act: np.ndarray  # i64 [n], or f32 [n a]
    logp: np.ndarray  # f32 [n], as all that follow
    val: np.ndarray
    adv: np.ndarray
    ret: np.ndarray
    mean: np.ndarray | None = None  # f32 [o]
    scale: np.ndarray | None = None  # f32 [o], 1 / std


class UpdateCoefficients(NamedTuple):
    """The coefficients of an Update, named as in Config; norm_advantages: per minibatch or not."""

    clip_range: float
    clip_range_vf: float | None
    entropy_coef: float
    value_coef: float
    dual_clip: float | None
    max_grad_norm: float
    norm_advantages: bool
    betas: tuple[float, float]
    adam_eps: float


def update_memory(plan, log_std, params, exp_avg, exp_avg_sq):
    """A Memory for the networks of `plan`, with scratch of its own beside the arrays given.

    log_std: where the Gaussian head's stands in params, None for a categorical one. Without Adam's
    moments (None twice) it serves for shards alone, and `finish` is refused.
    """
    try:
        count, floats = _compiled("update_sizes").update_sizes(plan, log_std)
    except _REFUSALS as bad:
        raise _refusal("update", bad, plan=plan) from bad
    row = -(-count // 16) * 16
    grads, work = _aligned(MAX_SHARDS * row).reshape(MAX_SHARDS, row), _aligned(floats)
    return UpdateBuffers(params, exp_avg, exp_avg_sq, grads, np.zeros((MAX_SHARDS, 6)), work)


def _aligned(size):
    """Zeros, f32 [size], from the beginning of a cache line: reads across two lines cost twice."""
    block = np.zeros(size + 16, np.float32)
    first = -block.ctypes.data % 64 // block.itemsize
    return block[first : first + size]


class MinibatchUpdate:
    """Clipped minibatch steps of PPO in place, on networks of a plan with one action head.

    The twin of learner.Learner, which is the definition: gradients and weights equal torch's
    within 1e-5. `minibatch` is begin, then every shard in any order, then finish; the bits depend
    on neither the order nor on who computed which shard. Arrays must stay where they are meanwhile.
    """

    def __init__(self, plan, log_std, limit, memory, samples, order, terms):
        """order i64 [m]: rows of samples, each minibatch a slice of it. Misfits: KernelError."""
        try:
            self._twin = _compiled("Update").Update(
                plan, log_std, limit, memory, samples, order, terms)
        except _REFUSALS as bad:
            arrays = {"plan": plan, **memory._asdict(), **samples._asdict(), "order": order}
            given = {name: array for name, array in arrays.items() if array is not None}
            head = "discrete update" if log_std is None else "update"
            raise _refusal(head, bad, **given) from bad

    def minibatch(self, first, last, step, lr, stats):
        """One Adam step, its number `step` counted from 1, on the samples order[first:last].

        Fills stats f32 [7] in the order of learner.STATS; the norm is that before clipping.
        """
        try:
            self._twin.minibatch(first, last, step, lr, stats)
        except _REFUSALS as bad:
            raise _refusal("update", bad, stats=stats) from bad

    def weigh(self, terms):
        """Take other coefficients from now on."""
        try:
            self._twin.weigh(*terms)
        except _REFUSALS as bad:
            raise _refusal("update", bad) from bad

    def shards(self, rows):
        """The number of shards of a minibatch of `rows` samples, 1 to MAX_SHARDS."""
        return self._twin.shards(rows)

    def begin(self, first, last):
        """Take the samples order[first:last] and the parameters; returns the number of shards."""
        try:
            return self._twin.begin(first, last)
        except _REFUSALS as bad:
            raise _refusal("update", bad) from bad

    def shard(self, shard):
        """Write one shard's gradient and statistics into its rows of memory.grads and .sums."""
        try:
            self._twin.shard(shard)
        except _REFUSALS as bad:
            raise _refusal("update", bad) from bad

    def finish(self, step, lr, stats):
        """Add up the shards, clip, take the Adam step and fill stats, as `minibatch` does."""
        try:
            self._twin.finish(step, lr, stats)
        except _REFUSALS as bad:
            raise _refusal("update", bad, stats=stats) from bad
