"""A policy as a graph that needs neither this package nor, as ONNX, torch: `fastppo.export`.

    Graph of the policy -> traced (torchscript) or exported (onnx) -> checked on steps -> written

Raw observation in, the environment's action out, both with a batch axis of any length; normaliser,
network, the head's likeliest action and what the action space wants of it are inside.
"""

import contextlib
import copy
import importlib.util
import io
import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import Tensor, nn

from . import __version__, contract
from .actions import Actions
from .checkpoint import write
from .envs import Factory, build, factory, spaces_of
from .errors import ConfigError, Error, ExportError, InputError
from .models import own_torch
from .policy import Policy
from .spaces import observation_store

FORMATS = {"onnx": ".onnx", "torchscript": ".pt"}  # and their usual endings
NEEDED = "onnx", "onnxscript", "onnxruntime"
INPUT, OUTPUT, FACTS = "obs", "action", "fastppo"
STEPS = 300  # of the environment that a graph is checked on,
ALONE = 30  # and so many of them one by one
TOLERANCE = 1e-5  # of continuous actions, relative to the largest one
FAR = 6e4  # samples of a space are cut here: what has no bounds is no reason to overflow
TENSORS = "?Bbhilqefd"  # dtypes, as numpy's characters, that both formats take
# actions.FORMS in torch: from a stored component to a place between the bounds, 0 to 1.
PLACES: dict[str, Callable[[Tensor], Tensor] | None] = {
    "clip": None, "scale": lambda act: (act.clamp(-1, 1) + 1) / 2,
    "tanh": lambda act: (act.tanh() + 1) / 2, "unit": lambda act: act.clamp(0, 1)}
Runner = Callable[[np.ndarray], np.ndarray]


class Graph(nn.Module):
    """The environment's actions [b ...] for raw observations [b ...]; the likeliest ones."""

    def __init__(self, policy: Policy):
        super().__init__()
        self.policy, self.finish = policy, finish_of(policy.actions)
        self.stored = _torch_dtype(np.dtype(observation_store(policy.obs_space).dtype))

    def forward(self, obs: Tensor) -> Tensor:
        """Stored as training stores it, then the policy's own way."""
        params, _ = self.policy(obs.to(self.stored))
        return self.finish(self.policy.head.mode(params))


def finish_of(actions: Actions) -> Callable[[Tensor], Tensor]:
    """The twin in torch of Actions.to_env: from stored actions [b ...] to the environment's."""
    space, dtype = actions.space, _torch_dtype(actions.space.dtype)
    if isinstance(space, Discrete):
        return lambda act: (act + int(space.start)).to(dtype)
    wide = torch.promote_types(torch.float32, dtype)
    low, high = (torch.from_numpy(bound.reshape(-1).copy()).to(wide)
                 for bound in (space.low, space.high))
    place, whole = PLACES[actions.form], torch.round if space.dtype.kind != "f" else lambda act: act

    def finish(act: Tensor) -> Tensor:
        act = act.to(wide)
        act = act if place is None else low + place(act) * (high - low)
        return whole(act).clamp(low, high).to(dtype).reshape(act.shape[0], *space.shape)
    return finish


def input_dtype(space: Space) -> np.dtype:
    """The dtype of the graph's input: the space's own, or where no tensor has that, as stored."""
    own = space.dtype.newbyteorder("=")
    return own if own.char in TENSORS else np.dtype(observation_store(space).dtype)


def export(policy: Policy, path: str | os.PathLike, to: str | None = None,
           env: Any = None) -> None:
    """Write a policy to `path` as a graph; `to` is onnx or torchscript, by default as `path` ends.

    It is checked before it is written: on 300 steps in `env`, an id or a callable, or else on
    samples of the observation space. Raises ConfigError for a format or a package that is not
    there, ExportError where the network cannot be made a graph or that acts otherwise.
    """
    path = Path(path)
    to = format_of(path, to)
    check_spaces(policy)
    obs = samples(policy.obs_space) if env is None else played(policy, factory(env))
    name = env if isinstance(env, str) else getattr(env, "__qualname__", None)
    put(policy, path, to, obs, name)


@own_torch()
def put(policy: Policy, path: Path, to: str, obs: np.ndarray, env_name: str | None) -> None:
    """Write a policy to `path` in the format `to`, checked on raw observations [n ...]."""
    make, run = MAKERS[to], RUNNERS[to]
    graph = Graph(copy.deepcopy(policy).cpu()).eval().requires_grad_(False)
    with torch.no_grad(), quiet():
        try:
            data = make(graph, obs[:2], json.dumps(facts(policy, env_name)))
        except Exception as error:  # whatever a network does that a graph cannot
            raise ExportError(f"the network cannot be made a graph for {to}:"
                              f" {type(error).__name__}: {contract.shortened(str(error), 500)}",
                              remedy(to)) from error
        check(policy, run(data), obs, to)
    write(path, data)


def check_spaces(policy: Policy) -> None:
    """Raise ExportError for a policy whose spaces no graph here is made for."""
    for what, space, served in (("observations", policy.obs_space, Box),
                                ("actions", policy.act_space, (Box, Discrete))):
        if not isinstance(space, served):
            raise ExportError(f"{what} of the space {space} cannot be exported yet",
                              "policy = fastppo.load(path); policy.predict(obs)")


def format_of(path: Path, to: str | None) -> str:
    """The format asked for, or the one `path` ends in; ConfigError for none, or what it lacks."""
    endings = {ending: name for name, ending in FORMATS.items()}
    to = endings.get(path.suffix) if to is None else to
    if to not in FORMATS:
        raise ConfigError(f"{path} does not say what to export to" if to is None else
                          f"there is no format {to!r}, only {' and '.join(FORMATS)}", "--to=onnx")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if to == "onnx" and missing:
        raise ConfigError(f"--to=onnx needs {', '.join(NEEDED)}, of which {', '.join(missing)}"
                          f" {'is' if len(missing) == 1 else 'are'} not installed",
                          'pip install "fastppo[export]"; or --to=torchscript')
    return to


def remedy(to: str) -> str:
    """What helps where a network cannot be made a graph."""
    return "in the model's forward use tensors alone, obs.shape[0] instead of len(obs), and no" \
           " branch on their values" + "; or --to=onnx" * (to == "torchscript")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what torch says of its own insides; what matters is checked afterwards."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            for logger, level in zip(loggers, levels):
                logger.setLevel(level)


def torchscript(graph: Graph, obs: np.ndarray, about: str) -> bytes:
    """The graph, traced, as a TorchScript file; `torch.jit.load` reads it, in C++ too."""
    traced = torch.jit.trace(graph, (torch.from_numpy(obs),), check_trace=False)
    file = io.BytesIO()
    torch.jit.save(traced, file, _extra_files={FACTS: about})
    return file.getvalue()


def onnx(graph: Graph, obs: np.ndarray, about: str) -> bytes:
    """The graph as an ONNX file, all its weights inside."""
    batch = torch.export.Dim("batch")
    made = torch.onnx.export(graph, (torch.from_numpy(obs),), dynamo=True, verbose=False,
                             dynamic_shapes=({0: batch},), input_names=[INPUT],
                             output_names=[OUTPUT])
    proto = made.model_proto
    for node in proto.graph.node:
        node.ClearField("metadata_props")  # where in whose files it was traced
    proto.metadata_props.add(key=FACTS, value=about)
    return proto.SerializeToString()


def run_torchscript(data: bytes) -> Runner:
    """What a TorchScript file does."""
    module = torch.jit.load(io.BytesIO(data))
    return lambda obs: module(torch.from_numpy(obs)).numpy()


def run_onnx(data: bytes) -> Runner:
    """What an ONNX file does, by onnxruntime."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return lambda obs: session.run([OUTPUT], {INPUT: obs})[0]


MAKERS = {"onnx": onnx, "torchscript": torchscript}
RUNNERS = {"onnx": run_onnx, "torchscript": run_torchscript}


def check(policy: Policy, run: Runner, obs: np.ndarray, to: str) -> None:
    """Raise ExportError where `run` does not act as the policy does on observations [n ...].

    All at once, and some one by one: a graph may have kept a batch's length, or the way that its
    first row took. Discrete actions must be equal, continuous ones within 1e-5 of the largest.
    """
    every = max(1, len(obs) // ALONE)
    for part in (slice(0, len(obs)), *(slice(i, i + 1) for i in range(0, len(obs), every))):
        wanted = policy.predict(obs[part])
        try:
            found = run(obs[part])
        except Exception as error:  # the runtimes have no common one
            last = str(error).strip().rpartition("\n")[2]  # above it is the runtime's own traceback
            raise ExportError(f"the graph for {to} fails on a batch of {len(obs[part])}: {last}",
                              remedy(to)) from error
        if why := difference(found, wanted):
            raise ExportError(f"the graph for {to} does not act as the policy does: {why}"
                              f" (batch of {len(obs[part])}); nothing was written", remedy(to))


def difference(found: np.ndarray, wanted: np.ndarray) -> str:
    """How actions [n ...] differ from those that are wanted; "" where they do not."""
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype} {list(found.shape)}, not {wanted.dtype} {list(wanted.shape)}"
    slack = 0.0
    if wanted.dtype.kind == "f":
        slack = max(TOLERANCE, 2 * np.finfo(wanted.dtype).eps) * np.abs(wanted).max(initial=0)
    gap = abs(found.astype("f8") - wanted.astype("f8")).max(axis=tuple(range(1, wanted.ndim)))
    far = np.flatnonzero(~(gap <= slack))  # NaN too
    return f"{found[far[0]]} for {wanted[far[0]]} in row {far[0]}" if len(far) else ""


def played(policy: Policy, make: Factory, steps: int = STEPS) -> np.ndarray:
    """The raw observations [n ...] of `steps` steps of the policy in an environment of its own.

    Raises EnvError where that fails, InputError where it has other spaces than the policy.
    """
    env, = build([make])
    seen, over = [], True
    try:
        if spaces_of(env) != (policy.obs_space, policy.act_space):
            raise InputError(f"the environment has the spaces {spaces_of(env)}, the policy"
                             f" {(policy.obs_space, policy.act_space)}",
                             "give the environment it was trained on")
        for step in range(steps):
            if over:
                obs, over = env.reset(seed=step)[0], False
            seen.append(np.array(obs, input_dtype(policy.obs_space)))
            obs, _, term, trunc, _ = env.step(policy.predict(obs))
            over = term or trunc
        return np.stack(seen)
    except (Error, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's environment may raise anything
        raise contract.fault("an environment", f"step {len(seen)}", error,
                             "play it alone until that works") from error
    finally:
        contract.close([env])


def samples(space: Space, count: int = STEPS) -> np.ndarray:
    """Random observations [n ...] of a space, always the same ones."""
    space = copy.deepcopy(space)
    space.seed(0)
    rows = np.stack([space.sample() for _ in range(count)])
    return (np.clip(rows, -FAR, FAR) if rows.dtype.kind == "f" else rows).astype(input_dtype(space))


def facts(policy: Policy, env_name: str | None) -> dict[str, Any]:
    """What the file says of itself, as JSON under the key `fastppo`."""
    return {"version": __version__, "env_name": env_name,
            "obs_space": described(policy.obs_space), "act_space": described(policy.act_space),
            "input": {"name": INPUT, "dtype": input_dtype(policy.obs_space).name}}


def described(space: Space) -> dict[str, Any]:
    """A space as plain JSON values; bounds that are all the same as one number, as text."""
    if isinstance(space, Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    bounds = {}
    for name in ("low", "high") if isinstance(space, Box) else ():
        values = np.unique(getattr(space, name).astype("f8"))
        bounds[name] = str(values[0]) if len(values) == 1 else \
            [str(value) for value in getattr(space, name).reshape(-1)]
    return {"type": type(space).__name__, "shape": list(space.shape or ()),
            "dtype": str(space.dtype), **bounds}


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.zeros(0, dtype.newbyteorder("="))).dtype
