"""A policy as one safetensors file: weights, observation moments, spaces and settings; no pickle.

Texts are JSON in the file's metadata, arrays are tensors, and a SHA-256 covers both. Writing is
atomic: a reader sees the old file or the new one.
"""

import contextlib
import difflib
import hashlib
import json
import logging
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fastppo.build.model import build_policy
from fastppo.config import Config
from fastppo.envs.spaces import MASK, OBS_KEY, MaskedDict, subspaces
from fastppo.errors import CheckpointError, ConfigError
from fastppo.networks.torch_state import default_torch
from fastppo.outputs.fingerprint import fingerprint
from fastppo.policy import Policy
from fastppo.settings.fixes import Omit
from fastppo.settings.spelling import MODELS

FORMAT = "fastppo policy 1"
# Settings that may be functions or classes; the saved policy acts the same without them.
CALLABLE_SETTINGS = ("lr", "critic_lr", "clip_range", "clip_range_vf", "entropy_coef", "optimizer",
                     "loss")

log = logging.getLogger("fastppo")


@default_torch()
def save_policy(policy: Policy, config: Config, path: str | os.PathLike) -> None:
    """Write a policy to `path`; raises CheckpointError if that fails.

    A missing folder is made, with a warning in the log, because training may have taken long.
    """
    path = _path(path, "ppo.save")
    tensors = {name: x.detach().cpu().contiguous() for name, x in policy.state_dict().items()}
    spaces = {}
    for name, space in (("obs_space", policy.obs_space), ("act_space", policy.act_space)):
        description, arrays = _describe_space(space, name)
        spaces[name] = json.dumps(description)
        tensors |= {place: torch.from_numpy(value) for place, value in arrays.items()}
    tensors = {name: value.clone() for name, value in tensors.items()}
    metadata = {"format": FORMAT, **spaces, "config": json.dumps(vars(config), default=repr),
                "fingerprint": json.dumps(fingerprint(config.torch_threads or 1))}
    metadata["sha256"] = _digest(tensors, metadata)
    write_file(path, save(tensors, metadata))


@default_torch()
def load(path: str | os.PathLike, device: str = "cpu", model=None) -> Policy:
    """The policy in a file; `model` is the class of its network, if it is a network of your own.

    Loading imports and runs nothing that the file names. Raises CheckpointError if the file is
    missing, damaged, or not a policy.
    """
    path = _path(path, "load")
    tensors, metadata = _read(path)
    try:
        config = _stored_config(metadata["config"], model, path)
        obs_space, act_space = (_build_space(json.loads(metadata[name]), name, tensors)
                                for name in ("obs_space", "act_space"))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} holds invalid settings or spaces: {error!r}",
                              "ppo.save(path) writes valid ones") from error
    policy = build_policy(obs_space, act_space, config, model)
    try:
        policy.load_state_dict(tensors)
    except RuntimeError as error:
        raise CheckpointError(
            f"{path} does not fit the model: {error}",
            "pass the class it was trained with: load(path, model=MyNet)") from error
    return policy.to(device)


def _path(path: Any, call: str) -> Path:
    """The argument of `call` as a Path; CheckpointError if it is no path."""
    if not isinstance(path, (str, os.PathLike)):
        raise CheckpointError(f"{call} takes the path of a file, not {path!r}",
                              f'{call}("policy.safetensors")')
    return Path(path)


def write_file(path: Path, data: bytes) -> None:
    """Write `data` to a file, whole or not at all; raises CheckpointError if that fails."""
    if not path.name or path.is_dir():
        raise CheckpointError(f"cannot write {path}: it is a directory",
                              f'ppo.save("{path / "policy.safetensors"}")')
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            log.warning("made the folder %s, which was not there", path.parent)
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error.strerror}",
                              "save to a folder where you may write, on a disk with free space,"
                              " under a shorter name") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder", _load_fix(next(iter(_models(path)), None)))
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}", _load_fix(nearest_model(path)))
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        is_graph = path.suffix in (".pt", ".onnx")
        raise CheckpointError(
            f"{path} is not a safetensors file, or is damaged: {error}",
            "load the .safetensors it was exported from; torch.jit.load or onnxruntime run a graph"
            if is_graph else "use another copy of it") from error
    if metadata.get("format") != FORMAT:
        found = f" (its format is {metadata['format']!r})" if "format" in metadata else ""
        raise CheckpointError(f"{path} is not a policy of this version of fastppo{found}",
                              "ppo.save(path) writes one")
    if metadata.pop("sha256", "") != _digest(tensors, metadata):
        raise CheckpointError(f"{path} is damaged: its checksum is wrong", "use another copy of it")
    return tensors, metadata


def _load_fix(model: Path | None) -> str:
    """The call that loads the file `model`; if there is none, the call that writes one."""
    return f'load("{model}")' if model else 'ppo.save("policy.safetensors") writes one'


def _models(folder: Path) -> list[Path]:
    """The models in `folder`, then those in its subfolders; the newest first."""
    found = []
    for pattern in ("*.safetensors", "*/model.safetensors"):
        paths = filter(Path.is_file, folder.glob(pattern))
        found += sorted(paths, key=lambda path: -path.stat().st_mtime)
    return found


def nearest_model(path: Path) -> Path | None:
    """The model with the most similar path, of those near `path` and under runs/."""
    models = [*_models(path.parent), *_models(path.parent.parent), *_models(Path("runs"))]
    return max(models, default=None, key=lambda model: difflib.SequenceMatcher(
        None, str(model), str(path)).ratio())


def _digest(tensors: dict[str, torch.Tensor], texts: dict[str, str]) -> str:
    sha = hashlib.sha256(json.dumps(sorted(texts.items())).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.reshape(-1, 1).view(torch.uint8).numpy())  # bfloat16 too
    return sha.hexdigest()


def _stored_config(text: str, model: Any, path: Path) -> Config:
    """The Config in a file, without settings that this version does not have."""
    stored, known = json.loads(text), {field.name for field in fields(Config)}
    stored["hidden_sizes"] = tuple(stored["hidden_sizes"])
    if stored["model"] not in MODELS:
        if model is None:
            raise CheckpointError(f"{path} holds a model of your own, {stored['model']}",
                                  "load(path, model=MyNet) with the class it was trained with;"
                                  " the export command takes it as model=my_module:MyNet")
        stored["model"] = model
    elif model is not None:
        raise CheckpointError(f"{path} holds one of the built-in networks, {stored['model']}, and"
                              " no model of your own", Omit("model"))
    return Config(**{name: value for name, value in stored.items()
                     if name in known and not _was_callable(name, value)})


def _was_callable(name: str, value: Any) -> bool:
    """True if a stored setting is only the text of a function or class."""
    if name not in CALLABLE_SETTINGS or not isinstance(value, str):
        return False
    try:
        Config(**{name: value})
    except ConfigError:
        return True
    return False


def _describe_space(space: Space, name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(a space as JSON values, its arrays by names that begin with `name`)."""
    if inner := subspaces(space):
        found = [_describe_space(part, f"{name}.{i}") for i, (_, part) in enumerate(inner)]
        keys = {"keys": list(space.spaces), "wrapped": isinstance(space, MaskedDict)} \
            if isinstance(space, Dict) else {}
        return ({"parts": [description for description, _ in found], **keys},
                {place: array for _, arrays in found for place, array in arrays.items()})
    if isinstance(space, Discrete):
        # Older versions of Gymnasium have no argument for another dtype.
        other = {} if space.dtype == np.int64 else {"dtype": space.dtype.str}
        return {"n": int(space.n), "start": int(space.start), **other}, {}
    if isinstance(space, MultiBinary):
        return {"bits": space.n if isinstance(space.n, int) else list(map(int, space.n))}, {}
    if isinstance(space, MultiDiscrete):
        return {"choices": space.dtype.str}, {
            f"{name}.{kind}": np.ascontiguousarray(getattr(space, kind), np.int64)
            for kind in ("nvec", "start")}
    dtype = np.dtype(np.float64) if space.dtype.char == "g" else space.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):  # a bound beyond float64 becomes infinite
        bounds = {f"{name}.{kind}": np.array(getattr(space, kind), dtype)
                  for kind in ("low", "high")}
    return {"dtype": space.dtype.str}, bounds


def _build_space(text: dict[str, Any], name: str, tensors: dict[str, torch.Tensor]) -> Space:
    """The space that `text` describes; its arrays are removed from `tensors`."""
    if "parts" in text:
        inner = [_build_space(part, f"{name}.{i}", tensors) for i, part in enumerate(text["parts"])]
        if "keys" not in text:
            return Tuple(inner)
        # Files of earlier versions have no "wrapped"; there a Dict of these keys was.
        wrapped = text.get("wrapped", {*text["keys"]} == {OBS_KEY, MASK})
        return (MaskedDict if wrapped else Dict)([*zip(text["keys"], inner)])
    if "n" in text:
        other = {"dtype": np.dtype(text["dtype"])} if "dtype" in text else {}
        return Discrete(text["n"], start=text["start"], **other)
    if "bits" in text:
        return MultiBinary(text["bits"])
    first, second = ("nvec", "start") if "choices" in text else ("low", "high")
    low, high = (tensors.pop(f"{name}.{kind}").numpy() for kind in (first, second))
    if "choices" in text:
        return MultiDiscrete(low, np.dtype(text["choices"]), start=high)
    dtype = np.dtype(text["dtype"])
    return Box(low.astype(dtype), high.astype(dtype), low.shape, dtype)
