"""make_vec: a gymnasium VectorEnv over our own workers, for whoever wants the environments alone.

    step_async: actions -> arena, a word to the workers      step_wait: what they answered

Call order, spaces, seeds, autoreset modes, masks and infos are Gymnasium's (vector_env.py, 1.4).
"""

import inspect
import operator
import weakref
from functools import partial
from typing import Any, Sequence

import numpy as np
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    InvalidAction,
    NoAsyncCallError,
    ResetNeeded,
)
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from fastppo.config import Config, default_of
from fastppo.envs.source import EnvSource, check_agreement
from fastppo.envs.spaces import build_structure, leaves
from fastppo.errors import ConfigError, EnvError
from fastppo.machine.arena import Arena, Spec, largest_fitting, spec_bytes
from fastppo.settings.aliases import nearest_setting
from fastppo.workers.count import pays, worker_count
from fastppo.workers.vector_messages import LocalBackend, WorkerBackend, messages_spec
from fastppo.workers.vector_stepper import (
    StepInfos,
    VectorSpec,
    VectorStepper,
    arrays_of,
    elements,
    views,
)


def make_vec(env: Any = None, num_envs: int | None = None, num_workers: int | str | None = None,
             seed: int | None = None, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
             copy: bool = True, max_episode_steps: int | None = None,
             env_kwargs: dict | None = None,
             step_timeout: float = default_of("step_timeout"),
             reset_timeout: float = default_of("reset_timeout"), **unknown) -> "SharedVectorEnv":
    """A gymnasium VectorEnv of `env`: an id, class or callable, or a list of callables.

    `num_workers`: processes that step (default: one a core; 0: this one; "auto": measured, for a
    million steps). `copy=False` returns the
    same observation arrays at every step. With `seed`, episode k of environment i is always the
    same one, as in training; without, `reset(seed=...)` seeds as Gymnasium does. Timeouts are in
    seconds. Raises fastppo.Error for what cannot be.
    """
    _check_call(env, unknown)
    if num_envs is None:
        num_envs = len(env) if isinstance(env, (list, tuple)) else 1
    settings = {"num_envs": num_envs, "num_workers": num_workers, "seed": seed,
                "max_episode_steps": max_episode_steps, "env_kwargs": env_kwargs,
                "step_timeout": step_timeout, "reset_timeout": reset_timeout}
    check_agreement(env, settings)
    config = Config(preset="none", num_minibatches=1, num_steps=1, acting="local", **settings)
    source = EnvSource(env, config, show_masks=False)
    plan = VectorSpec(source.obs_space, source.act_space, _mode(autoreset_mode), seed)
    workers = worker_count(num_workers, num_envs, partial(pays, source.step_seconds, source.config))
    arena = _arena(plan, num_envs, workers)
    crew = (WorkerBackend(source.factories, plan, arena, workers, step_timeout, reset_timeout) if workers
            else LocalBackend(VectorStepper(source.factories, plan, arena)))
    return SharedVectorEnv(crew, plan, arena, source.metadata, copy)


def _check_call(env: Any, unknown: dict[str, Any]) -> None:
    """Raise ConfigError for keyword arguments make_vec does not have, and for no environment."""
    if env is None:
        name = unknown.get("env_name", "CartPole-v1")
        raise ConfigError("make_vec was given no environment, which stands first",
                          f'make_vec("{name}")' if isinstance(name, str) else "make_vec(MyEnv)")
    for name in unknown:
        known = inspect.signature(make_vec).parameters
        raise ConfigError(f"make_vec knows no {name!r}, only {', '.join([*known][:-1])}",
                          nearest_setting(name, known))
    if isinstance(env, VectorEnv):
        raise ConfigError("this is a VectorEnv already", "use it as it is")


def _arena(plan: VectorSpec, envs: int, workers: int) -> Arena:
    def spec(envs: int) -> Spec:
        return {**arrays_of(plan, envs), **(messages_spec(workers) if workers else {})}

    def remedy(free: int) -> str:
        fit = largest_fitting(lambda n: spec_bytes(spec(n)), free, envs)
        return f"num_envs={fit}" if fit else "free memory"
    return Arena(spec(envs), remedy=remedy)


def _mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        known = "gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED"
        raise ConfigError(f"there is no autoreset mode {mode!r}", known) from error


class SharedVectorEnv(VectorEnv):
    """Gymnasium's vector environment over shared memory; made by make_vec.

    Call order, autoreset modes, infos and masks are Gymnasium's. A fault of an environment is one
    fastppo.Error and closes the rest. With workers, a step or call that was interrupted can be
    waited for again; without, every environment must then be reset.
    """

    def __init__(self, crew: LocalBackend | WorkerBackend, plan: VectorSpec, arena: Arena, metadata: dict, copy: bool):
        self.crew, self.plan, self.copy = crew, plan, copy
        self.num_envs = len(arena["rew"])
        self.metadata = {**metadata, "autoreset_mode": plan.mode}
        self.single_observation_space, self.single_action_space = plan[:2]
        self.observation_space, self.action_space = (batch_space(space, self.num_envs)
                                                     for space in plan[:2])
        self._obs, self._fin, self._act = (views(arena, name) for name in ("obs", "fin", "act"))
        self._rew, self._term, self._trunc = (arena[name] for name in ("rew", "term", "trunc"))
        self._obs_leaves, self._act_leaves = (leaves(space) for space in plan[:2])
        self._waiting = np.ones(self.num_envs, bool)  # who must be reset before the next step
        self._pending = False
        self._end = weakref.finalize(self, _shut, crew, arena)

    def reset(self, *, seed: int | Sequence[int | None] | None = None,
              options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin new episodes, in all environments or in those of `options["reset_mask"]`."""
        self._idle("reset")
        seeds = self._seeds(seed)
        mask, options = self._masked(options)
        self._waiting |= mask
        told = self._ask("reset", [(seeds[a:b], mask[a:b].tolist(), options)
                                   for a, b in self.crew.slices])
        self._waiting &= ~mask
        infos = {}
        for part in told:
            for e, (_, info) in (part or {}).items():
                infos = self._add_info(infos, info, e)
        return self._observed(), infos

    def step(self, actions) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """(observations, rewards f64 [e], terminations [e], truncations [e], infos) of one step."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions) -> None:
        """Begin a step with a batch of actions, an element of `action_space`."""
        self._idle("step")
        if self._waiting.any():
            raise ResetNeeded(f"environment {self._waiting.argmax()} cannot step before a reset():"
                              " of all of them, or of some by options={'reset_mask': ...}")
        self._put(actions)
        self.crew.post()
        self._pending = True

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Wait for the step that step_async began."""
        self._open()
        if not self._pending:
            raise NoAsyncCallError("step_wait() without a step_async() before it", "step")
        told = self._guarded(self.crew.wait)
        self._pending = False
        if self.plan.mode is AutoresetMode.DISABLED:
            np.logical_or(self._term, self._trunc, out=self._waiting)
        return (self._observed(), self._rew.copy(), self._term.copy(), self._trunc.copy(),
                self._merged(told))

    def call(self, name: str, *args, **kwargs) -> tuple:
        """What the attribute `name` of every environment is or, where it can be called, returns."""
        self._idle(name)
        if name in ("reset", "step", "close"):
            raise ConfigError(f"{name!r} cannot be called on single environments",
                              f"use the vector environment's own {name}()")
        return self._replies("call", [(name, args, kwargs)] * len(self.crew.slices))

    def get_attr(self, name: str) -> tuple:
        """The attribute `name` of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every environment: to one value, or to a list or tuple of each's."""
        self._idle(name)
        each = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ConfigError(f"{len(each)} values for {self.num_envs} environments",
                              "a value for each of them, or one that is no list or tuple")
        self._replies("set", [(name, each[a:b]) for a, b in self.crew.slices])

    def close_extras(self, **kwargs) -> None:
        """Stop the workers; always returns."""
        self._end()

    def __enter__(self) -> "SharedVectorEnv":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def np_random_seed(self) -> tuple:
        """The seeds of the environments' generators."""
        return self.get_attr("np_random_seed")

    @property
    def np_random(self) -> tuple:
        """The environments' generators; copies, where they are in workers."""
        return self.get_attr("np_random")

    def _open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("this vector environment has been closed: make a new one")

    def _idle(self, name: str) -> None:
        self._open()
        if self._pending:
            raise AlreadyPendingCallError(f"{name} while a step is under way: step_wait() first",
                                          "step")

    def _ask(self, method: str, letters: list[tuple]) -> list:
        return self._guarded(partial(self.crew.ask, method, letters))

    def _replies(self, method: str, letters: list[tuple]) -> tuple:
        results = []
        for part, error in self._ask(method, letters):
            if error:
                raise EnvError(error, "the environments are as that left them: reset() or close()")
            results += part
        return tuple(results)

    def _guarded(self, call):
        try:
            return call()
        except EnvError:
            self.close()
            raise
        except BaseException:  # an interrupt
            if not self.crew.resumable:
                self._pending = False
                self._waiting[:] = True
            raise

    def _seeds(self, seed) -> list:
        try:
            each = seed if np.ndim(seed) else [seed if seed is None else operator.index(seed) + e
                                               for e in range(self.num_envs)]
            seeds = [None if one is None else operator.index(one) for one in each]
        except (TypeError, ValueError):  # none of them, or no whole numbers
            seeds = []
        if len(seeds) != self.num_envs or any(one is not None and one < 0 for one in seeds):
            raise ConfigError(f"the seed {seed!r} does not fit {self.num_envs} environments",
                              "one whole number, 0 or more, or a list with one or None for each")
        return seeds

    def _masked(self, options: dict | None) -> tuple[np.ndarray, dict | None]:
        """Who is to be reset, and the options without that."""
        if options is None or "reset_mask" not in options:
            return np.ones(self.num_envs, bool), options
        rest = dict(options)
        mask, wanted = rest.pop("reset_mask"), f"a numpy array of {self.num_envs} booleans"
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise TypeError(f"options['reset_mask'] is {mask!r}, but must be {wanted}")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ConfigError(f"options['reset_mask'] is {mask!r}", f"{wanted}, one of them True")
        return mask, rest

    def _put(self, actions) -> None:
        try:
            for leaf, rows in zip(self._act_leaves, self._act):
                value = np.asarray(leaf.of(actions))
                if value.shape != rows.shape:
                    raise ValueError(f"shape {value.shape}, wanted {rows.shape}")
                np.copyto(rows, value, casting="same_kind")
        except (TypeError, ValueError, LookupError) as error:
            raise InvalidAction(f"these actions are no element of {self.action_space}:"
                                f" {type(error).__name__}: {error}") from error

    def _observed(self) -> Any:
        arrays = [rows.copy() for rows in self._obs] if self.copy else self._obs
        return build_structure(self.single_observation_space, iter(arrays))

    def _merged(self, told: StepInfos) -> dict[str, Any]:
        """One dict of arrays and masks out of everybody's infos, as Gymnasium has it."""
        infos, ended = {}, ()
        if self.plan.mode is AutoresetMode.SAME_STEP:
            ended = np.flatnonzero(self._term | self._trunc).tolist()
        for e in sorted({*told, *ended}):
            final, info = told.get(e, ({}, {}))
            if e in ended:
                infos = self._add_info(infos, {"final_obs": self._final(e), "final_info": final}, e)
            infos = self._add_info(infos, info, e)
        return infos

    def _final(self, e: int) -> Any:
        return build_structure(self.single_observation_space, (
            elements(leaf, rows[e:e + 1])[0] for leaf, rows in zip(self._obs_leaves, self._fin)))


def _shut(crew: LocalBackend | WorkerBackend, arena: Arena) -> None:
    crew.close()
    arena.close()
