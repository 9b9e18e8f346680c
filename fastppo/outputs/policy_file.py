"""A policy as one safetensors file: weights, observation moments, spaces and settings; no pickle.

Text stands in the file's metadata as JSON, arrays as tensors, a SHA-256 over all of both beside
them. Writing is atomic: a reader sees the old file or the new one, never half of one.
"""

import contextlib
import difflib
import errno
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
from fastppo.settings.spelling import MODELS

FORMAT = "fastppo policy 1"
# Settings that may have been functions or classes, and how a policy acts does not depend on.
OF_PYTHON = ("lr", "critic_lr", "clip_range", "clip_range_vf", "entropy_coef", "optimizer", "loss")

log = logging.getLogger("fastppo")


@default_torch()
def save_policy(policy: Policy, config: Config, path: str | os.PathLike) -> None:
    """Write a policy to `path`; CheckpointError where that cannot be.

    A missing folder is made, and that is said: an error would come when the training is over.
    """
    path = _path(path, "ppo.save")
    tensors = {name: x.detach().cpu().contiguous() for name, x in policy.state_dict().items()}
    spaces = {}
    for name, space in (("obs_space", policy.obs_space), ("act_space", policy.act_space)):
        described, arrays = _described(space, name)
        spaces[name] = json.dumps(described)
        tensors |= {place: torch.from_numpy(value) for place, value in arrays.items()}
    tensors = {name: value.clone() for name, value in tensors.items()}
    choices = {field.name: getattr(config, field.name) for field in fields(config)}
    metadata = {"format": FORMAT, **spaces, "config": json.dumps(choices, default=repr),
                "fingerprint": json.dumps(fingerprint(config.torch_threads or 1))}
    metadata["sha256"] = _digest(tensors, metadata)
    write_file(path, save(tensors, metadata))


@default_torch()
def load(path: str | os.PathLike, device: str = "cpu", model=None) -> Policy:
    """The policy in a file; one with a network of your own needs that class as `model`.

    Nothing is imported or run because the file says so. Raises CheckpointError where the file is
    missing, damaged, or not a policy.
    """
    path = _path(path, "load")
    tensors, metadata = _read(path)
    try:
        config = _config(metadata["config"], model, path)
        spaces = [_space(json.loads(metadata[name]), name, tensors)
                  for name in ("obs_space", "act_space")]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} holds settings or spaces that make no sense: {error!r}",
                              "ppo.save(path) writes one that does") from error
    policy = build_policy(*spaces, config, model)
    try:
        policy.load_state_dict(tensors)
    except RuntimeError as error:
        what = f"{path} does not fit the model: {error}"
        fix = "pass the class it was trained with: load(path, model=MyNet)"
        raise CheckpointError(what, fix) from error
    return policy.to(device)


def _path(path: Any, call: str) -> Path:
    """What `call` was given, as a Path; CheckpointError for what is none."""
    if not isinstance(path, (str, os.PathLike)):
        raise CheckpointError(f"{call} takes the path of a file, not {path!r}",
                              f'{call}("policy.safetensors")')
    return Path(path)


def write_file(path: Path, data: bytes) -> None:
    """Put `data` into a file, whole or not at all; CheckpointError where that cannot be."""
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
                              _remedy(path, error.errno)) from error
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _remedy(path: Path, number: int | None) -> str:
    """What helps against the errno of a write to `path` that failed."""
    if number in (errno.ENOSPC, errno.EDQUOT):
        return f"free some space in {path.parent.absolute()}, or save to another disk"
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"save where you may write, such as {Path.home() / path.name}"
    if number in (errno.EEXIST, errno.ENOTDIR):
        return f"one of the folders of {path.parent} is a file: save to another folder"
    if number == errno.ENAMETOOLONG:
        return "choose a shorter name"
    return "save to another place"


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder", _instead(next(iter(_models(path)), None)))
    if not path.is_file():
        raise CheckpointError(f"there is no file {path}", _instead(nearest_model(path)))
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except (SafetensorError, OSError) as error:
        graph = path.suffix in (".pt", ".onnx")
        raise CheckpointError(f"{path} is not a safetensors file, or is damaged: {error}",
                              "load the .safetensors it was exported from; torch.jit.load or"
                              " onnxruntime run a graph" if graph else "use another copy of it"
                              ) from error
    if metadata.get("format") != FORMAT:
        found = f" (its format is {metadata['format']!r})" if "format" in metadata else ""
        raise CheckpointError(f"{path} is not a policy of this version of fastppo{found}",
                              "ppo.save(path) writes one")
    if metadata.pop("sha256", "") != _digest(tensors, metadata):
        raise CheckpointError(f"{path} is damaged: its checksum is wrong", "use another copy of it")
    return tensors, metadata


def _instead(found: Path | None) -> str:
    """The call that loads the file `found`; where there is none, what makes one."""
    return f'load("{found}")' if found else 'ppo.save("policy.safetensors") writes one'


def _models(folder: Path) -> list[Path]:
    """The models in `folder`, its own first, then those in folders of it; newest first."""
    own, below = (filter(Path.is_file, folder.glob(f"{where}.safetensors"))
                  for where in ("*", "*/model"))
    return [path for paths in (own, below)
            for path in sorted(paths, key=lambda path: -path.stat().st_mtime)]


def nearest_model(path: Path) -> Path | None:
    """The file whose path is spelt most like `path`: of the models around it and under runs/."""
    around = [*_models(path.parent), *_models(path.parent.parent), *_models(Path("runs"))]
    return max(around, default=None, key=lambda one: difflib.SequenceMatcher(
        None, str(one), str(path)).ratio())


def _digest(tensors: dict[str, torch.Tensor], texts: dict[str, str]) -> str:
    sha = hashlib.sha256(json.dumps(sorted(texts.items())).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.reshape(-1, 1).view(torch.uint8).numpy())  # bfloat16 too
    return sha.hexdigest()


def _config(text: str, model: Any, path) -> Config:
    stored, known = json.loads(text), {field.name for field in fields(Config)}
    stored["hidden_sizes"] = tuple(stored["hidden_sizes"])
    if stored["model"] not in MODELS:
        if model is None:
            raise CheckpointError(f"{path} holds a model of your own, {stored['model']}",
                                  "load(path, model=MyNet) with the class it was trained with; or"
                                  " export ... --model=my_module:MyNet")
        stored["model"] = model
    elif model is not None:
        raise CheckpointError(f"{path} holds one of the built-in networks, {stored['model']}, and"
                              " no model of your own", "leave model out")
    return Config(**{name: value for name, value in stored.items()
                     if name in known and _readable(name, value)})


def _readable(name: str, value: Any) -> bool:
    """Whether a stored setting is one still; of a function of the user's only the text is kept.

    The policy acts the same without it.
    """
    try:
        return name not in OF_PYTHON or bool(Config(**{name: value}))
    except ConfigError:
        return not isinstance(value, str)


def _described(space: Space, name: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A space as what JSON can say, and its arrays by name below `name`."""
    if inner := subspaces(space):
        found = [_described(part, f"{name}.{i}") for i, (_, part) in enumerate(inner)]
        keys = {"keys": list(space.spaces), "wrapped": isinstance(space, MaskedDict)} \
            if isinstance(space, Dict) else {}
        return ({"parts": [text for text, _ in found], **keys},
                {place: array for _, arrays in found for place, array in arrays.items()})
    if isinstance(space, Discrete):
        # Older versions of Gymnasium know no other dtype, nor an argument for it.
        other = {} if space.dtype == np.int64 else {"dtype": space.dtype.str}
        return {"n": int(space.n), "start": int(space.start), **other}, {}
    if isinstance(space, MultiBinary):
        return {"bits": space.n if isinstance(space.n, int) else list(map(int, space.n))}, {}
    if isinstance(space, MultiDiscrete):
        return {"choices": space.dtype.str}, {
            f"{name}.{kind}": np.ascontiguousarray(getattr(space, kind), np.int64)
            for kind in ("nvec", "start")}
    kept = np.dtype(np.float64) if space.dtype.char == "g" else space.dtype.newbyteorder("=")
    with np.errstate(over="ignore"):  # a bound that only longdouble has is as good as none
        bounds = {f"{name}.{kind}": np.array(getattr(space, kind), kept)
                  for kind in ("low", "high")}
    return {"dtype": space.dtype.str}, bounds


def _space(text: dict[str, Any], name: str, tensors: dict[str, torch.Tensor]) -> Space:
    """The space described by `text`; its arrays are taken out of `tensors`."""
    if "parts" in text:
        inner = [_space(part, f"{name}.{i}", tensors) for i, part in enumerate(text["parts"])]
        if "keys" not in text:
            return Tuple(inner)
        # Files of earlier versions do not say whose a Dict of these keys is: there it was wrapped.
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
