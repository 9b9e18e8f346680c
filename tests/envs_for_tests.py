"""Tiny environments for tests, and a witness that plays a rollout again, step by step.

Each probe of learning has one lesson; its optimum and its values are known exactly. Workers import
this module by name.
"""

import copy
import itertools
from functools import partial
from typing import NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose
from fastppo.spaces.actions import ActionMapping
from fastppo.spaces.leaves import choice_counts, choice_starts, masked_space

ONE = Box(-1e3, 1e3, (1,), np.float32)


def parts_of(action):
    """The arrays of an action of any space."""
    if isinstance(action, (dict, tuple)):
        for part in action.values() if isinstance(action, dict) else action:
            yield from parts_of(part)
    else:
        yield action


class Chance(gym.Env):
    """Random observations of a space, random rewards, and ends of all kinds after random steps.

    Every answer depends on seed, step and action, which must be one of the space's.
    """

    def __init__(self, obs_space=ONE, act_space=None, ends=0.3):
        self.observation_space = copy.deepcopy(obs_space)
        self.action_space = Discrete(3) if act_space is None else act_space
        self.ends = ends

    def reset(self, *, seed=None, options=None):
        """The first observation of the episode that `seed` names."""
        super().reset(seed=seed)
        if not isinstance(self.observation_space, Box):
            self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self._obs(0.0), {}

    def step(self, action):
        """Draw everything; the action moves observation and reward a little."""
        assert self.action_space.contains(action), action
        push = float(np.tanh(sum(np.sum(part) for part in parts_of(action))))
        term, trunc = self.np_random.random(2) < self.ends
        return self._obs(push), self.np_random.normal() + push, bool(term), bool(trunc), {}

    def _obs(self, push):
        space, rng = self.observation_space, self.np_random
        if not isinstance(space, Box):
            return space.sample()
        if space.dtype == np.uint8:
            return rng.integers(0, 256, space.shape, np.uint8)
        if space.dtype == np.bool_:
            return rng.random(space.shape) < 0.5
        numbers = rng.normal(3.0, 2.0, space.shape) + push
        return np.asarray(abs(numbers) if space.dtype.kind == "u" else numbers, space.dtype)


class Fenced(gym.Wrapper):
    """Chance with random action masks, told by `how`: obs, method or info; breaking one is a fault.

    After an episode's last step nothing is legal, the info has no mask, and the method fails.
    `bend` makes the third mask of an episode something else; None: there is none.
    """

    def __init__(self, how="info", act_space=None, obs_space=ONE, ends=0.3, bend=None):
        super().__init__(Chance(obs_space, act_space, ends))
        self.how, self.bend, self.sizes = how, bend, choice_counts(self.action_space)
        if how == "method":
            self.action_masks = self._asked
        if how == "obs":
            self.observation_space = Dict(dict(masked_space(obs_space, self.action_space)))

    def reset(self, *, seed=None, options=None):
        """The first observation, with its mask."""
        self.masks = 0
        return self._told(*self.env.reset(seed=seed), over=False)

    def step(self, action):
        """As Chance's; the action must be legal."""
        assert self.legal[legal_places(self.action_space, action)].all(), f"{action} is illegal"
        obs, rew, term, trunc, info = self.env.step(action)
        obs, info = self._told(obs, info, term or trunc)
        return obs, rew, term, trunc, info

    def _told(self, obs, info, over):
        self.masks, self.over = self.masks + 1, over
        self.legal = np.concatenate([self.np_random.permutation(size) < self.np_random.integers(
            1, size + 1) for size in self.sizes])
        told = self.bend(self.legal) if self.bend and self.masks == 3 else self.legal
        self.told = np.zeros_like(self.legal) if over else told
        if self.how == "obs":
            obs = {**(obs if isinstance(obs, dict) else {"obs": obs}), "action_mask": self.told}
        if self.how == "info" and not over and told is not None:
            info["action_mask"] = np.asarray(told, np.int8)
        return obs, info

    def _asked(self):
        assert not self.over, "the episode is over"
        return self.told


def legal_places(space, action):
    """Where in a mask the flags of an action's choices stand."""
    sizes = choice_counts(space)
    first = np.cumsum(sizes) - sizes
    return first + np.reshape(np.asarray(action) - choice_starts(space), -1)


class Counting(gym.Env):
    """Observation: steps taken in this episode; +1 a step; `length` steps, then cut or ended."""

    observation_space = ONE
    action_space = Discrete(2)

    def __init__(self, length=5, truncated=True):
        self.length, self.truncated = length, truncated

    def reset(self, *, seed=None, options=None):
        """Count from 0."""
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        """Count one more."""
        self.steps += 1
        over = self.steps == self.length
        obs = np.full(1, self.steps, np.float32)
        return obs, 1.0, over and not self.truncated, over and self.truncated, {}


class Golden(Counting):
    """Episodes of three steps, the first of which shows 0 to 3, the second 4 to 7, and so on."""

    def __init__(self, truncated):
        super().__init__(3, truncated)
        self.number = -1

    def reset(self, *, seed=None, options=None):
        """From 0, then from 4, ..."""
        self.number += 1
        obs, info = super().reset(seed=seed)
        return obs + 4 * self.number, info

    def step(self, action):
        """One more."""
        obs, *rest = super().step(action)
        return obs + 4 * self.number, *rest


class Constant(Counting):
    """As Counting, but blind: the observation is always 0, so every state has one value."""

    def reset(self, *, seed=None, options=None):
        """Nothing to see."""
        obs, info = super().reset(seed=seed)
        return obs * 0, info

    def step(self, action):
        """Nothing to see."""
        obs, *rest = super().step(action)
        return obs * 0, *rest


class TwoStep(Counting):
    """Sees 0, then 1; one reward at the end of the second step, where it still sees 1."""

    def __init__(self):
        super().__init__(2, truncated=False)

    def step(self, action):
        """Nothing, then the reward."""
        _, _, term, *rest = super().step(action)
        return np.ones(1, np.float32), float(term), term, *rest


class OneStep(gym.Env):
    """One action, one reward, over: `reward(obs, action)`; obs is one of `sees`, by chance."""

    observation_space = ONE

    def __init__(self, reward, act_space=None, sees=(-1.0, 1.0)):
        self.reward, self.sees = reward, sees
        self.action_space = Discrete(2) if act_space is None else act_space

    def reset(self, *, seed=None, options=None):
        """One of the observations, by chance."""
        super().reset(seed=seed)
        self.obs = float(self.np_random.choice(self.sees))
        return np.full(1, self.obs, np.float32), {}

    def step(self, action):
        """The reward and the end, which looks as the beginning did."""
        obs = np.full(1, self.obs, np.float32)
        return obs, float(self.reward(self.obs, action)), True, False, {}


class Above(gym.Env):
    """Is a normal number x above 0.5? +1 if right, else 0; x is seen as scale * x + offset."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float64)
    action_space = Discrete(2)

    def __init__(self, scale=1.0, offset=0.0):
        self.scale, self.offset = scale, offset

    def reset(self, *, seed=None, options=None):
        """A number."""
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action):
        """Right or wrong, and the next number; one step in eight is the last."""
        right = float(action == (self.x[0] > 0.5))
        return self._look(), right, bool(self.np_random.random() < 1 / 8), False, {}

    def _look(self):
        self.x = self.np_random.normal(size=1)
        return self.scale * self.x + self.offset


class Record(NamedTuple):
    """What a Witness saw, as in a Rollout; `fin` and `total` are of the episodes that ended."""

    obs: np.ndarray  # [t+1 e ...]
    fin: np.ndarray  # [t e ...]
    raw: np.ndarray  # f64 [t e]
    term: np.ndarray  # [t e]
    trunc: np.ndarray  # [t e]
    total: np.ndarray  # f64 [t e]


class Witness:
    """The environments of a run again, each stepped alone through the actions of its rollouts."""

    def __init__(self, make, envs: int, seed: int):
        self.envs, self.seed = [make() for _ in range(envs)], seed
        self.episodes, self.totals = [0] * envs, [0.0] * envs
        self.obs = [self._reset(e) for e in range(envs)]

    def follow(self, act: np.ndarray) -> Record:
        """Play the stored actions [t e ...]."""
        steps, envs = act.shape[:2]
        shape, dtype = self.envs[0].observation_space.shape, np.asarray(self.obs[0]).dtype
        fin = np.zeros((steps, envs, *shape), dtype)
        raw, total = np.zeros((steps, envs)), np.full((steps, envs), np.nan)
        term, trunc = np.zeros((steps, envs), bool), np.zeros((steps, envs), bool)
        seen = [np.stack(self.obs)]
        for t in range(steps):
            for e, action in enumerate(ActionMapping(self.envs[0].action_space).to_env()(act[t])):
                obs, raw[t, e], term[t, e], trunc[t, e], _ = self.envs[e].step(action)
                self.totals[e] += raw[t, e]
                if term[t, e] or trunc[t, e]:
                    fin[t, e], total[t, e], self.totals[e] = obs, self.totals[e], 0.0
                    self.episodes[e] += 1
                    obs = self._reset(e)
                self.obs[e] = obs
            seen.append(np.stack(self.obs))
        return Record(np.stack(seen), fin, raw, term, trunc, total)

    def _reset(self, e: int):
        seed = kernels.episode_seed(self.seed, Purpose.ENV_SEED, e, self.episodes[e])
        return self.envs[e].reset(seed=seed)[0]


def interrupted(call, *numbers):
    """`call`, interrupted at its calls of those numbers: before it, or (minus) after it."""
    count = itertools.count(1)

    def wrapped(*args, **kwargs):
        number = next(count)
        if number in numbers:
            raise KeyboardInterrupt
        reply = call(*args, **kwargs)
        if -number in numbers:
            raise KeyboardInterrupt
        return reply
    return wrapped


CHANCE = partial(Chance, Box(-np.inf, np.inf, (2, 3), np.float32), Discrete(3, start=5), ends=0.2)
