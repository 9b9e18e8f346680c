"""The arrays that a kernel expects, and the error for a call whose arrays differ from them."""

from typing import Any, Mapping, NamedTuple

import numpy as np

from fastppo.errors import KernelError


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
        if not _matches(array, spec, shape):
            raise KernelError(f"{kernel}: {name} is {_description(array, spec)},"
                              f" wanted a {_expectation(spec, shape)}")
        sizes.update(zip(spec.axes, array.shape))


def _matches(array: Any, spec: ArraySpec, shape: list[int | str]) -> bool:
    if not isinstance(array, np.ndarray) or str(array.dtype) not in spec.dtypes:
        return False
    fits = spec.axes == ["..."] or array.ndim == len(shape) and all(
        wanted == size for wanted, size in zip(shape, array.shape) if isinstance(wanted, int))
    rows = array[:1] if spec.strided else array
    return fits and rows.flags.c_contiguous and (array.flags.writeable or not spec.written)


def _description(array: Any, spec: ArraySpec) -> str:
    if not isinstance(array, np.ndarray):
        return type(array).__name__
    locked = "" if array.flags.writeable or not spec.written else "read-only "
    strided = "" if array.flags.c_contiguous else "strided "
    return f"{locked}{strided}{array.dtype} {array.shape}"


def _expectation(spec: ArraySpec, shape: list[int | str]) -> str:
    layout = "row-contiguous" if spec.strided else "C-contiguous"
    axes = ", ".join(map(str, shape)) + "," * (len(shape) == 1)
    return (f"{'writable ' * spec.written}{layout} {' or '.join(spec.dtypes)} array"
            f" of shape ({axes})")
