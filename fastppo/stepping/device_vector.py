"""Collects rollouts from a simulator on a device; observations and actions never leave it."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fastppo.errors import ConfigError, NonFiniteError, SpaceError
from fastppo.machine import kernels
from fastppo.machine.arena import Arena
from fastppo.machine.kernels import Purpose
from fastppo.settings.fixes import Set
from fastppo.spaces.leaves import subspaces
from fastppo.spaces.observations import NonFiniteValue
from fastppo.spaces.tensor_actions import tensor_to_env, torch_dtype
from fastppo.stepping.environments import WARMUP_EPISODE
from fastppo.stepping.episodes import EpisodeInfos
from fastppo.stepping.replay import ResumedEpisodes
from fastppo.stepping.simulator import Simulator

COPIED = "logp", "val", "raw", "term", "trunc", "length", "total"


class Columns(NamedTuple):
    """The rollout on the device, [t e ...]; obs has a row more."""

    obs: list[Tensor]  # the leaves
    final: list[Tensor]  # leaves of the observations before resets
    act: Tensor
    logp: Tensor
    val: Tensor
    raw: Tensor
    term: Tensor
    trunc: Tensor
    length: Tensor  # i64, of episodes that ended, else 0
    total: Tensor  # f64, their returns; NaN elsewhere

    @classmethod
    def like(cls, arena: Arena, policy: Any, device: torch.device) -> "Columns":
        """Columns for the rollout of an arena."""
        steps, envs = arena["raw"].shape

        def empty(like: np.ndarray, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch_dtype(like.dtype), device=device)
        stored = [(np.empty(0, leaf.dtype), leaf.shape) for leaf in policy.observer.layout.leaves]
        obs, final = ([empty(dtype, rows, envs, *shape) for dtype, shape in stored]
                      for rows in (steps + 1, steps))
        return cls(obs, final, *(empty(arena[name], *arena[name].shape)
                                 for name in cls._fields[2:]))


class DeviceVector:
    """A Simulator with the calls of a Serial: rollouts are on the device, their numbers here.

    After a rollout `COPIED`, some 30 bytes a step, are written into the arena. The simulator is
    seeded once; its episodes cannot be replayed, so a rollout that was interrupted begins again
    with new ones. The noise of actions is the device's own, a function of seed and rollout.
    In a step without info["final_obs"] the value of a truncated episode is that of its last
    observation but one, as in rsl_rl.
    """

    def __init__(self, env: Simulator, arena: Arena, policy: Any, seed: int):
        self.env, self.arena, self.policy, self.seed = env, arena, policy, seed
        if policy.memory:
            raise ConfigError("a simulator on a device trains no network with memory",
                              Set(rnn="none"))
        self.columns = Columns.like(arena, policy, env.device)
        self.steps, self.count = arena["raw"].shape
        if subspaces(env.single_action_space):
            raise SpaceError(f"a simulator has actions of the space {env.single_action_space},"
                             " which are several arrays",
                             "give it actions of one Box, Discrete or MultiDiscrete space")
        self.to_env = tensor_to_env(env.single_action_space, policy.actions.form, env.device)
        self.generator = torch.Generator(env.device)
        letters = [letter == "n" for letter in policy.head.noise]
        self.normal = torch.tensor(letters, dtype=torch.bool, device=env.device)
        self.kinds = {*letters}
        self.hold = policy.head.hold or self.steps
        EpisodeInfos(0).write(arena["infos"][0])  # none
        arena["same_game"].fill(False)
        arena["times"].fill(np.nan)  # a device does not say when it has computed what

    def warmup(self, steps: int) -> None:
        """See Serial.warmup."""
        self._begin_episodes(0, WARMUP_EPISODE)
        shape = self.count, self.policy.actions.size
        u, z = np.empty(shape, np.float32), np.empty(shape, np.float32)
        for t in range(steps):
            kernels.uniform(self.seed, Purpose.WARMUP, 0, 2 * t, u)
            kernels.normal(self.seed, Purpose.WARMUP, 0, 2 * t + 1, z)
            mask = self.policy.observer.mask(self._obs(t))
            legal = None if mask is None else mask.cpu().numpy()
            act = torch.from_numpy(self.policy.actions.random(u, z, legal)).to(self.env.device)
            write(self.columns.obs, t + 1, self.env.transition(self.to_env(act)).obs)

    def begin(self, resumed: ResumedEpisodes | None = None) -> list[int]:
        """Begins new episodes everywhere; returns the environments that were to be resumed."""
        self._begin_episodes(self.steps, resumed.step if resumed else 0)
        self.iteration, self.complete = None, False
        return list(range(self.count)) if resumed else []

    def rollout(self, iteration: int) -> None:
        """Fills the columns, then the arena; the same iteration again is done once."""
        if (iteration, True) == (self.iteration, self.complete):
            return
        if iteration == self.iteration:  # it was interrupted
            self._begin_episodes(self.steps, iteration * self.steps)
        self.iteration, self.complete = iteration, False
        self.generator.manual_seed(kernels.episode_seed(self.seed, Purpose.ACT, 0, iteration))
        with torch.no_grad():
            write(self.columns.obs, 0, [rows[-1] for rows in self.columns.obs])
            finals = [self._step(t) for t in range(self.steps)]
            self._check_finite()
            nxt = self._next_values(torch.tensor(finals, device=self.env.device)[:, None])
        for name in COPIED:
            self.arena[name][:] = getattr(self.columns, name).cpu().numpy()
        self.arena["nxt"][:] = nxt.cpu().numpy()
        self.complete = True

    def close(self) -> None:
        """Nothing: the code that made the simulator closes it."""

    def _begin_episodes(self, row: int, episode: int) -> None:
        """Resets all environments; their first observations go to a row of obs."""
        seed = kernels.episode_seed(self.seed, Purpose.ENV_SEED, 0, episode)
        write(self.columns.obs, row, self.env.first(seed))
        device = self.env.device
        self.returns = torch.zeros(self.count, dtype=torch.float64, device=device)
        self.lengths = torch.zeros(self.count, dtype=torch.int64, device=device)

    def _step(self, t: int) -> bool:
        """Takes step t and records it; True if the simulator gave the final observations."""
        columns = self.columns
        if t % self.hold == 0:
            self.noise = self._draw()
        params, val, _ = self.policy.step(self._obs(t), self.policy.initial_state(self.count))
        act, logp = self.policy.head.sample(params, self.noise)
        columns.act[t], columns.logp[t], columns.val[t] = act, logp, val
        found = self.env.transition(self.to_env(columns.act[t]))
        columns.raw[t], columns.term[t], columns.trunc[t] = found.rew, found.term, found.trunc
        write(columns.obs, t + 1, found.obs)
        if found.final is not None:
            write(columns.final, t, found.final)
        ended = found.term | found.trunc
        self.returns, self.lengths = self.returns + found.rew, self.lengths + 1
        columns.total[t] = self.returns
        columns.length[t] = self.lengths * ended
        self.returns, self.lengths = (x.masked_fill(ended, 0) for x in (self.returns, self.lengths))
        return found.final is not None

    def _next_values(self, finals: Tensor) -> Tensor:
        """The values f32 [t e] of true successors where an episode is truncated, and at the end.

        `finals`, bool [t 1], says for which steps the simulator gave the final observations.
        """
        columns, nxt = self.columns, torch.full_like(self.columns.val, torch.nan)
        running = ~(columns.term[-1] | columns.trunc[-1])
        nxt[-1] = torch.where(running, self._values([rows[-1] for rows in columns.obs]), torch.nan)
        truncated = columns.trunc & ~columns.term
        nxt = torch.where(truncated & ~finals, columns.val, nxt)
        if len(which := (truncated & finals).flatten().nonzero()[:, 0]):
            rows = [x.flatten(0, 1).index_select(0, which) for x in columns.final]
            self._check_final(rows, which)
            nxt.view(-1)[which] = self._values(rows)
        return nxt

    def _check_final(self, rows: list[Tensor], which: Tensor) -> None:
        """Raises EnvError if a number of final observations is not finite.

        `which`, i64 [n], has the place of each among the steps and environments [t * e].
        """
        for stored, x in zip(self.policy.observer.layout.leaves, rows):
            if x.is_floating_point() and not (good := x.isfinite().flatten(1).all(1)).all():
                t, e = divmod(int(which[~good][0]), self.count)
                with self.env.fault_in(f"info['final_obs'] of environment {e}, step {t} of a"
                                       " rollout"):
                    raise NonFiniteValue(f"a number of the {stored.leaf} is not finite")

    def _values(self, leaves: list[Tensor]) -> Tensor:
        return self.policy(self.policy.observer.layout.structure(leaves))[1]

    def _obs(self, t: int) -> Any:
        """The observations [e ...] of step t in the structure of their space."""
        return self.policy.observer.layout.structure([rows[t] for rows in self.columns.obs])

    def _draw(self) -> Tensor:
        """The noise [e k] of actions."""
        shape, how = (self.count, len(self.normal)), dict(
            generator=self.generator, device=self.env.device)
        if self.kinds == {True}:
            return torch.randn(shape, **how)
        uniform = torch.rand(shape, **how)
        return uniform if True not in self.kinds else \
            torch.where(self.normal, torch.randn(shape, **how), uniform)

    def _check_finite(self) -> None:
        """Raises EnvError or NonFiniteError if a number of the rollout is not finite."""
        columns = self.columns
        floats = [(f"the {stored.leaf}", rows) for stored, rows in zip(
            self.policy.observer.layout.leaves, columns.obs) if rows.is_floating_point()]
        named = [*floats, ("the rewards", columns.raw), ("log-probabilities", columns.logp)]
        good = torch.stack([rows.isfinite().all() for _, rows in named])
        if good.all():
            return
        name, rows = named[int((~good).nonzero()[0])]
        t, e, *_ = (~rows.isfinite()).nonzero()[0].tolist()
        if rows is columns.logp:
            raise NonFiniteError(f"the network's action parameters for environment {e} are not"
                                 f" finite, at step {t} of a rollout", "lower the learning rate")
        with self.env.fault_in(f"{name} of environment {e}, step {t} of a rollout"):
            raise NonFiniteValue(f"a number of it is not finite: {rows[t, e].tolist()}")


def write(places: list[Tensor], t: int, rows: list[Tensor]) -> None:
    """Writes rows [e ...] of each leaf to row t of its place."""
    for place, row in zip(places, rows, strict=True):
        place[t] = row
