"""A policy as a graph that needs neither this package nor, as ONNX, torch: `fastppo.export`.

    Graph of the policy -> traced (torchscript) or exported (onnx) -> checked on steps -> written

Raw observation in, the environment's action out, with a batch axis of any length; normaliser,
network, the head's likeliest action and what the action space wants of it are inside. Memory goes
in as `state` and comes out as `next_state`.
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
from typing import Any, Callable, Iterator, Sequence

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from torch import Tensor
from torch.distributions import Distribution

from fastppo import __version__
from fastppo.envs import faults
from fastppo.envs.make import make_factory
from fastppo.envs.spaces import leaves, subspaces
from fastppo.errors import ConfigError, ExportError
from fastppo.networks.torch_state import default_torch, torch_threads
from fastppo.outputs.export_graph import Graph, Port, inputs_of, outputs_of
from fastppo.outputs.export_samples import Recording, play_episodes, predict_step, sample_episodes
from fastppo.outputs.policy_file import write_file
from fastppo.policy import Policy

FORMATS = {"onnx": ".onnx", "torchscript": ".pt"}  # and their usual endings
ONNX_PACKAGES = "onnx", "onnxscript", "onnxruntime"
FACTS = "fastppo"
SINGLE_STEPS = 30  # so many of the steps a graph is checked on are shown to it one by one
TOLERANCE = 1e-5  # of continuous actions, relative to the largest one
SELDOM = 0.01  # as large a tolerance of whole numbers is none: they have to be equal
Runner = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]  # inputs to outputs


def export(policy: Policy, path: str | os.PathLike, to: str | None = None,
           env: Any = None) -> None:
    """Write a policy to `path` as a graph; `to` is onnx or torchscript, by default as `path` ends.

    It is checked before it is written: on 300 steps in `env`, an id or a callable, its frames
    stacked as in training, or else on samples of the observation space. Raises ConfigError for a
    format or a package that is not there, ExportError where the network cannot be made a graph or
    that acts otherwise.
    """
    path = Path(path)
    to = format_of(path, to)
    steps = sample_episodes(policy) if env is None else play_episodes(policy, make_factory(env))
    name = env if isinstance(env, str) else getattr(env, "__qualname__", None)
    write_graph(policy, path, to, steps, name)


@default_torch()
def write_graph(policy: Policy, path: Path, to: str, steps: Recording, env_name: str | None) -> None:
    """Write a policy to `path` in the format `to`, checked on recorded steps."""
    make, run = MAKERS[to], RUNNERS[to]
    graph = Graph(copy.deepcopy(policy).cpu()).eval().requires_grad_(False)
    with torch.no_grad(), torch_threads(1), quiet_torch(), unvalidated_distributions():
        try:
            two = tuple(map(torch.from_numpy, graph_inputs(policy, steps.part(0, 2))))
            data = make(graph, two, json.dumps(export_facts(policy, env_name)))
        except Exception as error:  # whatever a network does that a graph cannot
            raise ExportError(f"the network cannot be made a graph for {to}:"
                              f" {type(error).__name__}: {faults.truncate_text(str(error), 500)}",
                              graph_fix(to)) from error
        check_graph(policy, run(data), steps, to)
    write_file(path, data)


def format_of(path: Path, to: str | None) -> str:
    """The format asked for, or the one `path` ends in; ConfigError for none, or what it lacks."""
    endings = {ending: name for name, ending in FORMATS.items()}
    to = endings.get(path.suffix) if to is None else to
    if to not in FORMATS:
        raise ConfigError(f"{path} does not say what to export to" if to is None else
                          f"there is no format {to!r}, only {' and '.join(FORMATS)}", "--to=onnx")
    missing = [name for name in ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if to == "onnx" and missing:
        raise ConfigError(f"--to=onnx needs {', '.join(ONNX_PACKAGES)}, of which {', '.join(missing)}"
                          f" {'is' if len(missing) == 1 else 'are'} not installed",
                          'pip install "fastppo[export]"; or --to=torchscript')
    return to


def graph_fix(to: str) -> str:
    """What helps where a network cannot be made a graph."""
    return "in the model's forward use tensors alone, obs.shape[0] instead of len(obs), and no" \
           " branch on their values" + "; or --to=onnx" * (to == "torchscript")


@contextlib.contextmanager
def quiet_torch() -> Iterator[None]:
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


@contextlib.contextmanager
def unvalidated_distributions() -> Iterator[None]:
    """Distributions that do not look at the values they are given, on which no graph can branch."""
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


def torchscript(graph: Graph, inputs: tuple[Tensor, ...], about: str) -> bytes:
    """The graph, traced, as a TorchScript file; `torch.jit.load` reads it, in C++ too."""
    traced = torch.jit.trace(graph, inputs, check_trace=False)
    file = io.BytesIO()
    torch.jit.save(traced, file, _extra_files={FACTS: about})
    return file.getvalue()


def onnx(graph: Graph, inputs: tuple[Tensor, ...], about: str) -> bytes:
    """The graph as an ONNX file, all its weights inside."""
    batch = torch.export.Dim("batch")
    names = [[port.name for port in ports(graph.policy)] for ports in (inputs_of, outputs_of)]
    made = torch.onnx.export(graph, inputs, dynamo=True, verbose=False,
                             dynamic_shapes=(({0: batch},) * len(inputs),),
                             input_names=names[0], output_names=names[1])
    proto = made.model_proto
    for node in proto.graph.node:
        node.ClearField("metadata_props")  # where in whose files it was traced
    proto.metadata_props.add(key=FACTS, value=about)
    return proto.SerializeToString()


def run_torchscript(data: bytes) -> Runner:
    """What a TorchScript file does."""
    module = torch.jit.load(io.BytesIO(data))

    def run(inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        found = module(*map(torch.from_numpy, inputs))
        return [x.numpy() for x in (found if isinstance(found, tuple) else (found,))]
    return run


def run_onnx(data: bytes) -> Runner:
    """What an ONNX file does, by onnxruntime."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs)))


MAKERS = {"onnx": onnx, "torchscript": torchscript}
RUNNERS = {"onnx": run_onnx, "torchscript": run_torchscript}


def graph_inputs(policy: Policy, steps: Recording) -> list[np.ndarray]:
    """The inputs of the graph for recorded steps, memory as it was recorded."""
    return [*steps.obs, *[steps.state] * bool(policy.memory)]


def expected_outputs(policy: Policy, steps: Recording) -> list[np.ndarray]:
    """What the graph must answer to them: what the policy does."""
    act, after = predict_step(policy, policy.observer.layout.structure(steps.obs), steps.state)
    return [leaf.of(act) for leaf in leaves(policy.act_space)] + [after] * bool(policy.memory)


def check_graph(policy: Policy, run: Runner, steps: Recording, to: str) -> None:
    """Raise ExportError where `run` does not act as the policy does on recorded steps.

    All at once, and some one by one: a graph may have kept a batch's length, or the way that its
    first row took. With memory every one, the graph's own state going on from step to step until an
    episode ends. Choices must be equal, numbers within 1e-5 of the largest one, or of the bounds
    that they are mapped to.
    """
    largest = [np.abs(x.astype("f8")).max(initial=0) for x in expected_outputs(policy, steps)]
    largest = np.fmax(largest, bounds(policy)) * outputs_are_numbers(policy)
    compare_outputs(policy, run, steps, largest, to)
    count, state = len(steps.first), steps.state
    for i in range(0, count, 1 if policy.memory else max(1, count // SINGLE_STEPS)):
        part = steps.part(i, i + 1)
        own = part if part.first[0] or not policy.memory else part._replace(state=state)
        *_, state = compare_outputs(policy, run, part, largest, to, own)


def bounds(policy: Policy) -> list[float]:
    """How large the bounds are that each output is mapped to: what cancels there rounds by them."""
    mapped = policy.actions.form != "clip"
    return [max(np.abs(leaf.space.low).max(initial=0), np.abs(leaf.space.high).max(initial=0))
            if mapped and isinstance(leaf.space, Box) else 0.0
            for leaf in leaves(policy.act_space)] + [0.0] * bool(policy.memory)


def outputs_are_numbers(policy: Policy) -> list[bool]:
    """Which outputs are numbers, that may be rounded, and not choices."""
    return [isinstance(leaf.space, Box)
            for leaf in leaves(policy.act_space)] + [True] * bool(policy.memory)


def compare_outputs(policy: Policy, run: Runner, steps: Recording, largest: Sequence[float], to: str,
            own: Recording | None = None) -> Sequence[np.ndarray]:
    """What `run` answers to recorded steps, or to its `own` of them; see `check`."""
    batch = f"batch of {len(steps.first)}"
    try:
        found = run(graph_inputs(policy, own or steps))
    except Exception as error:  # the runtimes have no common one
        last = str(error).strip().rpartition("\n")[2]  # above it is the runtime's own traceback
        raise ExportError(f"the graph for {to} fails on a {batch}: {last}", graph_fix(to)) from error
    for port, *pair in zip(outputs_of(policy), found, expected_outputs(policy, steps), largest):
        if why := describe_difference(*pair):
            raise ExportError(f"the graph for {to} does not act as the policy does: {port.name} is"
                              f" {why} ({batch}); nothing was written", graph_fix(to))
    return found


def describe_difference(found: np.ndarray, wanted: np.ndarray, largest: float | None = None) -> str:
    """How actions [n ...] differ from those that are wanted; "" where they do not.

    `largest`: how large numbers are, to which rounding is relative; by default those wanted, but
    whole numbers are exact then. So they are where rounding hardly ever makes another one of them.
    """
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype} {list(found.shape)}, not {wanted.dtype} {list(wanted.shape)}"
    slack = 0.0
    if wanted.dtype.kind == "f":
        largest = np.abs(wanted).max(initial=0) if largest is None else largest
        slack = max(TOLERANCE, 2 * np.finfo(wanted.dtype).eps) * largest
    elif largest and largest * TOLERANCE > SELDOM:
        slack = np.ceil(largest * TOLERANCE)
    gap = abs(found.astype("f8") - wanted.astype("f8")).max(axis=tuple(range(1, wanted.ndim)))
    far = np.flatnonzero(~(gap <= slack))  # NaN too
    return f"{found[far[0]]} for {wanted[far[0]]} in row {far[0]}" if len(far) else ""


def export_facts(policy: Policy, env_name: str | None) -> dict[str, Any]:
    """What the file says of itself, as JSON under the key `fastppo`.

    Its inputs and outputs are in the order in which TorchScript takes and gives them.
    """
    return {"version": __version__, "env_name": env_name,
            "obs_space": space_json(policy.obs_space), "act_space": space_json(policy.act_space),
            "inputs": list(map(port_json, inputs_of(policy))),
            "outputs": list(map(port_json, outputs_of(policy)))}


def port_json(port: Port) -> dict[str, Any]:
    """An input or output as plain JSON values; the batch axis comes before its shape."""
    return {"name": port.name, "dtype": port.dtype.name, "shape": list(port.shape)}


def space_json(space: Space) -> dict[str, Any]:
    """A space as plain JSON values; bounds that are all the same as one number, as text."""
    if inner := subspaces(space):
        made = {str(key): space_json(part) for key, part in inner}
        return {"type": "Dict" if isinstance(space, Dict) else "Tuple",
                "spaces": made if isinstance(space, Dict) else list(made.values())}
    if isinstance(space, Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    more = {}
    if isinstance(space, MultiDiscrete):
        more = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
    for name in ("low", "high") if isinstance(space, Box) else ():
        values = np.unique(getattr(space, name).astype("f8"))
        more[name] = str(values[0]) if len(values) == 1 else \
            [str(value) for value in getattr(space, name).reshape(-1)]
    return {"type": type(space).__name__, "shape": list(space.shape or ()),
            "dtype": str(space.dtype), **more}
