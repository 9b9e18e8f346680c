"""Checks the arrays that a kernel is called with: dtype, shape and layout."""

import numpy as np

from fastppo.errors import KernelError

# dtype and axes of every array; * it is written, ~ its rows may lie apart, ... any shape.
ARRAYS = {
    "gae": {
        "rew": "float32 t e",
        "val": "float32 t e",
        "nxt": "float32 t e",
        "term": "bool t e",
        "trunc": "bool t e",
        "adv": "*float32 t e",
    },
    "discounted": {
        "rew": "float32|float64 t e",
        "ended": "bool t e",
        "carry": "*float64 e",
        "out": "*float64 t e",
    },
    "merge_moments": {
        "x": "float32|float64 n o",
        "count": "*float64 1",
        "mean": "*float64 o",
        "m2": "*float64 o",
    },
    "uniform": {"out": "*float32 e k"},
    "normal": {"out": "*float32 e k"},
    "permutation": {"out": "*int64 n"},
    "packed_size": {"plan": "int64 l 7"},
    "pack": {"plan": "int64 l 7", "params": "float32 q", "packed": "*float32 s"},
    "forward": {
        "plan": "int64 l 7",
        "packed": "float32 s",
        "mean": "float32 o",
        "scale": "float32 o",
        "obs": "float32 n o",
        "out": "*float32 n p",
    },
    "sample_categorical": {
        "logits": "~float32 n k",
        "u": "float32 n",
        "act": "*int64 n",
        "logp": "*float32 n",
    },
    "sample_gaussian": {
        "mean": "~float32 n a",
        "log_std": "float32 a",
        "z": "float32 n a",
        "act": "*float32 n a",
        "logp": "*float32 n",
    },
    "first_nonfinite": {"x": "float32 ..."},
    "unroll": {
        "sizes": "int64 t",
        "x": "float32 n g",
        "weight": "float32 g h",
        "bias": "float32 g",
        "state": "float32 k s",
        "work": "*float32 w",
        "prev": "*float32 n h",
        "kept": "*float32 n c",
        "out": "*float32 n h",
    },
    "unroll_back": {
        "sizes": "int64 t",
        "weight": "float32 g h",
        "dout": "float32 n h",
        "prev": "float32 n h",
        "kept": "float32 n c",
        "work": "*float32 w",
        "dx": "*float32 n g",
        "inner": "*float32 n g",
    },
}

# The same of an Update, which keeps its arrays; a categorical head's act is int64 n.
_UPDATE = {
    "plan": "int64 l 7",
    "params": "*float32 q",
    "exp_avg": "*float32 q",
    "exp_avg_sq": "*float32 q",
    "grads": "*float32 8 s",
    "sums": "*float64 8 6",
    "work": "*float32 w",
    "obs": "float32 n o",
    "act": "float32 n a",
    "logp": "float32 n",
    "val": "float32 n",
    "adv": "float32 n",
    "ret": "float32 n",
    "mean": "float32 o",
    "scale": "float32 o",
    "order": "int64 m",
    "stats": "*float32 7",
}

_LINES = ARRAYS | {"update": _UPDATE, "discrete update": _UPDATE | {"act": "int64 n"}}


def _fits(array, mark, dtypes, axes, sizes):
    """Whether `array` is what a line of ARRAYS says; notes axes met first in `sizes`."""
    if not isinstance(array, np.ndarray) or str(array.dtype) not in dtypes:
        return False
    if axes != ["..."]:
        if array.ndim != len(axes):
            return False
        for axis, size in zip(axes, array.shape, strict=True):
            if size != (int(axis) if axis.isdigit() else sizes.setdefault(axis, size)):
                return False
    rows = array[:1] if mark == "~" else array
    return rows.flags.c_contiguous and (mark != "*" or array.flags.writeable)


def check_arrays(kernel, **arrays):
    """Raise the KernelError that names the first of `arrays` that is not as ARRAYS says."""
    sizes = {}
    for name, array in arrays.items():
        dtypes, *axes = _LINES[kernel][name].split()
        mark = dtypes[0] if dtypes[0] in "*~" else ""
        dtypes = dtypes.lstrip("*~").split("|")
        known = dict(sizes)
        if not _fits(array, mark, dtypes, axes, sizes):
            raise _misfit(f"{kernel}: {name}", array, mark, dtypes, axes, known)


def _misfit(what, array, mark, dtypes, axes, sizes):
    """The KernelError for one array: what it is, what was wanted."""
    got = f"{type(array).__name__}"
    if isinstance(array, np.ndarray):
        strided = "" if array.flags.c_contiguous else "strided "
        locked = "" if array.flags.writeable or mark != "*" else "read-only "
        got = f"{locked}{strided}{array.dtype} {array.shape}"
    layout = "row-contiguous" if mark == "~" else "C-contiguous"
    shape = ", ".join(str(sizes.get(axis, axis)) for axis in axes) + "," * (len(axes) == 1)
    wanted = f"{'writable ' * (mark == '*')}{layout} {' or '.join(dtypes)} array"
    return KernelError(f"{what} is {got}, wanted a {wanted} of shape ({shape})")
