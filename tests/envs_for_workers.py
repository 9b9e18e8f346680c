"""Environments that tests make in workers, which import this module by name, and so no torch."""

import copy
import gc
import threading
import time

import gymnasium as gym
import numpy as np
from envs_for_tests import Chance
from fault_envs import Calm
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from spaces_for_tests import OBS


class Script(gym.Env):
    """Observation: (episode, step); reward: the step; `length` steps, then `term` or truncated."""

    observation_space = Box(0, 99, (2,), np.float64)
    action_space = Discrete(2)

    def __init__(self, length=2, term=True, talks=True):
        self.length, self.term, self.talks, self.episode = length, term, talks, -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.count, self.options = self.episode + 1, 0, options
        return np.array([self.episode, 0.0]), {"began": self.episode} if self.talks else {}

    def step(self, action):
        self.count += 1
        over = self.count == self.length
        info = {"part": {"at": self.count}, "word": "x" * self.count}
        return (np.array([self.episode, self.count], float), self.count, over and self.term,
                over and not self.term, info if self.talks else {})


class Sampled(gym.Env):
    """Observations drawn from any space; actions must be of theirs; `length` steps."""

    def __init__(self, obs_space, act_space=None, length=3):
        self.observation_space = copy.deepcopy(obs_space)  # has its own generator
        self.action_space = Discrete(2) if act_space is None else act_space
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.count += 1
        self.last = action
        return self.observation_space.sample(), 1.5, self.count == self.length, False, {}


class Locked(Script):
    """Can be asked for what no pickle takes."""

    def lock(self):
        return threading.Lock()


class Talker(Script):
    """Says `tells(step)` at every step."""

    def __init__(self, tells):
        super().__init__(99)
        self.tells = tells

    def step(self, action):
        return *super().step(action)[:4], self.tells(self.count)


def large(step):
    """Many pages, in some steps only, and not the same for all."""
    return {} if step % 2 else {"field": np.arange(step << 14)}


def with_lock(step):
    """Something no pickle takes, at the third step."""
    return {"lock": threading.Lock()} if step == 3 else {}


class Slow(Script):
    """Takes its time to say its name."""

    def name(self):
        time.sleep(0.3)
        return "slow"


class Held(Script):
    """Its step, reset and `name` wait until `file` exists, if it has one."""

    def __init__(self):
        super().__init__(9)
        self.file = None

    def _hold(self):
        while self.file is not None and not self.file.exists():
            time.sleep(0.005)

    def reset(self, **kwargs):
        self._hold()
        return super().reset(**kwargs)

    def step(self, action):
        self._hold()
        return super().step(action)

    def name(self):
        self._hold()
        return "held"


class Shown(Script):
    """Draws its episode, its step and its length as shades of grey."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 1000}

    def __init__(self, length=3, render_mode="rgb_array"):
        super().__init__(length)
        self.render_mode = render_mode

    def render(self):
        shades = np.repeat(np.array([self.episode, self.count, self.length], np.uint8), 4)
        return np.repeat(20 * shades.reshape(3, 4, 1), 3, axis=2)


class Telling(Calm):
    """Ends after 3 to 8 steps, and then says how: some of it each time, some only sometimes."""

    def __init__(self, silent=False):
        super().__init__()
        self.silent = silent

    def reset(self, **kwargs):
        obs, _ = super().reset(**kwargs)
        self.length = int(self.np_random.integers(3, 9))
        return obs, {"at reset": 1.0}

    def step(self, action):
        obs, rew, term, trunc, _ = super().step(action)
        names = self.np_random.permutation(60)[:3]
        if not (term or trunc) or self.silent:
            return obs, rew, term, trunc, {} if self.silent else {"midway": 1.0}
        told = {"steps": self.steps, "success": bool(rew), "words": "none", "nan": np.nan}
        return obs, rew, term, trunc, told | {f"n{i}": np.float32(i / 3) for i in names}


class OneInfo(Calm):
    """Keeps one info, which it updates in place."""

    def __init__(self):
        super().__init__()
        self.info = {"steps": 0, "deep": {"steps": np.zeros(1)}}

    def reset(self, **kwargs):
        obs, _ = super().reset(**kwargs)
        self.info["steps"] = self.info["deep"]["steps"][0] = 0
        return obs, self.info

    def step(self, action):
        *reply, _ = super().step(action)
        self.info["steps"] = self.info["deep"]["steps"][0] = self.steps
        return *reply, self.info


class Shared(gym.Env):
    """Draws its rewards from whatever it is told to."""

    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def __init__(self, draw):
        self.draw = draw

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), float(self.draw(self)), False, False, {}


class Late(Shared):
    """Draws in step 20 of its episodes for the first time, and ends after `length` steps."""

    def __init__(self, length):
        super().__init__(lambda env: np.random.rand() if env.count == 20 else 0.0)
        self.length, self.count = length, 0

    def reset(self, *, seed=None, options=None):
        self.count = 0
        return super().reset(seed=seed)

    def step(self, action):
        self.count += 1
        obs, rew, *_ = super().step(action)
        return obs, rew, self.count == self.length, False, {}


class Bent(Chance):
    """Changes its third observation, of a number and an array, by `bend`."""

    def __init__(self, bend):
        super().__init__(OBS["tuple"], ends=0.0)
        self.bend, self.steps = bend, 0

    def step(self, action):
        """Bend the third."""
        obs, *rest = super().step(action)
        self.steps += 1
        return (self.bend(obs) if self.steps == 3 else obs), *rest


class Numbers(Chance):
    """Its mask comes as a Box of numbers."""

    def __init__(self, dtype):
        mask = Box(0, 1, (3,), dtype)
        super().__init__(Dict(seen=Box(-1, 1, (2,)), action_mask=mask), Discrete(3))

    def _obs(self, push):
        self.legal = self.np_random.permutation([0, 1, 1])
        return super()._obs(push) | {"action_mask": self.legal.astype(
            self.observation_space["action_mask"].dtype)}

    def step(self, action):
        """Only what is legal."""
        assert self.legal[action]
        return super().step(action)


class Forbidding(Chance):
    """Half of the actions are forbidden, others at every step."""

    def __init__(self):
        super().__init__(Dict(seen=Box(-3, 3, (3,)), action_mask=MultiBinary(4)), Discrete(4))

    def _obs(self, push):
        obs = super()._obs(push)
        return obs | {"action_mask": self.np_random.permutation([0, 0, 1, 1]).astype(np.int8)}

    def step(self, action):
        """Only what is legal."""
        assert self.legal[action]
        obs, *rest = super().step(action)
        self.legal = obs["action_mask"]
        return obs, *rest

    def reset(self, **given):
        """Note what is legal."""
        obs, info = super().reset(**given)
        self.legal = obs["action_mask"]
        return obs, info


class Counted(Calm):
    """Pays the number of objects that Python's search for garbage no longer looks at."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float(gc.get_freeze_count()), *rest
