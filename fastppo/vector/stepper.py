"""The back ends of make_vec: its environments in this process, or in workers.

Unlike Serial, they follow Gymnasium exactly: three autoreset modes, infos, rewards in float64, and
observations and actions of any space with a fixed shape, in the dtype of the space. A step of
workers is a command without a message: actions, observations, rewards and ends are in the arena.
Everything else (resets, calls, infos) is a pickled message in a worker's mailbox; a worker without
infos writes none.
"""

import pickle
from functools import partial
from typing import Any, Callable, NamedTuple, Sequence

import cloudpickle
import numpy as np
from gymnasium.spaces import Dict, Discrete, Space, Tuple
from gymnasium.vector import AutoresetMode

from fastppo.envs.make import Factory
from fastppo.machine.shared_memory import Arena, Spec
from fastppo.spaces.leaves import Leaf, build_structure, fitting_array, leaves, tree_map
from fastppo.stepping.environments import Environments, RunningEpisode
from fastppo.workers import protocol
from fastppo.workers.team import WorkerTeam
from fastppo.workers.worker import WorkerSync

StepInfos = dict[int, tuple[dict, dict]]  # environment -> (final info of an episode's end, info)
IDLE_SPIN_NS = 300_000  # a small policy's time between two steps


class VectorSpec(NamedTuple):
    """The settings of a vector environment that every process needs."""

    obs_space: Space  # of one environment
    act_space: Space
    mode: AutoresetMode
    seed: int | None  # of all episodes, as in training; None: only `reset` seeds


def _casts(dtype: np.dtype, given: np.dtype) -> bool:
    """True if Gymnasium would store `given` as `dtype`."""
    return np.can_cast(given, dtype, "same_kind")


def elements(leaf: Leaf, rows: np.ndarray) -> list:
    """The rows of an array as elements of their space: new arrays, or numbers for Discrete."""
    copies = rows.copy()
    if leaf.space.shape or isinstance(leaf.space, Discrete):
        return list(copies)
    return [row.reshape(()) for row in copies[:, None]]


def arrays_of(spec: VectorSpec, envs: int, workers: int) -> Spec:
    """The arrays of a vector environment: obs0, obs1, ... are the leaves of its observations."""
    obs, act = leaves(spec.obs_space), leaves(spec.act_space)
    named = {"obs": obs, "act": act, "fin": obs if spec.mode is AutoresetMode.SAME_STEP else []}
    arrays = {f"{name}{i}": (leaf.space.dtype.str, (envs, *leaf.space.shape))
              for name, parts in named.items() for i, leaf in enumerate(parts)}
    return {**arrays, "rew": ("<f8", (envs,)), "term": ("|b1", (envs,)), "trunc": ("|b1", (envs,)),
            **protocol.protocol_spec(workers, 0), "replied": ("|b1", (workers,))}


def views(arena: Arena, name: str, first: int = 0, last: int | None = None) -> list[np.ndarray]:
    """The arrays `name`0, `name`1, ... of environments [first, last)."""
    return [arena[key][first:last] for key in arena.spec if key.rstrip("0123456789") == name]


class VectorStepper(Environments):
    """Environments [first, first + n) of a vector environment, in any process."""

    def __init__(self, factories: Sequence[Factory], spec: VectorSpec, arena: Arena, first: int = 0,
                 note=None, name: str = ""):
        super().__init__(factories, spec.seed, first, note, name)
        last, self.spec = first + len(factories), spec
        self.obs, self.act, self.fin = (views(arena, n, first, last) for n in ("obs", "act", "fin"))
        self.rew, self.term, self.trunc = (arena[n][first:last] for n in ("rew", "term", "trunc"))
        self.leaves, self.act_leaves = leaves(spec.obs_space), leaves(spec.act_space)
        # A view of one row, made once, costs half of indexing the array.
        self.slots = [(leaf, rows.shape[1:], rows.dtype, [rows[e, ...] for e in range(len(rows))])
                      for leaf, rows in zip(self.leaves, self.obs)]
        self.resetting = [False] * len(factories)  # the next step is the reset of NEXT_STEP
        if spec.seed is not None:
            for e, env in enumerate(self.envs):
                env.action_space.seed(self.new_episode(e, 0).seed)

    def reset(self, seeds: Sequence[int | None], mask: Sequence[bool],
              options: dict | None) -> StepInfos:
        """Begins an episode in every environment of `mask`."""
        infos = {}
        for e in range(len(mask)):
            if mask[e] and (info := self._reset(e, seeds[e], options)):
                infos[self.first + e] = {}, info
        return infos

    def step(self) -> StepInfos:
        """Takes a step in every environment, with the actions in the arena."""
        infos, rewards = {}, [0.0] * len(self.envs)
        self.now += 1
        self.term[:] = self.trunc[:] = False
        for e, action in enumerate(self._actions()):
            final = {}
            if self.resetting[e]:
                info = self._reset(e)
            else:
                rewards[e], term, trunc, info = self.take_step(e, action)
                if term or trunc:
                    self.term[e], self.trunc[e] = term, trunc
                    final, info = self._end_episode(e, info)
            if final or info:
                infos[self.first + e] = final, info
        self.rew[:] = rewards
        self._check_finite(0, len(self.envs))
        return infos

    def call(self, name: str, args: Sequence, kwargs: dict) -> tuple[list, str]:
        """(the attribute of every environment, or what it returns if callable; an error's text)."""
        def read(e: int) -> Any:
            attribute = self.envs[e].get_wrapper_attr(name)
            return attribute(*args, **kwargs) if callable(attribute) else attribute
        return self._for_each(name, read)

    def set(self, name: str, values: Sequence) -> tuple[list, str]:
        """Gives every environment its own value of an attribute; replies as `call` does."""
        return self._for_each(name, lambda e: self.envs[e].set_wrapper_attr(name, values[e]))

    def receive(self, e: int, obs: Any, info: dict, begins: RunningEpisode | None = None,
                ended: bool = False) -> None:
        """Copies an observation at once, because an environment may reuse its array."""
        for leaf, shape, dtype, slots in self.slots:
            value = leaf.of(obs) if leaf.path else obs
            if type(value) is not np.ndarray or value.dtype != dtype or value.shape != shape:
                value = fitting_array(value, leaf, shape, dtype, _casts)
            slots[e][...] = value
        if not isinstance(info, dict):
            raise TypeError(f"the info is {info!r}, not a dict")

    def _end_episode(self, e: int, info: dict) -> tuple[dict, dict]:
        """(final info, info) of a step that ended an episode, after what the mode asks for."""
        self.resetting[e] = self.spec.mode is AutoresetMode.NEXT_STEP
        if self.spec.mode is not AutoresetMode.SAME_STEP:
            return {}, info
        self._check_finite(e, e + 1)
        for fin, rows in zip(self.fin, self.obs):
            fin[e] = rows[e]
        # A copy, because an environment may update one info in place at its reset.
        final = tree_map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, info)
        return final, self._reset(e)

    def _reset(self, e: int, seed: int | None = None, options: dict | None = None) -> dict:
        """Begins the next episode of environment e; a given seed makes it number 0."""
        self.resetting[e] = False
        episode = self.new_episode(e, self.running[e].number + 1) if seed is None \
            else RunningEpisode(0, seed, self.now + 1)
        info = self.begin_episode(e, episode, **({} if options is None else {"options": options}))
        self._check_finite(e, e + 1)
        return info

    def _actions(self) -> list:
        """The actions of the environments: copies, which an environment may keep."""
        columns = [elements(leaf, rows) for leaf, rows in zip(self.act_leaves, self.act)]
        if isinstance(self.spec.act_space, (Dict, Tuple)):
            return [build_structure(self.spec.act_space, iter(row)) for row in zip(*columns)]
        return columns[0]

    def _for_each(self, name: str, function: Callable[[int], Any]) -> tuple[list, str]:
        """(the results of `function` for every environment, the text of the first error or "")."""
        results = []
        for e in range(len(self.envs)):
            try:
                results.append(function(e))
            except Exception as error:  # the caller's mistake, as a rule: nothing is lost
                return results, self.fault(e, repr(name), error).what
        return results, ""

    def _check_finite(self, start: int, stop: int) -> None:
        """Raises EnvError for the first number of observations [start, stop) that is not finite."""
        for rows, leaf in zip(self.obs, self.leaves):
            if rows.dtype.kind == "f" and not (finite := np.isfinite(rows[start:stop])).all():
                e, index = divmod(int(finite.argmin()), max(1, rows[0].size))
                raise self.fault(start + e, "an observation", ValueError(
                    f"{leaf}[{index}] is {rows[start + e].flat[index]} in {rows.dtype}"))


class LocalBackend(VectorStepper):
    """A VectorStepper in this process, with the calls of WorkerBackend."""

    def post(self) -> None:
        """Takes a step."""
        self.replies = [self.step()]

    def send(self, method: str, arguments: Sequence[tuple]) -> None:
        """Calls a method of the stepper."""
        self.replies = [getattr(self, method)(*arguments[0])]

    def hear(self, timeout: float | None = None) -> list:
        """The infos of the step, or the reply of the method, as a list."""
        return self.replies


class WorkerBackend:
    """A VectorStepper in each of `workers` processes."""

    def __init__(self, factories: Sequence[Factory], plan: VectorSpec, arena: Arena, workers: int,
                 step_timeout: float, reset_timeout: float):
        self.team = WorkerTeam(partial(WorkerEndpoint, plan), factories, workers, arena, 0,
                               step_timeout, reset_timeout, IDLE_SPIN_NS)
        self.replied, self.number = arena["replied"], 0

    def post(self) -> None:
        """Makes every worker take a step."""
        self.number += 1
        self.team.post(protocol.STEP, self.number)

    def send(self, method: str, arguments: Sequence[tuple]) -> None:
        """Makes every worker call a method of its stepper with its own arguments."""
        messages = [protocol.pickled_by_value((method, each), "this value") for each in arguments]
        self.team.finish_last()  # after an interrupt, a command may still run
        for worker, message in zip(self.team.workers, messages):
            worker.mailbox.write(message)
        self.number += 1
        self.team.post(protocol.ASK, self.number)

    def hear(self, timeout: float | None = None) -> list:
        """The replies of those that reply; can be repeated after an interrupt or a timeout."""
        self.team.finish_last(timeout)
        return [worker.mailbox.read()
                for worker, replied in zip(self.team.workers, self.replied) if replied]

    def close(self) -> None:
        """Stops the processes."""
        self.team.close()


class WorkerEndpoint:
    """The worker's end of WorkerBackend; `replied` [1] is True while the mailbox holds a reply."""

    def __init__(self, plan: VectorSpec, factories: Sequence[Factory], first: int, worker: int,
                 arena: Arena, sync: WorkerSync):
        self.stepper = VectorStepper(factories, plan, arena, first, sync.note, f"worker {worker}, ")
        self.mailbox, self.replied = sync.mailbox, arena["replied"][worker:worker + 1]
        self.close = self.stepper.close

    def step(self, number: int) -> None:
        """Takes a step, and replies with the infos if there are any."""
        self._reply(self.stepper.step())

    def ask(self, number: int) -> None:
        """Calls the method that the message names, and replies."""
        method, arguments = self.mailbox.read()
        self._reply(getattr(self.stepper, method)(*arguments))

    def _reply(self, reply: Any) -> None:
        if reply:
            self.mailbox.write(_pickled(reply))
        self.replied[0] = bool(reply)


def _pickled(reply: Any) -> bytes:
    """A pickle by reference if that works; by value for classes of the user's `__main__`."""
    try:
        return pickle.dumps(reply, 5)
    except Exception:  # pickling runs the user's own code
        try:
            return cloudpickle.dumps(reply)
        except Exception as error:
            if isinstance(reply, dict):  # infos
                raise
            text = f"the reply cannot be sent: {type(error).__name__}: {error}"
            return pickle.dumps(([], text))
