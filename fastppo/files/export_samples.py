"""Steps on which a graph is compared with its policy: played in an environment, or samples."""

import copy
import itertools
from typing import Any, Callable, NamedTuple

import gymnasium as gym
import numpy as np

from fastppo.envs import faults
from fastppo.envs.make import Factory, make_envs, spaces_of
from fastppo.errors import EnvError, InputError, user_code
from fastppo.files.export_graph import inputs_of
from fastppo.networks.torch_state import torch_threads
from fastppo.policy import Policy
from fastppo.spaces.leaves import MASK, leaves, tree_map
from fastppo.spaces.observations import ObservationLayout

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
