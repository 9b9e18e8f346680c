"""A policy as one safetensors file: weights, observation moments, spaces and settings; no pickle.

Texts are JSON in the file's metadata, arrays are tensors, and a SHA-256 covers both. Writing is
atomic: a reader sees the old file or the new one.
"""

import contextlib
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
from fastppo.errors import CheckpointError
from fastppo.networks.torch_state import default_torch
from fastppo.outputs.fingerprint import fingerprint
from fastppo.outputs.run_folder import example_model
from fastppo.policy import Policy
from fastppo.settings.spelling import MODELS

FORMAT = "fastppo policy 1"
# Settings of training that may be functions or classes; a policy does not need them.
CALLABLE_SETTINGS = ("lr", "critic_lr", "clip_range", "clip_range_vf", "entropy_coef", "optimizer",
                     "loss")

log = logging.getLogger("fastppo")


@default_torch()
def save_policy(policy: Policy, config: Config, path: str | os.PathLike) -> None:
    """Writes a policy to `path`; raises CheckpointError if that fails.

    A missing folder is made, with a warning in the log, because training may have taken long.
    """
    path = _path(path, "ppo.save")
    tensors = {name: x.detach().cpu().clone(memory_format=torch.contiguous_format)
               for name, x in policy.state_dict().items()}
    texts = {name: describe_space(space, name, tensors) for name, space in (
        ("obs_space", policy.obs_space), ("act_space", policy.act_space))}
    texts |= {"config": vars(config), "fingerprint": fingerprint(config.torch_threads or 1)}
    metadata = {name: json.dumps(text, default=repr) for name, text in texts.items()}
    metadata["format"] = FORMAT
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
            "load(path, model=MyNet) with the class it was trained with; a built-in network has"
            " none") from error
    return policy.to(device)


def _path(path: Any, call: str) -> Path:
    """The argument of `call` as a Path; CheckpointError if it is no path."""
    if not isinstance(path, (str, os.PathLike)):
        raise CheckpointError(f"{call} takes the path of a file, not {path!r}",
                              f'{call}("policy.safetensors")')
    return Path(path)


def write_file(path: Path, data: bytes) -> None:
    """Writes `data` to a file, whole or not at all; raises CheckpointError if that fails."""
    partial = path.parent / f".{path.name}.{os.getpid()}.part"
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
                              "save to a file in a folder where you may write, on a disk with"
                              " free space, under a shorter name") from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    if not path.is_file():
        raise CheckpointError(f"{path} is a folder" if path.is_dir() else
                              f"there is no file {path}", f'load("{example_model(path)}")')
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is not a safetensors file, or is damaged: {error}",
                              "load a file that ppo.save(path) wrote, or another copy of it"
                              ) from error
    checksum = metadata.pop("sha256", "")
    if metadata.get("format") != FORMAT or checksum != _digest(tensors, metadata):
        raise CheckpointError(f"{path} is not a policy of this version of fastppo, or is damaged",
                              "load a file that ppo.save(path) wrote, or another copy of it")
    return tensors, metadata


def _digest(tensors: dict[str, torch.Tensor], texts: dict[str, str]) -> str:
    sha = hashlib.sha256(json.dumps(sorted(texts.items())).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.reshape(-1, 1).view(torch.uint8).numpy())  # bfloat16 too
    return sha.hexdigest()


def _stored_config(text: str, model: Any, path: Path) -> Config:
    """The Config in a file, without settings that this version or a policy does not need."""
    stored = json.loads(text)
    stored["hidden_sizes"] = tuple(stored["hidden_sizes"])
    if stored["model"] not in MODELS and model is None:
        raise CheckpointError(f"{path} holds a model of your own, {stored['model']}",
                              "load(path, model=MyNet) with the class it was trained with;"
                              " the export command takes it as model=my_module:MyNet")
    stored["model"] = model or stored["model"]
    return Config(**{field.name: stored[field.name] for field in fields(Config)
                     if field.name in stored and field.name not in CALLABLE_SETTINGS})


def describe_space(space: Space, name: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """A space as JSON values; its arrays go to `tensors`, with names that begin with `name`."""
    if inner := subspaces(space):
        text: dict[str, Any] = {"parts": [describe_space(part, f"{name}.{i}", tensors)
                                          for i, (_, part) in enumerate(inner)]}
        if isinstance(space, Dict):
            text |= {"keys": list(space.spaces), "wrapped": isinstance(space, MaskedDict)}
        return text
    if isinstance(space, Discrete):
        # Older versions of Gymnasium have no argument for another dtype.
        other = {} if space.dtype == np.int64 else {"dtype": space.dtype.str}
        return {"n": int(space.n), "start": int(space.start), **other}
    if isinstance(space, MultiBinary):
        return {"bits": np.asarray(space.n).tolist()}
    if isinstance(space, MultiDiscrete):
        text, kinds, dtype = {"choices": space.dtype.str}, ("nvec", "start"), np.dtype(np.int64)
    else:
        text, kinds, dtype = {"dtype": space.dtype.str}, ("low", "high"), space.dtype
    if dtype.char == "g":  # longdouble, which no tensor has
        dtype = np.dtype(np.float64)
    for kind in kinds:
        with np.errstate(over="ignore"):  # a bound beyond float64 becomes infinite
            array = np.array(getattr(space, kind), dtype.newbyteorder("="))
        tensors[f"{name}.{kind}"] = torch.from_numpy(array)
    return text


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
        return Discrete(**text)
    if "bits" in text:
        return MultiBinary(text["bits"])
    first, second = ("nvec", "start") if "choices" in text else ("low", "high")
    low, high = (tensors.pop(f"{name}.{kind}").numpy() for kind in (first, second))
    if "choices" in text:
        return MultiDiscrete(low, np.dtype(text["choices"]), start=high)
    dtype = np.dtype(text["dtype"])
    return Box(low.astype(dtype), high.astype(dtype), low.shape, dtype)
