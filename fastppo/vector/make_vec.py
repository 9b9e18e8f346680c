"""make_vec: Gymnasium's vector environment over shared memory, in this process or in workers.

Call order, spaces, seeds, autoreset modes, masks and infos are Gymnasium's (vector_env.py, 1.4).
"""

import operator
import weakref
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Iterator, Sequence

import gymnasium.error as gym_errors
import numpy as np
from gymnasium import logger
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from fastppo.config import Config, default_of
from fastppo.envs.source import EnvSource, check_agreement
from fastppo.errors import ConfigError, EnvError, InputError
from fastppo.machine.shared_memory import Arena
from fastppo.spaces.leaves import build_structure, leaves
from fastppo.trainer.resolve import worker_count, workers_are_faster
from fastppo.trainer.rules import NO_WORKERS, case_of, check
from fastppo.vector import stepper
from fastppo.vector.native_vector import parse_autoreset_mode
from fastppo.vector.stepper import LocalBackend, StepInfos, VectorSpec, WorkerBackend
from fastppo.workers.protocol import worker_slices


def make_vec(env: Any, num_envs: int | None = None, num_workers: int | str | None = None,
             seed: int | None = None, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
             copy: bool = True, max_episode_steps: int | None = None,
             env_kwargs: dict | None = None,
             step_timeout: float = default_of("step_timeout"),
             reset_timeout: float = default_of("reset_timeout")) -> "SharedVectorEnv":
    """A gymnasium VectorEnv of `env`: an id, class or callable, or a list of callables.

    `num_workers`: processes that step environments. None: one per core; 0: this process; "auto":
    whichever of the two a short measurement says is faster for a million steps. `copy=False`: every
    step returns the same observation arrays. `seed`: episode k of environment i is always the same
    one, as in training; None: `reset(seed=...)` seeds as in Gymnasium. Timeouts are in seconds.
    `env_kwargs={"render_mode": "rgb_array"}` makes frames for `render()`.
    Raises fastppo.Error for settings that are impossible.
    """
    if env is None or isinstance(env, VectorEnv):
        raise ConfigError(f"make_vec was given {env!r}, not an id, a class or a callable")
    if num_envs is None:
        num_envs = len(env) if isinstance(env, (list, tuple)) else 1
    settings = {"num_envs": num_envs, "num_workers": num_workers, "seed": seed,
                "max_episode_steps": max_episode_steps, "env_kwargs": env_kwargs,
                "step_timeout": step_timeout, "reset_timeout": reset_timeout}
    check_agreement(env, settings)
    config = Config(preset="none", num_minibatches=1, num_steps=1, acting="local", **settings)
    check([NO_WORKERS], case_of(config, config))
    source = EnvSource(env, config, show_masks=False)
    if source.config.agents > 1:
        raise ConfigError("make_vec was given a game of several agents, which PPO alone trains")
    mode = parse_autoreset_mode(autoreset_mode, "make_vec")
    plan = VectorSpec(source.obs_space, source.act_space, mode, seed)
    faster = partial(workers_are_faster, source.step_seconds, source.config)
    workers = worker_count(num_workers, num_envs, faster)
    arena = Arena(stepper.arrays_of(plan, num_envs, workers))
    if workers:
        backend = WorkerBackend(source.factories, plan, arena, workers, step_timeout, reset_timeout)
    else:
        backend = LocalBackend(source.factories, plan, arena)
    return SharedVectorEnv(backend, plan, arena, source.metadata, source.render_mode, copy)


class SharedVectorEnv(VectorEnv):
    """Gymnasium's vector environment over shared memory; made by make_vec.

    An error of one environment closes all of them. After a step_async that was interrupted, every
    environment must be reset. A step_wait, reset_wait or call_wait that was interrupted, or has
    timed out, can be repeated. With num_workers=0 the environments run inside the call that begins.
    """

    def __init__(self, backend: LocalBackend | WorkerBackend, plan: VectorSpec, arena: Arena,
                 metadata: dict, render_mode: str | None, copy: bool):
        self.backend, self.plan, self.copy = backend, plan, copy
        self.num_envs = len(arena["rew"])
        self.slices = worker_slices(self.num_envs, max(1, len(arena["replied"])))
        self.metadata = {**metadata, "autoreset_mode": plan.mode}
        self.render_mode = render_mode
        self.single_observation_space, self.single_action_space = plan.obs_space, plan.act_space
        self.observation_space = batch_space(plan.obs_space, self.num_envs)
        self.action_space = batch_space(plan.act_space, self.num_envs)
        self._obs, self._fin, self._act = (stepper.views(arena, name)
                                           for name in ("obs", "fin", "act"))
        self._rew, self._term, self._trunc = (arena[name] for name in ("rew", "term", "trunc"))
        self._obs_leaves, self._act_leaves = leaves(plan.obs_space), leaves(plan.act_space)
        self._needs_reset = np.ones(self.num_envs, bool)
        self._resetting = self._needs_reset.copy()  # by the reset that was begun last
        self._pending = ""  # or "step", "reset", "call": begun and not waited for
        self._finalizer = weakref.finalize(self, _close_backend, backend, arena)

    def reset(self, *, seed: int | Sequence[int | None] | None = None,
              options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins new episodes, in all environments or in those of `options["reset_mask"]`."""
        return self._begun(self._ask("reset", self._reset_arguments("reset", seed, options)))

    def reset_async(self, seed: int | Sequence[int | None] | None = None,
                    options: dict[str, Any] | None = None) -> None:
        """Begins a reset, of which reset_wait has the answer."""
        arguments = self._reset_arguments("reset_async", seed, options)
        self._call_backend(self.backend.send, "reset", arguments)
        self._pending = "reset"

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Waits for the reset that reset_async began; `timeout` as in step_wait."""
        with self._waiting("reset", timeout) as replies:
            return self._begun(replies)

    def step(self, actions) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """(observations, rewards f64 [e], terminations [e], truncations [e], infos) of one step."""
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions) -> None:
        """Begins a step with a batch of actions, an element of `action_space`."""
        self._check_idle("step_async")
        if self._needs_reset.any():
            raise gym_errors.ResetNeeded(
                f"environment {self._needs_reset.argmax()} needs a reset() before it can step")
        try:
            for leaf, rows in zip(self._act_leaves, self._act):
                value = np.asarray(leaf.of(actions))
                if value.shape != rows.shape:
                    raise ValueError(f"shape {value.shape}, wanted {rows.shape}")
                np.copyto(rows, value, casting="same_kind")
        except (TypeError, ValueError, LookupError) as error:
            raise InputError(f"these actions are no element of {self.action_space}:"
                             f" {type(error).__name__}: {error}",
                             "give one action for each environment, as action_space.sample() does"
                             ) from error
        try:
            self._pending = "step"  # before the post: a step that has begun must be waited for
            self._call_backend(self.backend.post)
        except BaseException:  # an interrupt: the environments may or may not have begun
            self._needs_reset[:], self._pending = True, ""
            raise

    def step_wait(self, timeout: float | None = None
                  ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Waits for the step that step_async began.

        Raises multiprocessing.TimeoutError after `timeout` seconds; None: never.
        """
        with self._waiting("step", timeout) as replies:
            ended = self._term | self._trunc
            if self.plan.mode is AutoresetMode.DISABLED:
                self._needs_reset[:] = ended
            shown = ended if self.plan.mode is AutoresetMode.SAME_STEP else ()
            return (self._observations(), self._rew.copy(), self._term.copy(), self._trunc.copy(),
                    self._merged(replies, np.flatnonzero(shown).tolist()))

    def call(self, name: str, *args, **kwargs) -> tuple:
        """The attribute `name` of every environment; if it is callable, the values it returns."""
        return _results(self._ask("call", self._call_arguments("call", name, args, kwargs)))

    def call_async(self, name: str, /, *args, **kwargs) -> None:
        """Begins what `call` does; call_wait has the values."""
        arguments = self._call_arguments("call_async", name, args, kwargs)
        self._call_backend(self.backend.send, "call", arguments)
        self._pending = "call"

    def call_wait(self, timeout: float | None = None) -> tuple:
        """Waits for the values of call_async; `timeout` as in step_wait."""
        with self._waiting("call", timeout) as replies:
            pass
        return _results(replies)

    def render(self) -> tuple:
        """What `render()` of every environment returns: frames, if they have a render_mode."""
        return self.call("render")

    def get_attr(self, name: str) -> tuple:
        """The attribute `name` of every environment."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Sets an attribute of every environment, to one value or its item of a list or tuple."""
        self._check_idle("set_attr")
        each = values if isinstance(values, (list, tuple)) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ConfigError(f"{len(each)} values for {self.num_envs} environments",
                              "give one value for each of them, or one that is no list or tuple")
        _results(self._ask("set", [(name, each[a:b]) for a, b in self.slices]))

    def close_extras(self, **kwargs) -> None:
        """Stops the workers; always returns."""
        pending, self._pending = self._pending, ""
        self._finalizer()
        if pending:
            logger.warn(f"Calling `close` while waiting for a pending call to `{pending}` to"
                        " complete.")

    def __enter__(self) -> "SharedVectorEnv":
        return self

    def __exit__(self, *_) -> None:
        self._pending = ""  # after an exception, which says more than a warning
        self.close()

    @property
    def np_random_seed(self) -> tuple:
        """The seeds of the environments' generators."""
        return self.get_attr("np_random_seed")

    @property
    def np_random(self) -> tuple:
        """The environments' generators; copies of them, if the environments are in workers."""
        return self.get_attr("np_random")

    def _check_open(self) -> None:
        if self.closed:
            raise gym_errors.ClosedEnvironmentError("this vector environment is closed")

    def _check_idle(self, name: str) -> None:
        self._check_open()
        if self._pending:
            raise gym_errors.AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `{self._pending}` to"
                f" complete: {self._pending}_wait() ends it", self._pending)

    @contextmanager
    def _waiting(self, name: str, timeout: float | None) -> Iterator[list]:
        """The replies to what `name`_async began; the wait can be repeated if the block fails."""
        if self._pending != name:
            self._check_open()
            raise gym_errors.NoAsyncCallError(
                f"Calling `{name}_wait` without any prior call to `{name}_async`.", name)
        yield self._call_backend(self.backend.hear, timeout)
        self._pending = ""

    def _call_backend(self, call: Callable, *args: Any) -> Any:
        """The result of a method of the back end; an error of an environment closes all of them."""
        try:
            return call(*args)
        except EnvError:
            self._pending = ""
            self.close()
            raise

    def _ask(self, method: str, arguments: list[tuple]) -> list:
        """What the steppers of all processes reply to a call of a method."""
        self._call_backend(self.backend.send, method, arguments)
        return self._call_backend(self.backend.hear)

    def _reset_arguments(self, name: str, seed, options: dict | None) -> list[tuple]:
        """The arguments of a reset for each worker; its environments need one from here on."""
        self._check_idle(name)
        seeds, mask = self._seeds(seed), np.ones(self.num_envs, bool)
        if options is not None and "reset_mask" in options:
            options = dict(options)
            mask = options.pop("reset_mask")
            if getattr(mask, "dtype", None) != np.bool_ or mask.shape != (self.num_envs,) or \
                    not mask.any():
                raise InputError(f"options['reset_mask'] is {mask!r}", "give a numpy array of"
                                 f" {self.num_envs} booleans, at least one of them True")
        self._resetting = mask.copy()
        self._needs_reset |= self._resetting
        return [(seeds[a:b], self._resetting[a:b].tolist(), options) for a, b in self.slices]

    def _begun(self, replies: list[StepInfos]) -> tuple[Any, dict[str, Any]]:
        """(observations, infos) of the environments that were reset."""
        self._needs_reset &= ~self._resetting
        return self._observations(), self._merged(replies)

    def _call_arguments(self, method: str, name: str, args: tuple, kwargs: dict) -> list[tuple]:
        """The arguments of a call for each worker."""
        self._check_idle(method)
        if name in ("reset", "step", "close"):
            raise ConfigError(f"{name!r} cannot be called on single environments",
                              f"use the vector environment's own {name}()")
        return [(name, args, kwargs)] * len(self.slices)

    def _seeds(self, seed) -> list:
        """The seed of each environment."""
        try:
            each = seed if np.ndim(seed) else [seed if seed is None else operator.index(seed) + e
                                               for e in range(self.num_envs)]
            seeds = [None if one is None else operator.index(one) for one in each]
        except (TypeError, ValueError):  # no whole numbers
            seeds = []
        if len(seeds) != self.num_envs or any(one is not None and one < 0 for one in seeds):
            raise ConfigError(f"the seed {seed!r} does not fit {self.num_envs} environments",
                              "one whole number, 0 or more, or a list with one or None for each")
        return seeds

    def _observations(self) -> Any:
        arrays = [rows.copy() for rows in self._obs] if self.copy else self._obs
        return build_structure(self.single_observation_space, iter(arrays))

    def _merged(self, replies: list[StepInfos], ended: Sequence[int] = ()) -> dict[str, Any]:
        """The infos of all environments as one dict of arrays and masks, as in Gymnasium.

        Of those that have `ended` with the final observation and info, too.
        """
        infos, step_infos = {}, {e: found for reply in replies for e, found in reply.items()}
        for e in sorted({*step_infos, *ended}):
            final_info, info = step_infos.get(e, ({}, {}))
            if e in ended:
                rows = (stepper.elements(leaf, rows[e:e + 1])[0]
                        for leaf, rows in zip(self._obs_leaves, self._fin))
                final = build_structure(self.single_observation_space, rows)
                infos = self._add_info(infos, {"final_obs": final, "final_info": final_info}, e)
            infos = self._add_info(infos, info, e)
        return infos


def _results(replies: list[tuple[list, str]]) -> tuple:
    """The results for all environments; EnvError if there is none for one of them."""
    results = []
    for part, error in replies:
        if error:
            raise EnvError(error, "call reset() or close(): some environments may be changed")
        results += part
    return tuple(results)


def _close_backend(backend: LocalBackend | WorkerBackend, arena: Arena) -> None:
    backend.close()
    arena.close()
