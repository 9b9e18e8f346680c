"""Actors: they choose the actions of a rollout.

    LocalActor     the compiled policy, in the process that steps the environments
    CentralActor   any policy, in the main process, for a group of environments at once
    DeviceActor    a CentralActor with the observations on its device, in gpu/device_actor.py
    WaitingActor   in a worker: waits for the main process's CentralActor
    RandomActor    uniformly random actions, for the warm-up
"""

import time
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np

from fastppo.errors import NonFiniteError
from fastppo.machine import kernels
from fastppo.machine.kernels import ActionNoise, Purpose
from fastppo.machine.shared_memory import Arena
from fastppo.spaces.actions import ActionMapping
from fastppo.spaces.leaves import MASKED_LOGIT, leaf_arrays
from fastppo.spaces.observations import ObservationEncoding, ObservationLayout
from fastppo.stepping.rollout_recorder import rows_by_step


class Actor:
    """Chooses the actions of a rollout. A call repeated after an interrupt changes nothing.

    It measures: `times` f64 [3] are seconds of acting, begin and end of the rollout. The last two
    are in time.monotonic, which all processes of a machine share.
    """

    times: np.ndarray
    actions: ActionMapping
    begun, acting = 0.0, 0.0
    to_env: Callable[[np.ndarray], list]  # stored actions [n ...] to n actions of the environment
    next_step = False  # the autoreset mode is NEXT_STEP: a final observation has a row of its own
    iteration = None  # of the rollout that was begun last

    def start(self, iteration: int) -> None:
        """Begins or continues the rollout of `iteration`."""
        self.begun, self.acting = time.monotonic(), 0.0

    def continue_memory(self, iteration: int, state: np.ndarray) -> None:
        """Begins a rollout with the last recurrent state [t+1 ...]."""
        if iteration != self.iteration:
            state[0], self.iteration = state[-1] if iteration else 0.0, iteration

    def forget(self, state: np.ndarray, ended: np.ndarray, valid: np.ndarray) -> None:
        """Clears the state [e s] of episodes that begin after a step, whose flags [e] these are.

        The value of a final observation needs the state before that.
        """
        state[~valid if self.next_step else ended] = 0.0

    def act(self, t: int, group: range) -> list:
        """The environment actions of step t for the environments of `group`; stores them too."""
        raise NotImplementedError

    def truncated(self, t: int, e: int) -> None:
        """Step t truncated the episode of environment e; its final observation is in fin[e]."""

    def finish(self, t: int) -> None:
        """The last step is taken, and obs[t], the row after it, is written."""
        self.times[:] = self.acting, self.begun, time.monotonic()


class PolicyPlan(NamedTuple):
    """A network as the compiled policy reads it."""

    plan: np.ndarray  # i64 [layers 12], see kernels.forward
    log_std: int | None  # offset into the flat parameters, or None for a categorical head
    limit: float = 10.0  # of normalised observations


class Weights(NamedTuple):
    """What the compiled policy computes with."""

    packed: np.ndarray  # f32, see kernels.pack
    mean: np.ndarray | None  # f32 [o] of observations; None without normalisation
    scale: np.ndarray | None  # f32 [o]
    log_std: np.ndarray | None  # f32 [a]


class LocalActor(Actor):
    """The compiled policy for environments [first, last): forward pass, sampling, values."""

    def __init__(self, arena: Arena, first: int, last: int, plan: PolicyPlan,
                 layout: ObservationLayout, actions: ActionMapping, seed: int):
        part, self.first, self.layout = slice(first, last), first, layout
        self.steps, count = len(arena["raw"]), last - first
        self.obs = rows_by_step(arena["obs"][:, part], self.steps)
        self.act_rows, self.logp, self.val = (
            list(arena[name][:, part]) for name in ("act", "logp", "val"))
        # What is not finite where action parameters are not.
        self.checked = self.logp if plan.log_std is None else self.act_rows
        self.nxt, self.term, self.trunc, self.valid, self.turns, self.state = (
            arena[n][:, part] for n in ("nxt", "term", "trunc", "valid", "acting", "state"))
        self.fin, self.times = arena["fin"][part], arena["times"][first]
        self.current = [arena[name] for name in ("params", "mean", "scale")]
        self.plan, self.actions, self.to_env = plan, actions, actions.to_env()
        self.encoding = ObservationEncoding(
            layout, [0] if plan.plan[0, 7] == kernels.IMAGE else [], len(arena["mean"]) > 0)
        kind = "u" if plan.log_std is None else "n"
        self.noise = ActionNoise(kind * actions.size, seed, first, count)
        width = int(plan.plan[plan.plan[:, 1] < 0, 3].sum())  # action parameters, then the value
        self.out, self.single = np.empty((count, width), "f4"), np.empty((1, width), "f4")

    def start(self, iteration: int) -> None:
        """Reads the current parameters."""
        self.begun, self.acting = time.monotonic(), 0.0
        self.first_step, self.weights = iteration * self.steps, self.read(*self.current)
        self.continue_memory(iteration, self.state)

    def read(self, params: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> Weights:
        """The Weights of flat parameters and of moments, which are empty without normalisation."""
        packed = np.empty(kernels.packed_size(self.plan.plan), np.float32)
        kernels.pack(self.plan.plan, params, packed)
        at, size = self.plan.log_std, self.noise.out.shape[1]
        moments = (mean, scale) if len(mean) else (None, None)
        return Weights(packed, *moments, None if at is None else params[at:at + size])

    def act(self, t: int, group: range) -> list:
        """Forward pass, sampling and recording for all environments of the slice at once."""
        begin, act = time.monotonic(), self.act_rows[t]
        memory = self._recalled(t)[:2]
        self.sample(self.weights, self.obs[t], self.noise.at(self.first_step + t), act,
                    self.logp[t], self.out, *memory)
        if len(memory):
            np.copyto(memory[1], memory[0], where=~self.turns[t][:, None])
        self.val[t][:] = self.out[:, -1]
        check_outputs(self.checked[t], self.first, t)
        actions = self.to_env(act)
        self.acting += time.monotonic() - begin
        return actions

    def sample(self, weights: Weights, obs: np.ndarray, noise: np.ndarray, act: np.ndarray,
               logp: np.ndarray, out: np.ndarray, *memory: np.ndarray) -> None:
        """Fills act and logp [n ...] for observations [n ...], and `out` [n p+1], also values.

        `memory` [n m] is the state before and after.
        """
        self._forward(weights, obs, out, *memory)
        params = out[:, :-1]
        if self.layout.mask is not None:
            params[~self.layout.legal(obs)] = MASKED_LOGIT
        if weights.log_std is None:
            kernels.sample_categorical(params, noise[:, 0], act, logp)
        else:
            kernels.sample_gaussian(params, weights.log_std, noise, act, logp)

    def truncated(self, t: int, e: int) -> None:
        """Computes the value of the final observation at once."""
        self._forward(self.weights, self.fin[e:e + 1], self.single, self.state[t + 1, e:e + 1])
        self.nxt[t, e] = self.single[0, -1]

    def finish(self, t: int) -> None:
        """Computes the values of the observations after the last step."""
        self._forward(self.weights, self.obs[t], self.out, *self._recalled(t)[:1])
        running = ~(self.term[t - 1] | self.trunc[t - 1])
        self.nxt[t - 1, running] = self.out[running, -1]
        self.times[:] = self.acting, self.begun, time.monotonic()

    def _recalled(self, t: int) -> np.ndarray | tuple[()]:
        """The states [.. n m] before step t and later ones, 0 where an episode begins, if any."""
        if not self.state.size:
            return ()
        if t:
            self.forget(self.state[t], self.term[t - 1] | self.trunc[t - 1], self.valid[t - 1])
        return self.state[t:]

    def _forward(self, weights: Weights, obs: np.ndarray, out: np.ndarray,
                 before: np.ndarray | None = None, after: np.ndarray | None = None) -> None:
        encoded = self.encoding.encode(leaf_arrays(obs))
        kernels.forward(self.plan.plan, *weights[:3], encoded, out, self.plan.limit, before, after)


class CentralActor(Actor):
    """A policy that infers for one group of environments at once, always for the same groups."""

    def __init__(self, arena: Arena, policy: Any, groups: Sequence[range], seed: int):
        self.arena, self.policy, self.groups = arena, policy, groups
        self.steps = len(arena["raw"])
        # What is not finite where action parameters are not.
        self.checked = arena["act" if arena["act"].dtype == np.float32 else "logp"]
        self.obs = rows_by_step(arena["obs"], self.steps)
        self.actions, self.to_env = policy.actions, policy.actions.to_env()
        self.noise = {group: ActionNoise(policy.head.noise, seed, group.start, len(group))
                      for group in groups}
        self.noise_steps = policy.head.noise_steps or self.steps
        self.times = arena["times"][-1]

    def start(self, iteration: int) -> None:
        """Counts noise from the rollout's first step; continues with the last recurrent state."""
        super().start(iteration)
        self.first_step = iteration * self.steps
        self.continue_memory(iteration, self.arena["state"])

    def act(self, t: int, group: range) -> list:
        """Infers for environments of this process."""
        self.infer(t, group)
        return self.to_env(self.arena["act"][t, group.start:group.stop])

    def infer(self, t: int, group: range) -> None:
        """Fills act, logp, val [t group] and state [t+1 group]."""
        begin = time.monotonic()
        part, step = slice(group.start, group.stop), self.first_step + t
        if t:
            self._bootstrap(t - 1, part)
        noise, state = self.noise[group].at(step - step % self.noise_steps), self.arena["state"]
        *acted, after = self.choose(t, group, noise, state[t, part])
        for name, x in zip(("act", "logp", "val"), acted):
            self.arena[name][t, part] = x
        state[t + 1, part] = np.where(self.arena["acting"][t, part, None], after, state[t, part])
        check_outputs(self.checked[t, part], group.start, t)
        self.acting += time.monotonic() - begin

    def finish(self, t: int) -> None:
        """Infers the values of the observations after the last step."""
        term, trunc, nxt = (self.arena[name][t - 1] for name in ("term", "trunc", "nxt"))
        for group in self.groups:
            part = slice(group.start, group.stop)
            self._bootstrap(t - 1, part)
            value = self.values(t, group)
            nxt[part] = np.where((term | trunc)[part], nxt[part], value)
        super().finish(t)

    def attach(self, collector: Any) -> None:
        """Changes the rollout of a Collector whose environments it acts in: not here."""

    def choose(self, t: int, group: range, noise: np.ndarray, state: np.ndarray
               ) -> Sequence[np.ndarray]:
        """[act, logp, value, next state], each [b ...], for a group at step t."""
        return self.policy.act(self.obs[t][group.start:group.stop], noise, state)

    def values(self, t: int, group: range) -> np.ndarray:
        """The values f32 [b] of a group at step t."""
        part = slice(group.start, group.stop)
        return self.policy.values(self.obs[t][part], self.arena["state"][t, part])

    def _bootstrap(self, t: int, part: slice) -> None:
        """Infers the value of final observations where step t truncated, then clears the state.

        Values are inferred once: a later step overwrites `fin`.
        """
        nxt, term, trunc, valid = (self.arena[name][t, part] for name in (
            "nxt", "term", "trunc", "valid"))
        state, missing = self.arena["state"][t + 1, part], trunc & ~term & np.isnan(nxt)
        if missing.any():
            nxt[missing] = self.policy.values(self.arena["fin"][part], state)[missing]
        self.forget(state, term | trunc, valid)


def first_turn(iteration: int, steps: int, groups: int) -> int:
    """The count before a rollout's first turn: a turn for each group step, and one for the end."""
    return iteration * (steps * groups + 1)


class WaitingActor(Actor):
    """The worker's end of a CentralActor: reports its steps, and waits for actions.

    `turns` has stepped(count) and wait(group number, count). In counts after `first_turn`: the
    worker reports count k + 1 when k groups are stepped, and group step k may be taken when the
    main process has reached k + 1.
    """

    def __init__(self, arena: Arena, first: int, last: int, groups: Sequence[range],
                 actions: ActionMapping, turns: Any):
        self.act_rows, self.groups = list(arena["act"][:, first:last]), list(groups)
        self.actions, self.to_env = actions, actions.to_env()
        self.turns, self.times = turns, arena["times"][first]

    def start(self, iteration: int) -> None:
        """Counts turns from the rollout's first step."""
        super().start(iteration)
        self.count = first_turn(iteration, len(self.act_rows), len(self.groups))

    def act(self, t: int, group: range) -> list:
        """Waits for the actions of a group; the time of that counts as acting."""
        begin = time.monotonic()
        self.count += 1
        self.turns.stepped(self.count)
        self.turns.wait(self.groups.index(group), self.count)
        self.acting += time.monotonic() - begin
        return self.to_env(self.act_rows[t][group.start:group.stop])

    def finish(self, t: int) -> None:
        """Reports that the last group is stepped."""
        self.turns.stepped(self.count + 1)
        super().finish(t)


class RandomActor(Actor):
    """Uniformly random legal actions for environments [first, ...) that observe obs [t][e ...]."""

    def __init__(self, layout: ObservationLayout, obs: Sequence[np.ndarray], act: np.ndarray,
                 seed: int, first: int = 0):
        self.layout, self.obs, self.act_rows, self.seed, self.first = layout, obs, act, seed, first
        self.actions, self.times = ActionMapping(layout.act_space), np.empty(3)
        self.to_env, shape = self.actions.to_env(), (len(obs[0]), self.actions.size)
        self.uniform, self.normal = np.empty(shape, np.float32), np.empty(shape, np.float32)

    def act(self, t: int, group: range) -> list:
        """Actions that depend only on seed, environment, step and the legal actions."""
        kernels.uniform(self.seed, Purpose.WARMUP, self.first, 2 * t, self.uniform)
        kernels.normal(self.seed, Purpose.WARMUP, self.first, 2 * t + 1, self.normal)
        part = slice(group.start, group.stop)
        act, legal = self.act_rows[t][part], self.layout.legal(self.obs[t][part])
        act[:] = self.actions.random(self.uniform[part], self.normal[part], legal)
        return self.to_env(act)


def check_outputs(rows: np.ndarray, first: int, t: int) -> None:
    """Raises NonFiniteError before an environment gets an action of rows [e ...] that is not."""
    if (at := kernels.first_nonfinite(rows)) >= 0:
        e = at // max(1, rows[0].size)
        raise NonFiniteError(f"the network's action parameters for environment {first + e} are not"
                             f" finite, at step {t} of a rollout",
                             ("return finite numbers from your model's forward",
                              "lower the learning rate of a built-in network"))
