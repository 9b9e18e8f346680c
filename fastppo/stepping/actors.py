"""Actors: local (compiled policy), central (main process), waiting, random."""

from typing import NamedTuple, Protocol, Sequence

import numpy as np

from fastppo.envs.actions import ActionMapping
from fastppo.envs.observations import ObservationEncoding, ObservationLayout
from fastppo.envs.spaces import MASKED_LOGIT, leaf_arrays
from fastppo.errors import Error
from fastppo.machine import kernels
from fastppo.machine.arena import Arena
from fastppo.machine.kernels import Purpose
from fastppo.machine.noise import ActionNoise


class Actor(Protocol):
    """Who chooses a Serial's actions: the compiled policy, torch, chance, or another process."""

    def start(self, iteration: int) -> None:
        """A rollout begins (or goes on after an interrupt)."""

    def act(self, t: int, group: range) -> list:
        """The environment actions of step t for the environments of `group`."""

    def cut(self, t: int, e: int) -> None:
        """Environment e was truncated at step t; its last observation is in fin[e]."""

    def finish(self, t: int) -> None:
        """The last step is taken and obs[t], the row after it, is there."""


class PolicyPlan(NamedTuple):
    """What the compiled policy must know of a network: its layers, and where its log std stands."""

    plan: np.ndarray  # i64 [layers 7], see kernels.forward
    log_std: int | None  # offset into the flat parameters, or None for a categorical head
    limit: float = 10.0  # of normalised observations


class LocalActor:
    """The compiled policy for environments [first, last): forward, sample, logp, value."""

    def __init__(self, arena: Arena, first: int, last: int, recipe: PolicyPlan, seen: ObservationLayout,
                 actions: ActionMapping, seed: int):
        part, self.first, self.seen = slice(first, last), first, seen
        self.steps, count = len(arena["raw"]), last - first
        self.obs, self.fin = list(arena["obs"][:, part]), arena["fin"][part]
        self.act_rows, self.logp, self.val = (
            list(arena[n][:, part]) for n in ("act", "logp", "val"))
        self.nxt, self.term, self.trunc = (arena[n][:, part] for n in ("nxt", "term", "trunc"))
        self.params, self.told = arena["params"], list(_told(arena)[:, part])
        self.mean, self.scale = (arena[n] if len(arena[n]) else None for n in ("mean", "scale"))
        self.recipe, self.to_env, self.encoding = recipe, actions.to_env(), ObservationEncoding(seen)
        self.noise = ActionNoise(("u" if recipe.log_std is None else "n") * actions.size, seed, first,
                           count)
        self.packed = np.empty(kernels.packed_size(recipe.plan), np.float32)
        width = int(recipe.plan[recipe.plan[:, 1] < 0, 3].sum())  # action parameters, then value
        self.out, self.one = np.empty((count, width), "f4"), np.empty((1, width), "f4")
        self.heads = self.out[:, :-1]

    def start(self, iteration: int) -> None:
        """Take the parameters as they are now."""
        kernels.pack(self.recipe.plan, self.params, self.packed)
        self.first_step = iteration * self.steps
        at, size = self.recipe.log_std, self.noise.out.shape[1]
        self.log_std = None if at is None else self.params[at:at + size]

    def act(self, t: int, group: range) -> list:
        """Forward, sample and record for all environments of the slice at once."""
        self._forward(self.obs[t], self.out)
        if (legal := self.seen.legal(self.obs[t])) is not None:
            self.heads[~legal] = MASKED_LOGIT
        act, noise = self.act_rows[t], self.noise.at(self.first_step + t)
        if self.log_std is None:
            kernels.sample_categorical(self.heads, noise[:, 0], act, self.logp[t])
        else:
            kernels.sample_gaussian(self.heads, self.log_std, noise, act, self.logp[t])
        self.val[t][:] = self.out[:, -1]
        _check(self.told[t], self.first, t)
        return self.to_env(act)

    def cut(self, t: int, e: int) -> None:
        """The value of the true final observation, at once."""
        self._forward(self.fin[e:e + 1], self.one)
        self.nxt[t, e] = self.one[0, -1]

    def finish(self, t: int) -> None:
        """The values of the observations after the last step."""
        self._forward(self.obs[t], self.out)
        going_on = ~(self.term[t - 1] | self.trunc[t - 1])
        self.nxt[t - 1, going_on] = self.out[going_on, -1]

    def _forward(self, obs: np.ndarray, out: np.ndarray) -> None:
        seen = self.encoding.encode(leaf_arrays(obs))
        kernels.forward(self.recipe.plan, self.packed, self.mean, self.scale, seen, out,
                        self.recipe.limit)


class CentralActor:
    """A policy that infers for a whole group of environments at once, always in the same groups.

    `late`: an episode's last observation has a row of its own (autoreset mode NEXT_STEP).
    """

    def __init__(self, arena: Arena, policy, groups: Sequence[range], seed: int,
                 late: bool = False):
        self.arena, self.policy, self.groups, self.late = arena, policy, groups, late
        self.steps, self.told = len(arena["raw"]), _told(arena)
        self.to_env = policy.actions.to_env()
        self.noise = {group: ActionNoise(policy.head.noise, seed, group.start, len(group))
                      for group in groups}
        self.hold, self.under_way = policy.head.hold or self.steps, None

    def start(self, iteration: int) -> None:
        """Count noise from this rollout's first step; go on with the memory of the last one."""
        self.first_step, state = iteration * self.steps, self.arena["state"]
        if iteration != self.under_way:
            state[0], self.under_way = state[-1] if iteration else 0.0, iteration

    def act(self, t: int, group: range) -> list:
        """Infer, and hand the actions to an environment of this process."""
        self.infer(t, group)
        return self.to_env(self.arena["act"][t, group.start:group.stop])

    def infer(self, t: int, group: range) -> None:
        """Fill act, logp, val [t group] and state [t+1 group]; repeating it changes nothing."""
        part, step = slice(group.start, group.stop), self.first_step + t
        if t:
            self._bootstrap(t - 1, part)
        noise, state = self.noise[group].at(step - step % self.hold), self.arena["state"]
        *acted, after = self.policy.act(self.arena["obs"][t, part], noise, state[t, part])
        for name, x in zip(("act", "logp", "val"), acted):
            self.arena[name][t, part] = x
        state[t + 1, part] = after
        _check(self.told[t, part], group.start, t)

    def cut(self, t: int, e: int) -> None:
        """Nothing yet: values of final observations are inferred for the group together."""

    def finish(self, t: int) -> None:
        """The values of the observations after the last step."""
        ended = self.arena["term"][t - 1] | self.arena["trunc"][t - 1]
        for group in self.groups:
            part = slice(group.start, group.stop)
            self._bootstrap(t - 1, part)
            value = self.policy.values(self.arena["obs"][t, part], self.arena["state"][t, part])
            self.arena["nxt"][t - 1, part] = np.where(
                ended[part], self.arena["nxt"][t - 1, part], value)

    def _bootstrap(self, t: int, part: slice) -> None:
        """V(final observation) where step t truncated; done once, for `fin` is soon another's.

        Only then does an episode that begins at t + 1 forget what was before it.
        """
        nxt, term, trunc, valid = (self.arena[name][t, part] for name in (
            "nxt", "term", "trunc", "valid"))
        state, cut = self.arena["state"][t + 1, part], trunc & ~term & np.isnan(nxt)
        if cut.any():
            nxt[cut] = self.policy.values(self.arena["fin"][part], state)[cut]
        state[~valid if self.late else term | trunc] = 0.0


def _told(arena: Arena) -> np.ndarray:
    """What shows that a network's action parameters were not finite: f32 act or else logp [t e]."""
    return arena["act" if arena["act"].dtype == np.float32 else "logp"]


def _check(told: np.ndarray, first: int, t: int) -> None:
    """Raise Error before an environment gets an action of `told` [e ...] that is not finite."""
    if (at := kernels.first_nonfinite(told)) >= 0:
        e = at // max(1, told[0].size)
        raise Error(f"the network's action parameters for environment {first + e} are not finite,"
                    f" at step {t} of a rollout", "return finite numbers from the model's forward;"
                    " of a built-in network: lower --lr")


def first_turn(iteration: int, steps: int, groups: int) -> int:
    """The count at which a rollout's turns begin: one a group step, and one for its end."""
    return iteration * (steps * groups + 1)


class WaitingActor:
    """The worker's end of Central: says what it has stepped, waits for the main process's actions.

    `turns` offers stepped(count) and wait(group number, count). Count first + k + 1 says, from the
    worker, that k groups are stepped and, from the main process, that group step k may be taken.
    """

    def __init__(self, arena: Arena, first: int, last: int, groups: Sequence[range],
                 actions: ActionMapping, turns):
        self.act_rows, self.groups = list(arena["act"][:, first:last]), list(groups)
        self.to_env, self.turns = actions.to_env(), turns

    def start(self, iteration: int) -> None:
        """Count turns from this rollout's first step."""
        self.count = first_turn(iteration, len(self.act_rows), len(self.groups))

    def act(self, t: int, group: range) -> list:
        """Wait for the actions of one group."""
        self.count += 1
        self.turns.stepped(self.count)
        self.turns.wait(self.groups.index(group), self.count)
        return self.to_env(self.act_rows[t][group.start:group.stop])

    def cut(self, t: int, e: int) -> None:
        """Nothing: the main process sees it in the arena."""

    def finish(self, t: int) -> None:
        """Say that the last group is stepped."""
        self.turns.stepped(self.count + 1)


class RandomActor:
    """Uniformly random legal actions for the environments that see `rows` [t][e], kept nowhere."""

    def __init__(self, seen: ObservationLayout, rows: Sequence[np.ndarray], seed: int, first: int):
        self.seen, self.rows, self.seed, self.first = seen, rows, seed, first
        self.actions = ActionMapping(seen.act_space)
        self.to_env, shape = self.actions.to_env(), (len(rows[0]), self.actions.size)
        self.u, self.z = (np.empty(shape, np.float32) for _ in "uz")

    def start(self, iteration: int) -> None:
        """Nothing to prepare."""

    def act(self, t: int, group: range) -> list:
        """Actions that depend on seed, environment, step and what is legal alone."""
        kernels.uniform(self.seed, Purpose.WARMUP, self.first, 2 * t, self.u)
        kernels.normal(self.seed, Purpose.WARMUP, self.first, 2 * t + 1, self.z)
        part = slice(group.start, group.stop)
        legal = self.seen.legal(self.rows[t][part])
        return self.to_env(self.actions.random(self.u[part], self.z[part], legal))

    def cut(self, t: int, e: int) -> None:
        """Nothing to value."""

    def finish(self, t: int) -> None:
        """Nothing to add."""
