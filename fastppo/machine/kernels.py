"""The compiled kernels, or their numba versions where the extension was not built.

A function with `_kernel` has no body: it calls the compiled or numba function of its name. The
compiled ones check their arguments themselves; the lines given to `_kernel` have the dtype and the
shape of each array, for the error when a call is rejected.
"""

import inspect
from functools import wraps
from typing import Any, Callable, Mapping, NamedTuple

import numpy as np

from fastppo.errors import KernelError, Set
from fastppo.reference import Purpose as Purpose  # also kernels.Purpose

MAX_CHOICES, MAX_HIDDEN = 6144, 16  # of a categorical (csrc/network/heads.h); layers of a network
MAX_WIDTH = 1 << 20  # inputs and units of a layer (csrc/network/layers.h)
CONVOLUTION, FLATTEN, IMAGE, SCAN = 1, 2, 3, 4  # kinds of a plan's rows (csrc/network/layers.h)
_REFUSALS = (ValueError, TypeError, OverflowError, BufferError)


class ArraySpec(NamedTuple):
    """The dtype, shape and layout of one array of a kernel."""

    dtypes: list[str]
    axes: list[str]  # names of sizes, or numbers; equal names are equal sizes; ["..."]: any shape
    written: bool  # the kernel writes to it
    strided: bool  # its rows are contiguous, but may be apart from each other
    optional: bool  # may be None


def array_specs(*lines: str) -> dict[str, ArraySpec]:
    """Specs by array name, from lines such as "rew val: float32 t e" (names: dtype axes).

    Several dtypes stand with | between them. Marks before the dtype: * written, ~ strided,
    ? optional.
    """
    specs = {}
    for line in lines:
        names, _, text = line.partition(": ")
        marked, *axes = text.split()
        dtypes = marked.lstrip("*~?").split("|")
        for name in names.split():
            specs[name] = ArraySpec(dtypes, axes, "*" in marked, "~" in marked, "?" in marked)
    return specs


def check_arrays(kernel: str, specs: Mapping[str, ArraySpec], arguments: Mapping[str, Any]) -> None:
    """Raises the KernelError that names the first of `arguments` that differs from its spec."""
    sizes: dict[str, int] = {}
    for name, spec in specs.items():
        array = arguments.get(name)
        if name not in arguments or spec.optional and array is None:
            continue
        shape = [int(axis) if axis.isdigit() else sizes.get(axis, axis) for axis in spec.axes]
        fits = isinstance(array, np.ndarray) and str(array.dtype) in spec.dtypes
        if fits and spec.axes != ["..."]:
            fits = array.ndim == len(shape) and all(
                wanted == size for wanted, size in zip(shape, array.shape)
                if isinstance(wanted, int))
        if fits:
            rows = array[:1] if spec.strided else array
            fits = rows.flags.c_contiguous and (array.flags.writeable or not spec.written)
        if not fits:
            raise KernelError(f"{kernel}: {name} is {_difference(array, spec, shape)}")
        sizes.update(zip(spec.axes, array.shape))


def _difference(array: Any, spec: ArraySpec, shape: list[int | str]) -> str:
    """What an array is, and what its spec wants."""
    found = type(array).__name__
    if isinstance(array, np.ndarray):
        locked = "" if array.flags.writeable or not spec.written else "read-only "
        strided = "" if array.flags.c_contiguous else "strided "
        found = f"{locked}{strided}{array.dtype} {array.shape}"
    layout = "row-contiguous" if spec.strided else "C-contiguous"
    axes = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
    return (f"{found}, wanted a {'writable ' * spec.written}{layout} {' or '.join(spec.dtypes)}"
            f" array of shape ({axes})")


try:
    import fastppo._kernels as _twin

    COMPILED = True
except ModuleNotFoundError:  # a broken extension is an ImportError, and must be seen
    import fastppo.machine.kernels_numba as _twin

    COMPILED = False

# Most shards of a minibatch, and statistics of each (csrc/update/update.h).
MAX_SHARDS, SUMS = getattr(_twin, "MAX_SHARDS", 0), getattr(_twin, "SUMS", 0)
ARRAYS: dict[str, dict[str, ArraySpec]] = {}  # the arrays of every kernel

def _kernel(*lines: str, check_first: bool = not COMPILED) -> Callable:
    """Makes a kernel of a signature; `lines` describe its arrays (see array_specs).

    check_first: the arrays are checked before the call, because the function does not compare their
    sizes. Arguments are positional: keywords would cost 40 ns in every call.
    """
    specs = array_specs(*lines)

    def decorate(declared):
        name, signature = declared.__name__, inspect.signature(declared)
        function = getattr(_twin, name, None)
        ARRAYS[name] = specs

        @wraps(declared)
        def kernel(*args):
            if function is None:
                raise KernelError(
                    f"{name} has no numba version, and the compiled extension is not installed",
                    ("install a C compiler and Python's headers, then `pip install -e .`",
                     Set(num_workers=0)))
            if check_first:
                check_arrays(name, specs, signature.bind(*args).arguments)
            try:
                return function(*args)
            except _REFUSALS as refusal:
                check_arrays(name, specs, signature.bind(*args).arguments)
                raise KernelError(f"{name}: {refusal}") from refusal
        return kernel
    return decorate


def backend():
    """The kernels in use: "compiled" or "numba"."""
    return "compiled" if COMPILED else "numba"


@_kernel("rew val nxt: float32 t e", "term trunc valid: bool t e", "adv: *float32 t e",
         check_first=True)
def gae(rew, val, nxt, term, trunc, valid, gamma, lam, adv, /):
    """A_t = sum over k >= t of (gamma lam)^(k-t) delta_k, while t's own episode lasts.

    The steps are the `valid` ones alone. Fills adv [t e], NaN elsewhere. nxt [t e] is the value
    of the successor before any reset, NaN where term.
    """


@_kernel("rew: float32|float64 t e", "ended valid: bool t e", "carry: *float64 e",
         "out: *float64 t e", check_first=True)
def discounted(rew, ended, valid, gamma, carry, out, /):
    """g_t = sum over k <= t of gamma^(t-k) rew_k, over the steps since t's own episode began.

    The steps are the `valid` ones alone; where not, g stays. Fills out [t e]. carry [e] is g before
    the first step; afterwards g after the last, 0 where the episode ended.
    """


@_kernel("x: float32|float64 n o", "count: *float64 1", "mean m2: *float64 o", check_first=True)
def merge_moments(x, count, mean, m2, /):
    """Count, mean and sum of squared deviations of all rows seen so far, x [n o] the newest.

    Updates count [1], mean and m2 [o] in place; variance is m2 / count. At count 0 they become
    exactly x's, whatever mean and m2 held. Source: Chan, Golub, LeVeque 1979.
    """


@_kernel("out: *float32 e k")
def uniform(seed, purpose, env0, step, out, /):
    """Uniforms in [0, 1), [e k]: (word0 >> 8) 2^-24 at component k of environment env0 + e."""


@_kernel("out: *float32 e k")
def normal(seed, purpose, env0, step, out, /):
    """Standard normals [e k]: sqrt(-2 ln u1) cos(2 pi u2), with u1 in (0, 1] and u2 in [0, 1)."""


@_kernel()
def word(seed, purpose, env, step, component=0, /):
    """The first word of Philox at (component, step modulo 2^32, env, purpose), below 2^32."""


def episode_seed(seed, purpose, env, episode):
    """The seed of an environment's episode: the upper 31 bits of its word, an int in [0, 2^31)."""
    return word(seed, purpose, env, episode) >> 1


@_kernel("out: *int64 n")
def permutation(seed, iteration, epoch, out, /):
    """A permutation of 0 .. n-1: from the last place down, each swaps with one at or below it.

    Fills out i64 [n], n < 2^32; another for every iteration and epoch.
    """


@_kernel("plan: int64 l 12")
def packed_size(plan, /):
    """The number of floats `pack` writes for a plan, i64 [l 12].

    A row per layer, in execution order: (src, dst, n_in, n_out, w_offset, b_offset, activation,
    kind, channels, width, size, stride). Buffer 0 is the normalised observation, 1..63 are the
    plan's own, dst -1 appends columns to the output; offsets point into the flat parameters (weight
    [n_out n_in], bias [n_out]); activation is 0 none, 1 tanh, 2 relu, 3 elu. The rest is 0 in a
    dense layer; see csrc/network/forward.h.
    """


@_kernel("plan: int64 l 12", "params: float32 q", "packed: *float32 s")
def pack(plan, params, packed, /):
    """Copies flat params f32 [q] to packed f32 [packed_size(plan)], the order `forward` reads."""


@_kernel("plan: int64 l 12", "packed: float32 s", "mean scale: ?float32 o",
         "obs: float32|uint8 n o", "out: *float32 n p", "before: ?float32 n m",
         "after: ?*float32 n m")
def forward(plan, packed, mean, scale, obs, out, limit=10.0, before=None, after=None, /):
    """out [n p] = the plan's networks at clip((obs - mean) * scale, -limit, limit), obs f32 [n o].

    mean and scale, f32 [o], may both be None: the observations are then neither normalised nor
    clipped. A plan of images takes their bytes, u8 [n o], over the byte that becomes 1. The bits of
    a row do not depend on the other rows. The definition is torch's Linear, Conv2d, Tanh, ReLU and
    ELU, and networks.recurrent.MinGRU, which fills its memory `after` [n m] from that `before`.
    """


@_kernel("logits: ~float32 n k", "u: float32 n", "act: *int64 n", "logp: *float32 n")
def sample_categorical(logits, u, act, logp, /):
    """act = the first i whose cumulative softmax probability exceeds u, logp = its log-probability.

    logits f32 [n k], possibly a slice of columns; u f32 [n]. Fills act i64 [n] and logp f32 [n].
    The last index of any probability where rounding leaves none; NaN logits give a NaN logp.
    """


@_kernel("mean: ~float32 n a", "log_std: float32 a", "z: float32 n a", "act: *float32 n a",
         "logp: *float32 n")
def sample_gaussian(mean, log_std, z, act, logp, /):
    """act = mean + exp(log_std) z, logp = the sum of its components' log densities.

    mean f32 [n a], possibly a slice of columns; log_std f32 [a]; z f32 [n a].
    Fills act f32 [n a] and logp f32 [n].
    """


@_kernel("x: float32 ...")
def first_nonfinite(x, /):
    """The flat index of the first NaN or infinity of x, of any shape, or -1."""


@_kernel()
def unroll_floats(size, rows, /):
    """The number of floats of `work` that unroll and unroll_back need for `rows` sequences."""


@_kernel("sizes: int64 t", "x: float32 n g", "weight: float32 g h", "bias: float32 g",
         "state: float32 k s", "work: *float32 w", "prev: *float32 n h", "kept: *float32 n c",
         "out: *float32 n h")
def unroll(sizes, x, weight, bias, state, work, prev, kept, out, /):
    """out [n h] = a GRU over packed sequences; the definition is torch.nn.GRU.

    sizes i64 [t]: the number of sequences that have step t, never growing; samples are ordered by
    step. x f32 [n 3h] is the input part of the gates; weight [3h h] and bias [3h] are those of the
    hidden part; state [sizes[0] h]. Fills prev [n h], the h before each sample, and kept [n 4h],
    for unroll_back; work f32 [unroll_floats(h, sizes[0])] is scratch.
    """


@_kernel("sizes: int64 t", "weight: float32 g h", "dout prev: float32 n h", "kept: float32 n c",
         "work: *float32 w", "dx inner: *float32 n g")
def unroll_back(sizes, weight, dout, prev, kept, work, dx, inner, /):
    """dx [n g] = the gradient of unroll's x from that of its out, dout f32 [n h].

    Fills inner [n g] with the gradient of the hidden part of the gates: the weight's gradient is
    inner^T prev, the bias's its sum over samples. The state gets none.
    """


@_kernel("indices: uint8 h w", "table: int16 256", "out: *uint8 h w")
def recolour(indices, table, out, /):
    """out = table[indices] [h w]; returns False if one of these entries is negative."""


@_kernel("image: uint8 h w", "out: *uint8 y x")
def resize_area(image, channels, out, /):
    """out [y x] = the mean of image [h w] over the area of each new pixel, rounded half to even.

    A row is that of pixels of `channels` bytes. The mean is taken in float32, first along each row
    and then over the rows, in index order; so it equals OpenCV's INTER_AREA in every bit, unless
    both sizes are multiples of the new ones: then OpenCV rounds some halves up.
    """


@_kernel("image indices: uint8 h w", "table: int16 256", "out: *uint8 y x")
def resize_largest(image, indices, table, out, /):
    """out [y x] = resize_area of the larger of image and table[indices], both [h w].

    Returns False, and out is of no use, if one of these entries of the table is negative.
    """


@_kernel("plan: int64 l 12")
def update_sizes(plan, log_std, /):
    """(parameters, floats of work) of an update on the networks of `plan`; see update_memory."""


class UpdateBuffers(NamedTuple):
    """The arrays that an update writes; only the first three are read before they are written."""

    params: np.ndarray  # f32 [q] the flat parameters
    exp_avg: np.ndarray  # f32 [q] Adam's first moments
    exp_avg_sq: np.ndarray  # f32 [q] Adam's second moments
    grads: np.ndarray  # f32 [8 s] gradients of shards, s >= q; row 0: that of the last minibatch
    sums: np.ndarray  # f64 [8 SUMS] statistics of shards
    work: np.ndarray  # f32 [w] scratch


class UpdateSamples(NamedTuple):
    """The arrays that an update reads: samples of a rollout, and the normaliser's snapshot."""

    obs: np.ndarray  # f32 [n o], or u8 for images; u8 [f o/k] with `stacks`
    act: np.ndarray  # i64 [n], or f32 [n a]
    logp: np.ndarray  # f32 [n], as all that follow
    val: np.ndarray
    adv: np.ndarray
    ret: np.ndarray
    mean: np.ndarray | None = None  # f32 [o]; None without normalisation
    scale: np.ndarray | None = None  # f32 [o], 1 / std
    stacks: np.ndarray | None = None  # i64 [n k] the rows of obs that are a sample's k frames
    legal: np.ndarray | None = None  # bool [n choices] the action mask
    first: np.ndarray | None = None  # bool [n] a sequence begins; None without memory
    state: np.ndarray | None = None  # f32 [n m] the memory before a sample


class UpdateCoefficients(NamedTuple):
    """The coefficients of an update, named as in Config; norm_advantages: per minibatch or not."""

    clip_range: float
    clip_range_vf: float | None
    entropy_coef: float
    value_coef: float
    dual_clip: float | None
    max_grad_norm: float
    norm_advantages: bool
    betas: tuple[float, float]
    adam_eps: float


_UPDATE_ARRAYS = array_specs(
    "plan: int64 l 12", "params: *float32 q", "exp_avg exp_avg_sq: ?*float32 q",
    f"grads: *float32 {MAX_SHARDS} s", f"sums: *float64 {MAX_SHARDS} {SUMS}", "work: *float32 w",
    "obs: float32|uint8 f o", "logp val adv ret: float32 n", "mean scale: ?float32 o",
    "stacks: ?int64 n k", "legal: ?bool n c", "first: ?bool n", "state: ?float32 n m",
    "order: int64 m")


def update_memory(plan, log_std, params, exp_avg, exp_avg_sq):
    """The UpdateBuffers for the networks of `plan`: the arrays given, and new ones for the rest.

    log_std: the offset of the Gaussian head's log std in params, None for a categorical head.
    Without Adam's moments (None twice) only shards can be computed, and `finish` is refused.
    """
    count, floats = update_sizes(plan, log_std)
    row = -(-count // 16) * 16
    size = MAX_SHARDS * row
    block = np.zeros(size + floats + 16, np.float32)
    # Both from the beginning of a cache line: reads across two lines cost twice.
    block = block[-block.ctypes.data % 64 // block.itemsize:]
    return UpdateBuffers(params, exp_avg, exp_avg_sq, block[:size].reshape(MAX_SHARDS, row),
                         np.zeros((MAX_SHARDS, SUMS)), block[size:size + floats])


class MinibatchUpdate(getattr(_twin, "Update", object)):
    """Clipped minibatch steps of PPO in place, on the networks of a plan with one action head.

    The compiled version of learner.Learner, which is the definition: gradients and weights equal
    torch's within 1e-5. Its methods are in csrc/bindings/update.pxi. The arrays must not be
    reallocated while the object exists.
    """

    def __init__(self, plan, log_std, limit, memory, samples, order, terms):
        """order i64 [m]: rows of samples, each minibatch a slice of it.

        Raises KernelError where the arrays do not fit each other or the plan.
        """
        try:
            super().__init__(plan, log_std, limit, memory, samples, order, terms)
        except _REFUSALS as refusal:
            arguments = {"plan": plan, **memory._asdict(), **samples._asdict(), "order": order}
            act = "act: int64 n" if log_std is None else "act: float32 n a"
            check_arrays("update", _UPDATE_ARRAYS | array_specs(act), arguments)
            raise KernelError(f"update: {refusal}") from refusal


class ActionNoise:
    """Random numbers for environments [first, first + count), a function of seed and step.

    `letters` has one letter per number of an action: u is uniform in [0, 1), n is normal.
    """

    def __init__(self, letters: str, seed: int, first: int, count: int):
        self.seed, self.first = seed, first
        self.out = np.empty((count, len(letters)), np.float32)
        self.normal = np.array([letter == "n" for letter in letters])
        self.normals = np.empty_like(self.out) if self.normal.any() else None

    def at(self, step: int, purpose: Purpose = Purpose.ACT) -> np.ndarray:
        """The numbers [e k] of acting step `step`; the next call overwrites the array."""
        place = self.seed, purpose, self.first, step
        if self.normal.all():
            normal(*place, self.out)
            return self.out
        uniform(*place, self.out)
        if self.normals is not None:
            normal(*place, self.normals)
            np.copyto(self.out, self.normals, where=self.normal)
        return self.out


# Environments that are records: EnvRows(functions, rows, before, (offset of the state, of the
# options), seed, number of the first, fin, arrays [t e ...]), of which the first are reward f64,
# term, trunc, obs and length, and where a policy acts act, logp, val and nxt. Its methods are in
# csrc/bindings/envs.pxi.
EnvRows, GOING = getattr(_twin, "EnvRows", object), getattr(_twin, "GOING", 0)
