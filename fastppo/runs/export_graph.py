"""A policy as a module of tensors alone, which can be traced and exported, and steps to check it.

    raw observation, one tensor per leaf (and state) -> action of the environment, one tensor per
                                                        leaf (and the next state)

The module calls the policy itself. Only the steps that the policy takes in numpy are written here
in torch: how an observation is stored, and how an action is mapped to the action space.
"""

import copy
import itertools
from typing import Any, Callable, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from fastppo.envs import faults
from fastppo.envs.make import Factory, make_envs, spaces_of
from fastppo.errors import EnvError, InputError, user_code
from fastppo.networks.torch_state import torch_threads
from fastppo.policy import Policy
from fastppo.spaces.actions import ActionMapping
from fastppo.spaces.leaves import MASK, leaves, tree_map
from fastppo.spaces.observations import ObservationLayout, StoredLeaf
from fastppo.spaces.tensor_actions import TensorFunction, tensor_to_env, torch_dtype

TENSOR_DTYPES = "?Bbhilqefd"  # that all formats have, as numpy's characters


class Port(NamedTuple):
    """An input or output of a graph; dtype and shape are of one row."""

    name: str
    dtype: str
    shape: list[int]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype} [{' '.join(map(str, ['batch', *self.shape]))}]"


class Graph(nn.Module):
    """The deterministic actions [b ...] of the environment for raw observations [b ...].

    Inputs and outputs are tensors in the order of `inputs_of` and `outputs_of`; a single output is
    not in a tuple.
    """

    def __init__(self, policy: Policy):
        super().__init__()
        self.policy, self.to_env = policy, env_action_function(policy.actions)
        self.store = [storage_function(column) for column in policy.observer.layout.leaves]

    def forward(self, *inputs: Tensor) -> Any:
        """Stores the observations as training does, then calls the policy."""
        policy = self.policy
        obs = policy.observer.layout.structure([store(x) for store, x in zip(self.store, inputs)])
        # A policy without memory ignores the state; an empty one would be a node of the graph.
        params, _, state = policy.step(obs, inputs[-1])
        outputs = self.to_env(policy.head.mode(params)) + [state] * bool(policy.memory)
        return tuple(outputs) if len(outputs) > 1 else outputs[0]


def inputs_of(policy: Policy) -> list[Port]:
    """The inputs of a policy's graph: `obs`, or of a structure `obs.camera`, `obs.0`, ...

    An action mask is `action_mask`. With memory the last one is `state`, 0 when an episode begins.
    """
    seen = policy.observer.layout
    ports = [Port(MASK if i == seen.mask else leaf_name("obs", column.leaf.path[seen.wrapped:]),
                  input_dtype(column), list(column.shape)) for i, column in enumerate(seen.leaves)]
    return ports + [Port("state", "float32", [policy.memory])] * bool(policy.memory)


def outputs_of(policy: Policy) -> list[Port]:
    """The outputs of a policy's graph: `action`, or of a structure `action.go`, `action.0`, ...

    With memory the last one is `next_state`, the `state` of the next step.
    """
    ports = [Port(leaf_name("action", leaf.path), leaf.space.dtype.name, list(leaf.space.shape))
             for leaf in leaves(policy.act_space)]
    return ports + [Port("next_state", "float32", [policy.memory])] * bool(policy.memory)


def leaf_name(whole: str, path: tuple) -> str:
    """The name of a leaf: obs.camera for obs["camera"], obs.0 for obs[0]."""
    return ".".join([whole, *map(str, path)])


def input_dtype(column: StoredLeaf) -> str:
    """The dtype of an input: the space's own, or a wider one if no tensor has it."""
    own = column.leaf.space.dtype
    if own.char in TENSOR_DTYPES:
        return own.name
    return "float32" if column.counts is None else "int64"


def storage_function(column: StoredLeaf) -> TensorFunction:
    """The function from raw observations of a leaf [b ...] to stored ones, in torch."""
    dtype = torch_dtype(column.dtype)
    if column.counts is None or not column.start.any():
        return lambda x: x.to(dtype)
    start = torch.from_numpy(column.start.copy())
    return lambda x: (x.long() - start).to(dtype)


def env_action_function(actions: ActionMapping) -> Callable[[Tensor], list[Tensor]]:
    """The function from stored actions [b ...] to those of the environment, in torch."""
    spaces = [leaf.space for leaf in leaves(actions.space)]
    functions = [tensor_to_env(space, actions.bounds_map) for space in spaces]
    widths = [int(np.prod(space.shape)) for space in spaces]

    def to_env(act: Tensor) -> list[Tensor]:
        flat = act.reshape(act.shape[0], sum(widths))
        return [function(part) for function, part in zip(functions, flat.split(widths, -1))]
    return to_env


STEPS = 300
SAMPLE_LIMIT = 6e4  # samples are clipped to this, because those without bounds may overflow
EPISODE_LENGTH = 10  # steps of an episode of samples


class Recording(NamedTuple):
    """n steps of one environment in time order, as inputs of a graph."""

    obs: list[np.ndarray]  # raw observations, one array [n ...] per leaf
    first: np.ndarray  # bool [n], true for the first step of an episode
    state: np.ndarray  # f32 [n s], the recurrent state before the step

    def part(self, first: int, last: int) -> "Recording":
        """Steps `first` to `last` - 1."""
        return Recording([x[first:last] for x in self.obs], self.first[first:last],
                         self.state[first:last])


def play_episodes(policy: Policy, make: Factory, steps: int = STEPS) -> Recording:
    """`steps` steps of the policy in a new environment, episode after episode.

    Frames are stacked as in the policy's space. Raises EnvError if the environment fails,
    InputError if its spaces are not those of the policy.
    """
    make.masked = policy.observer.layout.mask is not None
    env, = make_envs([make])
    try:
        if (count := stacked_frames(policy, env)) > 1:
            faults.close_all([env])
            make.stack = count
            env, = make_envs([make])
        if spaces_of(env) != (policy.obs_space, policy.act_space):
            raise InputError(f"the environment has the spaces {spaces_of(env)}, the policy"
                             f" {(policy.obs_space, policy.act_space)}",
                             "give the environment it was trained on, preprocessed as it was there")

        def step(act: Any) -> tuple[Any, bool]:
            obs, _, term, trunc, _ = env.step(act)
            return obs, term or trunc
        return record(policy, lambda seed: env.reset(seed=seed)[0], step, steps)
    finally:
        faults.close_all([env])


def stacked_frames(policy: Policy, env: gym.Env) -> int:
    """The number of observations of `env` that may be stacked in one of the policy's.

    Raises SpaceError for a space without support.
    """
    layouts = policy.observer.layout, ObservationLayout(*spaces_of(env))
    ours, theirs = (leaves(layout.network_space)[0].space.shape for layout in layouts)
    return ours[0] if ours and ours[1:] == theirs else 1


def sample_episodes(policy: Policy, steps: int = STEPS) -> Recording:
    """Samples of the policy's observation space, always the same, in episodes of 10 steps."""
    layout, space = policy.observer.layout, copy.deepcopy(policy.obs_space)
    ends = itertools.cycle([False] * (EPISODE_LENGTH - 1) + [True])
    space.seed(0)

    def sample(_: Any) -> Any:
        obs = tree_map(lambda x: np.clip(x, -SAMPLE_LIMIT, SAMPLE_LIMIT)
                       if np.asarray(x).dtype.kind == "f" else x, space.sample())
        masked = layout.unusable(layout.rows([obs]))
        return {**obs, MASK: np.ones_like(obs[MASK])} if masked else obs
    return record(policy, sample, lambda act: (sample(act), next(ends)), steps)


def record(policy: Policy, reset: Callable[[int], Any], step: Callable[[Any], tuple[Any, bool]],
           steps: int) -> Recording:
    """`steps` steps of the policy; EnvError if `reset` or `step` fails.

    `reset(seed)` is the first observation of an episode, `step(action)` (the next, True if it is
    the last).
    """
    ports, columns = inputs_of(policy), policy.observer.layout.leaves
    rows, first, states, over = [], [], [], True
    with user_code(EnvError, "an environment", "play it alone until that works"), torch_threads(1):
        for seed in range(steps):
            first.append(over)
            if over:
                obs, state = reset(seed), np.zeros((1, policy.memory), np.float32)
            rows.append([np.array(column.leaf.of(obs), port.dtype)
                         for column, port in zip(columns, ports)])
            states.append(state)
            act, state = predict_step(policy, obs, state)
            obs, over = step(act)
    return Recording([np.stack(leaf) for leaf in zip(*rows)], np.array(first, bool),
                     np.concatenate(states))


def predict_step(policy: Policy, obs: Any, state: np.ndarray) -> tuple[Any, np.ndarray]:
    """(action, next state) of `predict`, for a policy with memory or without."""
    return policy.predict(obs, state=state) if policy.memory else (policy.predict(obs), state)
