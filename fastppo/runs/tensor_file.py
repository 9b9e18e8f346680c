"""Tensors and JSON texts in one safetensors file, with a checksum; no pickle.

Writing is atomic: a reader sees the old file or the new one. Nothing is imported or run because a
file names it. Nested values are JSON with tensors by name (split_tree, join_tree):

    {"a": [1, array]}  <->  {"dict": [["a", {"list": [1, {"tensor": "x.0.1"}]}]]}, {"x.0.1": array}
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fastppo.errors import CheckpointError
from fastppo.machine.file_access import write_bytes
from fastppo.runs.folder import check_file


def write_tensor_file(path: Path, form: str, tensors: dict[str, Tensor], texts: dict[str, Any],
                      private: bool = False) -> None:
    """Writes contiguous tensors and JSON values to `path`, in the format `form`.

    Only the user may read a `private` file: it holds observations, or actions in them. Raises
    CheckpointError if it cannot be written.
    """
    metadata = {name: json.dumps(text, default=repr) for name, text in texts.items()}
    metadata["format"] = form
    metadata["sha256"] = _digest(tensors, metadata)
    write_file(path, save(tensors, metadata), private)


def write_file(path: Path, data: bytes, private: bool = False) -> None:
    """Writes `data` to a file, whole or not at all; raises CheckpointError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, data, 0o600 if private else 0o666)
    except (OSError, ValueError) as error:  # ValueError: of a name with a zero byte
        raise CheckpointError(f"cannot write {path}: {getattr(error, 'strerror', error)}",
                              "save to a file in a folder where you may write, on a disk with"
                              " free space, under a shorter name") from error


def read_tensor_file(path: Path, form: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors, JSON values) of a file in the format `form`, such as "fastppo policy 1".

    Raises CheckpointError if it is missing, damaged or of another format.
    """
    check_file(path, kind := form.split()[1])
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        checksum = metadata.pop("sha256", "")
        if metadata.get("format") != form or checksum != _digest(tensors, metadata):
            raise ValueError("its format or checksum is another")
        del metadata["format"]
        return tensors, {name: json.loads(text) for name, text in metadata.items()}
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not a {kind} of this version of fastppo, or is damaged: {error}",
            "give another copy of it, or a file that this version wrote") from error


def _digest(tensors: dict[str, Tensor], texts: dict[str, str]) -> str:
    sha = hashlib.sha256(json.dumps(sorted(texts.items())).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.reshape(-1, 1).view(torch.uint8).numpy())  # bfloat16 too
    return sha.hexdigest()


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
