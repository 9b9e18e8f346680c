"""Steps on which a graph is compared with its policy: played in an environment, or samples."""

import copy
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from fastppo.envs import faults
from fastppo.envs.make import Factory, make_envs, spaces_of
from fastppo.errors import Error, InputError
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
        return record(policy, env, steps)
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
    return record(policy, SampleEnv(policy), steps)


def record(policy: Policy, env: gym.Env, steps: int) -> Recording:
    """`steps` steps of the policy in `env`; EnvError if the environment fails."""
    ports, columns = inputs_of(policy), policy.observer.layout.leaves
    rows, first, states, over = [], [], [], True
    try:
        with torch_threads(1):
            for step in range(steps):
                first.append(over)
                if over:
                    obs, state = env.reset(seed=step)[0], np.zeros((1, policy.memory), np.float32)
                rows.append([np.array(column.leaf.of(obs), port.dtype)
                             for column, port in zip(columns, ports)])
                states.append(state)
                act, state = predict_step(policy, obs, state)
                obs, _, term, trunc, _ = env.step(act)
                over = term or trunc
    except (Error, KeyboardInterrupt):
        raise
    except BaseException as error:  # a user's environment may raise anything
        raise faults.env_error("an environment", f"step {len(rows)}", error,
                               "play it alone until that works") from error
    return Recording([np.stack(leaf) for leaf in zip(*rows)], np.array(first, bool),
                     np.concatenate(states))


def predict_step(policy: Policy, obs: Any, state: np.ndarray) -> tuple[Any, np.ndarray]:
    """(action, next state) of `predict`, for a policy with memory or without."""
    return policy.predict(obs, state=state) if policy.memory else (policy.predict(obs), state)


class SampleEnv(gym.Env):
    """An environment whose observations are samples of a policy's observation space."""

    def __init__(self, policy: Policy):
        self.layout, self.steps = policy.observer.layout, 0
        self.observation_space = copy.deepcopy(policy.obs_space)
        self.observation_space.seed(0)

    def reset(self, *, seed=None, options=None):
        """The next sample."""
        return self._obs(), {}

    def step(self, action):
        """The next sample; the action has no effect."""
        self.steps += 1
        return self._obs(), 0.0, False, self.steps % EPISODE_LENGTH == 0, {}

    def _obs(self) -> Any:
        obs = tree_map(_near, self.observation_space.sample())
        if self.layout.unusable(self.layout.rows([obs])):
            obs = {**obs, MASK: np.ones_like(obs[MASK])}
        return obs


def _near(x: Any) -> Any:
    return np.clip(x, -SAMPLE_LIMIT, SAMPLE_LIMIT) if np.asarray(x).dtype.kind == "f" else x
