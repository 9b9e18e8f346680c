"""compiled_env: a Gymnasium environment from a record of memory and three functions.

    reset      state, rng, options ->                              in a state of zeros
    step       state, action, rng  -> reward, terminated
    observe    state               -> obs                          over zeros

The Python functions are the definition. Where Numba is installed, its machine code of them runs.
"""

import functools
import logging
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from fastppo.compiled_envs.rows import EPISODE, LENGTH, STREAM, RowLayout
from fastppo.envs.wrappers import UNLIMITED
from fastppo.errors import ConfigError, user_code
from fastppo.machine import kernels

log = logging.getLogger("fastppo")
FUNCTIONS = "reset", "step", "observe"
ATTRIBUTES = {*FUNCTIONS, "observation_space", "action_space", "state", "max_episode_steps",
              "options", "render", "render_fps"}
EPISODE_SEEDS = 2**31  # of training
MACHINE_CODES: dict[type, Any] = {}  # by class of environments


class CompiledEnv(gym.Env):
    """A Gymnasium environment of one row; the classes that compiled_env makes are subclasses.

    Keyword arguments are options of all its resets, in place of the class's own.
    """

    definition: type
    layout: RowLayout

    def __init__(self, render_mode: str | None = None, **options: Any):
        layout, self.render_mode = self.layout, render_mode
        self.options = getattr(self.definition, "options", {}) | options
        self.max_episode_steps = getattr(self.definition, "max_episode_steps", None)
        self.limit = self.max_episode_steps or UNLIMITED
        self.obs = np.zeros((1, *layout.obs_shape), layout.obs)
        self.action, self.reward = np.zeros(layout.act_shape, layout.act), np.zeros(1)
        self.code = Interpreted(self.definition)
        self.use(np.zeros(layout.row.itemsize, np.uint8))
        self.code = code_of(self)
        self.use(self.memory)

    def use(self, memory: np.ndarray) -> None:
        """Makes memory u1 [bytes] the row."""
        self.memory, self.row = memory, memory.view(self.layout.row)[0]
        self.numbers = memory[:EPISODE.itemsize].view("i8")  # those of the episode
        self.rng = memory[:STREAM.itemsize].view(STREAM)[0]
        self.code.use(self)
        self.set_options({})

    def set_options(self, given: dict[str, Any]) -> None:
        """Makes the next resets have these options in place of the environment's own."""
        given = self.options | given
        if unknown := given.keys() - {*self.layout.options.names}:
            raise ConfigError(f"{type(self).__name__} has no option {min(unknown)!r}",
                              f"its options are {', '.join(self.layout.options.names[1:])}")
        for name, value in given.items():
            self.row.options[name] = value

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins an episode, a function of the seed, the options and the actions."""
        super().reset(seed=seed)
        row, layout = self.row, self.layout
        self.rng.seed = self.np_random.integers(EPISODE_SEEDS) if seed is None else seed
        self.rng.draws, row.length = 0, 0
        self.memory[layout.state_at:layout.state_at + layout.state.itemsize] = 0
        self.set_options(options or {})
        self.code.reset(self)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Takes a step."""
        self.action[...] = action
        if not (isinstance(self.action_space, Box) or self.action_space.contains(self.action[()])):
            raise ValueError(f"the action {action!r} is not in {self.action_space}")
        reward, terminated = self.code.step(self)
        self.numbers[LENGTH] = length = int(self.numbers[LENGTH]) + 1
        return self.observe(), reward, terminated, length >= self.limit, {}

    def observe(self) -> Any:
        """The observation, a new array or dict of arrays."""
        self.obs.fill(0)
        self.code.observe(self)
        return self.layout.given(self.obs[0])

    def render(self) -> Any:
        """What the class's function render(state) returns, such as a picture u1 [h w 3]."""
        return self.definition.render(self.row.state)

    @classmethod
    def env(cls, **options: Any) -> "CompiledEnv":
        """An environment."""
        return cls(**options)

    @classmethod
    def vector(cls, num_envs: int, **options: Any) -> VectorEnv:
        """A VectorEnv of `num_envs` environments, which are reset in the step that ends them."""
        make = functools.partial(cls, **options)
        if isinstance(make().code, Interpreted):
            return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        from fastppo.compiled_envs.vector import CompiledVector
        return CompiledVector(cls, num_envs, options)

    @classmethod
    def check(cls, steps: int = 1_000, seed: int = 0, **options: Any) -> None:
        """Compares Python and machine code in random steps; see compiled_envs/check.py."""
        from fastppo.compiled_envs.check import check_machine_code
        python = cls(**options)
        python.code = Interpreted(cls.definition)
        check_machine_code(python, cls(**options), steps, seed)


class Interpreted:
    """The functions of a class as Python runs them."""

    def __init__(self, definition: type):
        self.user = definition

    def use(self, env: CompiledEnv) -> None:
        """Gets an environment with another row."""

    def reset(self, env: CompiledEnv) -> None:
        """Begins an episode in a state of zeros."""
        self.user.reset(env.row.state, env.rng, env.row.options)

    def step(self, env: CompiledEnv) -> tuple[float, bool]:
        """(reward, terminated) of a step with env.action."""
        reward, terminated = self.user.step(env.row.state, env.action[()], env.rng)
        return float(reward), bool(terminated)

    def observe(self, env: CompiledEnv) -> None:
        """Fills env.obs, which is zeros."""
        if self.user.observe(env.row.state, env.obs[0]) is not None:
            raise ValueError("observe must write into obs, and return nothing")


def code_of(env: CompiledEnv) -> Any:
    """The machine code of the class of `env`, or its Interpreted code without Numba.

    It has the methods of Interpreted, and the `functions` of csrc/envs/rows.h. Python runs each
    function once before: it says best what is wrong with one.
    """
    kind, python = type(env), env.code
    if kind in MACHINE_CODES:
        return MACHINE_CODES[kind]
    try:
        import numba
    except ImportError as error:
        log.warning("%s runs as Python, which is slow: %s\n  fix: pip install numba",
                    kind.__name__, error)
        return python
    if numba.config.DISABLE_JIT or not kernels.COMPILED:
        return python
    from fastppo.compiled_envs.machine_code import MachineCode, from_library
    from fastppo.envs.source import random_actions
    if not any(from_library(getattr(python.user, name)) for name in FUNCTIONS):
        with user_code(ConfigError, f"the first step of {kind.__name__}, taken in Python,", ""):
            obs, _ = env.reset(seed=0)
            env.step(random_actions(env, 0)(obs))
    return MACHINE_CODES.setdefault(kind, MachineCode(kind, python))


def compiled_env(definition: type) -> type[CompiledEnv]:
    """The class of environments that a class without instances defines.

        observation_space    a Box, MultiBinary or MultiDiscrete, or a Dict of these; with the key
                             "action_mask" for legal actions
        action_space         a Box, Discrete, MultiDiscrete or MultiBinary
        state                the dtype of the state: [(name, dtype), (name, dtype, shape), ...]
        max_episode_steps    steps after which an episode is truncated; without it none is
        options              numbers or arrays by name, which a reset may be given others of

        reset(state, rng, options)     begins an episode; all fields of the state are 0 before
        step(state, action, rng)       changes the state and returns (reward, terminated)
        observe(state, obs)            writes the observation into an array of zeros, or into the
                                       arrays obs.key of a Dict
        render(state)                  returns a picture, u1 [h w 3]; may be missing

    The functions are compiled by Numba, or are C functions that ctypes has loaded, see
    docs/compiled_environments.md. rng has random, uniform, integers and normal of
    fastppo.compiled_envs.rows. Raises SpaceError or ConfigError for what a row cannot
    hold, and ConfigError when the first environment is made, if Numba cannot compile a function.
    """
    if missing := [name for name in FUNCTIONS if not hasattr(definition, name)]:
        raise ConfigError(f"{definition.__name__} has no function {missing[0]}")
    if unknown := [name for name in dir(definition) if name[0] != "_" and name not in ATTRIBUTES]:
        raise ConfigError(f"{definition.__name__} has {unknown[0]!r}, which no function could see:"
                          " they have no self", "write it above the class")
    modes = ["rgb_array"] * hasattr(definition, "render")
    body = {name: getattr(definition, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type(definition.__name__, (CompiledEnv,), body | {
        "definition": definition, "layout": RowLayout(definition),
        "observation_space": definition.observation_space, "action_space": definition.action_space,
        "metadata": {"render_modes": modes, "render_fps": getattr(definition, "render_fps", 30)}})
