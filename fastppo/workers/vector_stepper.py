"""The environments of a vector environment, stepped one after the other into its arena's arrays.

Unlike a Serial's, these follow Gymnasium to the letter: three autoreset modes, infos, rewards in
float64, and observations and actions of any space that has a fixed shape, in its own dtype.
"""

from typing import NamedTuple, Sequence

import numpy as np
from gymnasium.spaces import Dict, Discrete, Space, Tuple
from gymnasium.vector import AutoresetMode

from fastppo.envs import faults
from fastppo.envs.make import Factory, make_envs
from fastppo.envs.spaces import Leaf, build_structure, leaves
from fastppo.errors import EnvError, SpaceError
from fastppo.machine import kernels
from fastppo.machine.arena import Arena, Spec
from fastppo.machine.kernels import Purpose
from fastppo.stepping import checks

StepInfos = dict[int, tuple[dict, dict]]  # environment -> (final info of an episode's end, info)


class VectorSpec(NamedTuple):
    """What every process must know of a vector environment."""

    obs_space: Space  # of one environment
    act_space: Space
    mode: AutoresetMode
    seed: int | None  # episode k of environment i is always the same one; None: as `reset` says


def elements(leaf: Leaf, rows: np.ndarray) -> list:
    """The rows of an array as elements of their space: fresh arrays, numbers only for Discrete."""
    fresh = rows.copy()
    if leaf.space.shape or isinstance(leaf.space, Discrete):
        return list(fresh)
    return [row.reshape(()) for row in fresh[:, None]]


def arrays_of(plan: VectorSpec, envs: int) -> Spec:
    """The arrays of a vector environment: obs0, obs1, ... are the leaves of its observations."""
    obs, act = leaves(plan.obs_space), leaves(plan.act_space)
    named = {"obs": obs, "act": act, "fin": obs if plan.mode is AutoresetMode.SAME_STEP else []}
    arrays = {f"{name}{i}": (leaf.space.dtype.str, (envs, *leaf.space.shape))
              for name, parts in named.items() for i, leaf in enumerate(parts)}
    return {**arrays, "rew": ("<f8", (envs,)), "term": ("|b1", (envs,)), "trunc": ("|b1", (envs,))}


def views(arena: Arena, name: str, first: int = 0, last: int | None = None) -> list[np.ndarray]:
    """The arrays `name`0, `name`1, ... of environments [first, last)."""
    found = []
    while f"{name}{len(found)}" in arena:
        found.append(arena[f"{name}{len(found)}"][first:last])
    return found


class VectorStepper:
    """Environments [first, first + n) of a vector environment, in whatever process this is.

    `note(step, env)` is told where it stands (step -1: a reset) before every call into one. A fault
    of an environment is an EnvError that names environment, seed, episode and step.
    """

    def __init__(self, factories: Sequence[Factory], plan: VectorSpec, arena: Arena, first: int = 0,
                 note=None, name: str = ""):
        self.envs, count = make_envs(factories, first, name), len(factories)
        self.plan, self.first, self.name = plan, first, name
        self.note = note or (lambda step, env: None)
        self.leaves, self.act_leaves = leaves(plan.obs_space), leaves(plan.act_space)
        self.obs, self.act, self.fin = (views(arena, n, first, first + count)
                                        for n in ("obs", "act", "fin"))
        self.rew, self.term, self.trunc = (arena[n][first:first + count]
                                           for n in ("rew", "term", "trunc"))
        # A view of one row, made once, costs half of indexing the array.
        self.places = [(leaf, rows.shape[1:], rows.dtype, [rows[e, ...] for e in range(count)])
                       for leaf, rows in zip(self.leaves, self.obs)]
        self.episode, self.length, self.seeds = [-1] * count, [0] * count, [None] * count
        self.over = [False] * count  # whose next step is the reset that NEXT_STEP owes
        self.at_end = {AutoresetMode.NEXT_STEP: self._wait, AutoresetMode.SAME_STEP: self._go_on,
                       AutoresetMode.DISABLED: self._stay}[plan.mode]
        for e, env in enumerate(self.envs):
            self._check_spaces(e)
            if plan.seed is not None:
                env.action_space.seed(self._seed(e, 0))

    def reset(self, seeds: Sequence[int | None], mask: Sequence[bool],
              options: dict | None) -> StepInfos:
        """Begin an episode in every environment of `mask`."""
        told = {}
        for e in range(len(mask)):
            if mask[e] and (info := self._reset(e, seeds[e], options)):
                told[self.first + e] = {}, info
        return told

    def step(self) -> StepInfos:
        """Take a step in every environment with the actions that stand in the arena."""
        told, rewards = {}, [0.0] * len(self.envs)
        self.term[:] = self.trunc[:] = False
        for e, action in enumerate(self._actions()):
            if self.over[e]:
                final, info = {}, self._reset(e)
            else:
                rewards[e], final, info = self._step(e, action)
            if final or info:
                told[self.first + e] = final, info
        self.rew[:] = rewards
        self._check(0, len(self.envs))
        return told

    def call(self, name: str, args: Sequence, kwargs: dict) -> tuple[list, str]:
        """(what every environment's attribute is or returns, the text of an error or nothing)."""
        results = []
        for e, env in enumerate(self.envs):
            try:
                found = env.get_wrapper_attr(name)
                results.append(found(*args, **kwargs) if callable(found) else found)
            except Exception as error:  # the caller's mistake as a rule: nothing is lost yet
                return results, self.fault(e, repr(name), error).what
        return results, ""

    def set(self, name: str, values: Sequence) -> tuple[list, str]:
        """Give every environment its own value of an attribute; replies as `call` does."""
        for e, (env, value) in enumerate(zip(self.envs, values)):
            try:
                env.set_wrapper_attr(name, value)
            except Exception as error:  # as above
                return [], self.fault(e, repr(name), error).what
        return [], ""

    def close(self) -> None:
        """Close the environments; what they raise now is printed and no longer stops anybody."""
        faults.close_all(self.envs)

    def fault(self, e: int, field: str, error: BaseException) -> EnvError:
        """The error for environment `e` of the slice, which went wrong in `field`."""
        return faults.env_error_at(self.first + e, self.name, self.seeds[e], self.episode[e],
                                 self.length[e], field, error)

    def _step(self, e: int, action) -> tuple[float, dict, dict]:
        self.note(self.length[e], e)
        try:
            obs, rew, term, trunc, info = self.envs[e].step(action)
            if not isinstance(rew, float) or not abs(rew) <= checks.REWARD_MAX:
                rew = checks.checked_reward(rew)
            self._keep(e, obs, info)
            if term is not False or trunc is not False:
                term, trunc = checks.checked_flag(term, "terminated"), checks.checked_flag(trunc, "truncated")
        except BaseException as error:
            raise self.fault(e, "step()", error) from error
        self.length[e] += 1
        if not (term or trunc):
            return rew, {}, info
        self.term[e], self.trunc[e] = term, trunc
        return rew, *self.at_end(e, info)

    def _wait(self, e: int, info: dict) -> tuple[dict, dict]:
        self.over[e] = True
        return {}, info

    def _go_on(self, e: int, info: dict) -> tuple[dict, dict]:
        self._check(e, e + 1)
        for fin, obs in zip(self.fin, self.obs):
            fin[e] = obs[e]
        return info, self._reset(e)

    def _stay(self, e: int, info: dict) -> tuple[dict, dict]:
        return {}, info

    def _reset(self, e: int, seed: int | None = None, options: dict | None = None) -> dict:
        """Begin the next episode; with a seed from outside, count episodes anew."""
        self.episode[e] = self.episode[e] + 1 if seed is None else 0
        self.seeds[e] = self._seed(e, self.episode[e]) if seed is None else seed
        self.length[e], self.over[e] = 0, False
        self.note(-1, e)
        try:
            more = {} if options is None else {"options": options}
            obs, info = self.envs[e].reset(seed=self.seeds[e], **more)
            self._keep(e, obs, info)
        except BaseException as error:
            raise self.fault(e, "reset()", error) from error
        self._check(e, e + 1)
        return info

    def _seed(self, e: int, episode: int) -> int | None:
        if self.plan.seed is None:
            return None
        return kernels.episode_seed(self.plan.seed, Purpose.ENV_SEED, self.first + e, episode)

    def _keep(self, e: int, obs, info) -> None:
        """Copy an observation at once: an environment may reuse its array."""
        for leaf, shape, dtype, places in self.places:
            value = leaf.of(obs) if leaf.path else obs
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                value = _fitting(value, shape, dtype, leaf)
            places[e][...] = value
        if not isinstance(info, dict):
            raise TypeError(f"the info is {info!r}, not a dict")

    def _actions(self) -> list:
        """The environments' actions, fresh, so that one may keep its own."""
        columns = [elements(leaf, rows) for leaf, rows in zip(self.act_leaves, self.act)]
        if isinstance(self.plan.act_space, (Dict, Tuple)):
            return [build_structure(self.plan.act_space, iter(row)) for row in zip(*columns)]
        return columns[0]

    def _check(self, start: int, stop: int) -> None:
        """Raise EnvError for the first number of observations [start, stop) that is not finite."""
        for rows, leaf in zip(self.obs, self.leaves):
            if (at := find_nonfinite(rows[start:stop])) >= 0:
                e, place = divmod(at, max(1, rows[0].size))
                bad = rows[start:stop].reshape(-1)[at]
                raise self.fault(start + e, "an observation", ValueError(
                    f"{leaf}[{place}] is {bad} in {rows.dtype}"))

    def _check_spaces(self, e: int) -> None:
        env = self.envs[e]
        for ours, its in zip(self.plan, (env.observation_space, env.action_space)):
            if ours != its:
                raise SpaceError(f"environment {self.first + e} has the space {its}, where the"
                                 f" first one has {ours}", "wrap them until they agree")


def find_nonfinite(rows: np.ndarray) -> int:
    """The flat index of the first NaN or infinity of an array of any dtype, or -1."""
    if rows.dtype == np.float32:
        return kernels.first_nonfinite(rows)
    if rows.dtype.kind != "f" or (good := np.isfinite(rows)).all():
        return -1
    return int(np.argmin(good))


def _fitting(value, shape: tuple, dtype: np.dtype, leaf: Leaf) -> np.ndarray:
    array = np.asarray(value)
    if array.shape != shape:
        raise ValueError(f"the {leaf} has shape {array.shape}, its space {shape}")
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(f"the {leaf} is {array.dtype}, which {dtype} does not keep")
    return array
