"""Nested dicts, lists, numbers and arrays as JSON values and tensors by name, and back.

    {"a": [1, array]}  <->  {"dict": [["a", {"list": [1, {"tensor": "x.0.1"}]}]]}, {"x.0.1": array}
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def split_tree(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """`value` as a JSON value; its arrays are put into `tensors`, under names from `name` on."""
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, split_tree(part, f"{name}.{i}", tensors)]
                         for i, (key, part) in enumerate(value.items())]}
    if isinstance(value, (list, tuple)):
        return {"list": [split_tree(part, f"{name}.{i}", tensors) for i, part in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{name} is {type(value).__name__}, which a file cannot hold")


def join_tree(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The value that `split_tree` made JSON of; lists and tuples are tuples, arrays are tensors.

    Raises KeyError, TypeError or ValueError for JSON of any other form.
    """
    if not isinstance(value, dict):
        return value
    (kind, content), = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: join_tree(part, tensors) for key, part in content}
    if kind == "list":
        return tuple(join_tree(part, tensors) for part in content)
    raise ValueError(f"a tree has a {kind!r}")
