"""Writes a policy as a graph that runs without this package, and as ONNX without torch.

    Graph of the policy -> traced (torchscript) or exported (onnx) -> checked on steps -> written

Raw observations in, the environment's actions out, with a batch axis of any length. The normaliser,
the network, the deterministic action and its map to the action space are inside. The recurrent
state goes in as `state` and comes out as `next_state`.
"""

import contextlib
import copy
import io
import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor
from torch.distributions import Distribution

from fastppo import __version__
from fastppo.envs.make import make_factory
from fastppo.errors import ConfigError, ExportError, truncate_text, user_code
from fastppo.machine.installation import format_of
from fastppo.networks.encoders import compute_in_fp32
from fastppo.networks.torch_state import default_torch, torch_threads
from fastppo.policy import Policy
from fastppo.runs.export_graph import (
    Graph,
    Recording,
    inputs_of,
    outputs_of,
    play_episodes,
    predict_step,
    sample_episodes,
)
from fastppo.runs.policy_file import describe_space
from fastppo.runs.tensor_file import write_file
from fastppo.spaces.leaves import leaves

METADATA_KEY = "fastppo"
SINGLE_STEPS = 30  # steps of the check that are given to the graph one by one
TOLERANCE = 1e-5  # of continuous actions, relative to the largest one
FORWARD_ADVICE = "in the model's forward use tensors alone, obs.shape[0] instead of len(obs)"
Runner = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]  # inputs to outputs


def export(policy: Policy, path: str | os.PathLike, to: str | None = None,
           env: Any = None) -> None:
    """Writes a policy to `path` as a graph; `to` is onnx or torchscript, by default as `path` ends.

    Its inputs are tensors [batch ...] in the order of the observation space, by name `obs`,
    `obs.camera`, ...; then `action_mask` and `state` where the policy has them: `inputs` in the
    file's metadata lists them. The graph is checked before it is written: on 300 steps in `env`, an
    id or a callable, with frames stacked as in training, else on samples of the observation space.
    Raises ConfigError for an unknown format or a missing package, ExportError if the network cannot
    become a graph, or if the graph acts differently.
    """
    path = Path(path)
    to = format_of(path, to)
    if not isinstance(policy, Policy):
        raise ConfigError(f"export needs a policy, but was given {policy!r}", (
            'fastppo.export(fastppo.load("model.safetensors"), "policy.onnx")',
            'of a trainer: fastppo.export(ppo.policy, "policy.onnx")'))
    steps = sample_episodes(policy) if env is None else play_episodes(policy, make_factory(env))
    name = env if isinstance(env, str) else getattr(env, "__qualname__", None)
    write_graph(policy, path, to, steps, name)


@default_torch()
def write_graph(policy: Policy, path: Path, to: str, steps: Recording, env_name: str | None
                ) -> None:
    """Writes a policy to `path` in the format `to`, checked on recorded steps."""
    make, run = (onnx, run_onnx) if to == "onnx" else (torchscript, run_torchscript)
    policy = copy.deepcopy(policy).cpu()
    compute_in_fp32(policy)  # many runtimes have no bf16
    graph = Graph(policy).eval().requires_grad_(False)
    with torch.no_grad(), torch_threads(1), prepared_torch():
        try:
            example = tuple(map(torch.from_numpy, graph_inputs(policy, steps.part(0, 2))))
            data = make(graph, example, json.dumps(graph_metadata(policy, env_name)))
        except Exception as error:  # the network may do anything that a graph cannot
            raise ExportError(f"the network cannot be made a graph for {to}:"
                              f" {type(error).__name__}: {truncate_text(str(error), 500)}",
                              FORWARD_ADVICE) from error
        check_graph(policy, run(data), steps, to)
    write_file(path, data)


@contextlib.contextmanager
def prepared_torch() -> Iterator[None]:
    """Silences torch's messages about its internals, because the graph itself is checked.

    Turns off the checks of torch's distributions, which branch on values, as no graph can.
    """
    disabled, validates = logging.root.manager.disable, Distribution._validate_args
    with warnings.catch_warnings(action="ignore"):
        logging.disable(logging.WARNING)
        Distribution.set_default_validate_args(False)
        try:
            yield
        finally:
            logging.disable(disabled)
            Distribution.set_default_validate_args(validates)


def torchscript(graph: Graph, inputs: tuple[Tensor, ...], metadata: str) -> bytes:
    """The traced graph as a TorchScript file, for `torch.jit.load`, in C++ too."""
    traced = torch.jit.trace(graph, inputs, check_trace=False)
    file = io.BytesIO()
    torch.jit.save(traced, file, _extra_files={METADATA_KEY: metadata})
    return file.getvalue()


def onnx(graph: Graph, inputs: tuple[Tensor, ...], metadata: str) -> bytes:
    """The graph as an ONNX file with all weights inside."""
    batch = torch.export.Dim("batch")
    names = [[port.name for port in ports(graph.policy)] for ports in (inputs_of, outputs_of)]
    made = torch.onnx.export(graph, inputs, dynamo=True, verbose=False,
                             dynamic_shapes=(({0: batch},) * len(inputs),),
                             input_names=names[0], output_names=names[1])
    proto = made.model_proto
    for node in proto.graph.node:
        node.ClearField("metadata_props")  # paths of the files it was traced in
    proto.metadata_props.add(key=METADATA_KEY, value=metadata)
    return proto.SerializeToString()


def run_torchscript(data: bytes) -> Runner:
    """Returns the function that a TorchScript file computes."""
    module = torch.jit.load(io.BytesIO(data))

    def run(inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        found = module(*map(torch.from_numpy, inputs))
        return [x.numpy() for x in (found if isinstance(found, tuple) else (found,))]
    return run


def run_onnx(data: bytes) -> Runner:
    """Returns the function that an ONNX file computes, run by onnxruntime."""
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [port.name for port in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs)))


def graph_inputs(policy: Policy, steps: Recording) -> list[np.ndarray]:
    """The inputs of the graph for recorded steps, with the recorded state."""
    return [*steps.obs, *[steps.state] * bool(policy.memory)]


def expected_outputs(policy: Policy, steps: Recording) -> list[np.ndarray]:
    """The actions and the state that the policy itself answers to recorded steps."""
    act, after = predict_step(policy, policy.observer.layout.structure(steps.obs), steps.state)
    return [leaf.of(act) for leaf in leaves(policy.act_space)] + [after] * bool(policy.memory)


def check_graph(policy: Policy, run: Runner, steps: Recording, to: str) -> None:
    """Raises ExportError if `run` acts differently from the policy on recorded steps.

    All steps in one batch, then single ones, because a graph may have fixed the length of a batch,
    or the branch of its first row. A recurrent state is that of the policy, and the graph's own
    next state is compared as an output is.
    """
    tolerance, count = tolerances(policy, expected_outputs(policy, steps)), len(steps.first)
    compare_outputs(policy, run, steps, tolerance, to)
    for i in range(0, count, max(1, count // SINGLE_STEPS)):
        compare_outputs(policy, run, steps.part(i, i + 1), tolerance, to)


def tolerances(policy: Policy, wanted: Sequence[np.ndarray]) -> list[float]:
    """The largest difference allowed in each of the outputs `wanted`; 0 for choices.

    1e-5 of the largest number, or of the largest bound if actions are mapped to their bounds.
    Whole numbers of a Box may differ by 1 where rounding to the other neighbour is not rare.
    """
    spaces = [leaf.space for leaf in leaves(policy.act_space)] + [None] * bool(policy.memory)
    found = []
    for space, values in zip(spaces, wanted):
        bounds = [space.low, space.high] if isinstance(space, Box) and \
            policy.actions.bounds_map != "clip" else []
        largest = max(float(np.abs(x.astype("f8")).max(initial=0)) for x in [values, *bounds])
        if values.dtype.kind == "f":
            found.append(max(TOLERANCE, 2 * float(np.finfo(values.dtype).eps)) * largest)
        else:
            found.append(np.floor(TOLERANCE * largest + 0.99) if isinstance(space, Box) else 0.0)
    return found


def compare_outputs(policy: Policy, run: Runner, steps: Recording, tolerance: Sequence[float],
                    to: str) -> None:
    """Raises ExportError if the outputs of `run` for recorded steps are not the policy's."""
    with user_code(ExportError, f"a comparison of the graph for {to} with its policy, on a batch of"
                   f" {len(steps.first)},", FORWARD_ADVICE):
        for found, wanted, allowed in zip(run(graph_inputs(policy, steps)),
                                          expected_outputs(policy, steps), tolerance):
            assert_alike(found, wanted, allowed)


def assert_alike(found: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    """Raises AssertionError for another dtype or shape, and for numbers that differ by more."""
    np.testing.assert_equal((found.dtype, found.shape), (wanted.dtype, wanted.shape))
    np.testing.assert_allclose(found.astype("f8"), wanted.astype("f8"), 0, tolerance,
                               equal_nan=False)


def graph_metadata(policy: Policy, env_name: str | None) -> dict[str, Any]:
    """The description of a graph, which its file holds as JSON under the key `fastppo`.

    Inputs and outputs are in the order of TorchScript's arguments and results. `arrays` has the
    arrays of the spaces, as texts, because JSON has no infinity.
    """
    arrays: dict[str, Tensor] = {}
    spaces = {name: describe_space(getattr(policy, name), name, arrays)
              for name in ("obs_space", "act_space")}
    return {"version": __version__, "env_name": env_name, **spaces,
            "arrays": {name: x.numpy().astype(str).tolist() for name, x in arrays.items()},
            "inputs": [port._asdict() for port in inputs_of(policy)],
            "outputs": [port._asdict() for port in outputs_of(policy)]}
