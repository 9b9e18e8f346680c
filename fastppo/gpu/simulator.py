"""A simulator that steps all its environments at once, with tensors on one device.

What PPO takes as one is any object with `device`, `num_envs`, `single_observation_space`,
`single_action_space` and

    reset(seed=...)  -> (obs [e ...], info)
    step(act)        -> (obs [e ...], rewards [e], terminated [e], truncated [e], info)

as Isaac Lab's environments have them. It resets an environment within the step that ends its
episode; if info has "final_obs", those are the observations [e ...] before these resets. Actions
are tensors on the device; in a rollout, observations and actions never leave it. Arrays of other
libraries, such as JAX's, come without a copy by DLPack.
"""

from types import SimpleNamespace
from typing import Any, ContextManager, NamedTuple

import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from fastppo.envs import faults
from fastppo.errors import ConfigError, NonFiniteError, Set, SpaceError
from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose
from fastppo.machine.shared_memory import Arena
from fastppo.spaces.leaves import subspaces
from fastppo.spaces.observations import NonFiniteValue, ObservationLayout, StoredLeaf
from fastppo.spaces.tensor_actions import tensor_to_env, torch_dtype
from fastppo.stepping.environments import WARMUP_EPISODE
from fastppo.stepping.replay import ResumedEpisodes
from fastppo.stepping.rollout_recorder import write_infos

NEEDED = "num_envs", "single_observation_space", "single_action_space", "reset", "step"
COPIED = "logp", "val", "raw", "term", "trunc", "length", "total"


class Transition(NamedTuple):
    """The results of a step, tensors on the simulator's device."""

    obs: list[Tensor]  # the leaves [e ...], as stored
    rew: Tensor  # f32 [e]
    term: Tensor  # bool [e]
    trunc: Tensor  # bool [e]
    final: list[Tensor] | None  # leaves [e ...] of the observations before resets, if it has them


class Simulator(VectorEnv):
    """A simulator `env` as a VectorEnv; `transition` and `first` return checked tensors.

    Raises ConfigError for an object that is none, and EnvError for a fault. Checks wait for no
    device: they look at shapes, dtypes and devices, not at numbers.
    """

    def __init__(self, env: Any):
        if missing := [name for name in NEEDED if not hasattr(env, name)]:
            raise ConfigError(f"{type(env).__name__} has a device, as a simulator has, but no"
                              f" {missing[0]}", f"add {', '.join(missing)}, or remove `device`")
        self.env, self.num_envs = env, int(env.num_envs)
        self.simulator_name = type(env).__name__
        if str(env.device or "cpu").partition(":")[0] not in ("cpu", "cuda"):
            raise ConfigError(f"the simulator's device is {env.device!r}", "make it cpu or cuda")
        self.device = torch.empty(0, device=env.device or "cpu").device  # cuda is cuda:0
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.observation_space, self.action_space = (
            batch_space(space, self.num_envs)
            for space in (env.single_observation_space, env.single_action_space))
        given = getattr(env, "metadata", None) or {}
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, **given}
        if self.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise ConfigError(f"the simulator {self.simulator_name} has the autoreset mode"
                              f" {self.metadata['autoreset_mode']}", "reset an environment within"
                              " the step that ends its episode: AutoresetMode.SAME_STEP")
        self.layout = ObservationLayout(self.single_observation_space, self.single_action_space)
        self.starts = [None if leaf.counts is None else torch.from_numpy(leaf.start).to(self.device)
                       for leaf in self.layout.leaves]

    def first(self, seed: int) -> list[Tensor]:
        """Begins an episode in every environment; the leaves [e ...] of the observations."""
        with self.fault_in("reset()"):
            obs, _ = self.env.reset(seed=seed)
            return self._leaves(obs)

    def transition(self, act: Tensor) -> Transition:
        """Takes a step with actions [e ...]."""
        with self.fault_in("step()"):
            obs, rew, term, trunc, info = self.env.step(act)
            final = info.get("final_obs") if isinstance(info, dict) else None
            return Transition(
                self._leaves(obs), self._tensor(rew, "rewards", (self.num_envs,)).float(),
                self._flags(term, "terminations"), self._flags(trunc, "truncations"),
                None if final is None else self._leaves(final))

    def fault_in(self, field: str) -> ContextManager[None]:
        """Raises an EnvError that names the simulator and `field`."""
        return faults.fault_in(lambda: f"the simulator {self.simulator_name}", field,
                               "step the simulator alone to see it")

    def _leaves(self, obs: Any) -> list[Tensor]:
        return [self._stored(stored, start, stored.leaf.of(obs))
                for stored, start in zip(self.layout.leaves, self.starts)]

    def _stored(self, stored: StoredLeaf, start: Tensor | None, value: Any) -> Tensor:
        """A leaf [e ...] as the rollout stores it; choices count from 0."""
        x = self._tensor(value, str(stored.leaf), (self.num_envs, *stored.shape))
        if x.is_floating_point() and stored.dtype.kind != "f":
            raise ValueError(f"the {stored.leaf} is {x.dtype}, which {stored.dtype} does not keep")
        return x if start is None else x - start

    def _flags(self, value: Any, what: str) -> Tensor:
        if (x := self._tensor(value, what, (self.num_envs,))).is_floating_point():
            raise ValueError(f"the {what} are {x.dtype}, not bool")
        return x.bool()

    def _tensor(self, value: Any, what: str, shape: tuple[int, ...]) -> Tensor:
        if not hasattr(value, "__dlpack__"):
            raise ValueError(f"the {what}: {type(value).__name__}, not a tensor or an array")
        x = value.detach() if isinstance(value, Tensor) else torch.from_dlpack(value)
        if x.shape != shape or x.device != self.device:
            raise ValueError(f"the {what} is {list(x.shape)} on {x.device}, not {list(shape)} on"
                             f" {self.device}")
        return x


def as_simulator(env: Any) -> Any:
    """`env`, as a Simulator if it is an object with `device`, `step` and `reset`, but no class."""
    given = env is not None and not isinstance(env, (type, str, Simulator))
    has_all = all(hasattr(env, name) for name in ("device", "step", "reset"))
    return Simulator(env) if given and has_all else env


class DeviceVector:
    """A Simulator with the calls of a Serial: rollouts are on the device, their numbers here.

    `columns` are the rollout on the device, [t e ...], named as in the arena; of the observations,
    which have a row more, and of those before resets, `final`, they are lists of the leaves.
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
        self.steps, self.count = arena["raw"].shape

        def empty(dtype: np.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch_dtype(dtype), device=env.device)
        obs, final = ([empty(leaf.dtype, rows, self.count, *leaf.shape)
                       for leaf in policy.observer.layout.leaves]
                      for rows in (self.steps + 1, self.steps))
        self.columns = SimpleNamespace(obs=obs, final=final, **{
            name: empty(arena[name].dtype, *arena[name].shape) for name in ("act", *COPIED)})
        if subspaces(env.single_action_space):
            raise SpaceError(f"a simulator's actions are several arrays: {env.single_action_space}",
                             "give it actions of one Box, Discrete or MultiDiscrete space")
        self.to_env = tensor_to_env(env.single_action_space, policy.actions.bounds_map, env.device)
        self.generator = torch.Generator(env.device)
        self.normal = torch.tensor([letter == "n" for letter in policy.head.noise],
                                   dtype=torch.bool, device=env.device)
        self.noise_steps = policy.head.noise_steps or self.steps
        write_infos(arena["infos"][0], {})
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
        if t % self.noise_steps == 0:
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
            for x in rows:
                self._check_rows("info['final_obs']", x, which)
            nxt.view(-1)[which] = self._values(rows)
        return nxt

    def _values(self, leaves: list[Tensor]) -> Tensor:
        return self.policy(self.policy.observer.layout.structure(leaves))[1]

    def _obs(self, t: int) -> Any:
        """The observations [e ...] of step t in the structure of their space."""
        return self.policy.observer.layout.structure([rows[t] for rows in self.columns.obs])

    def _draw(self) -> Tensor:
        """The noise [e k] of actions."""
        shape, how = (self.count, len(self.normal)), dict(
            generator=self.generator, device=self.env.device)
        kinds = {*self.policy.head.noise}
        uniform = 0.0 if kinds == {"n"} else torch.rand(shape, **how)
        normal = torch.randn(shape, **how) if "n" in kinds else 0.0
        return torch.where(self.normal, normal, uniform)

    def _check_finite(self) -> None:
        """Raises EnvError or NonFiniteError if a number of the rollout is not finite."""
        for stored, rows in zip(self.policy.observer.layout.leaves, self.columns.obs):
            self._check_rows(f"the {stored.leaf}", rows.flatten(0, 1))
        self._check_rows("the rewards", self.columns.raw.flatten())
        if (at := first_bad(self.columns.logp.flatten())) is not None:
            raise NonFiniteError(f"the network's action parameters for environment"
                                 f" {at % self.count} are not finite, at step {at // self.count} of"
                                 " a rollout", "lower the learning rate")

    def _check_rows(self, name: str, rows: Tensor, places: Tensor | None = None) -> None:
        """Raises EnvError if a number of rows [n ...], of the simulator, is not finite.

        `places`, i64 [n], are those of the rows among the steps and environments [t * e], if others
        than 0, 1, ...
        """
        if (at := first_bad(rows)) is not None:
            t, e = divmod(at if places is None else int(places[at]), self.count)
            with self.env.fault_in(f"{name} of environment {e}, step {t} of a rollout"):
                raise NonFiniteValue("a number of it is not finite")


def first_bad(rows: Tensor) -> int | None:
    """The first of rows [n ...] with a number that is not finite; None if there is none."""
    good = rows.isfinite().reshape(len(rows), -1).all(1)
    return None if good.all() else int((~good).nonzero()[0])


def write(places: list[Tensor], t: int, rows: list[Tensor]) -> None:
    """Writes rows [e ...] of each leaf to row t of its place."""
    for place, row in zip(places, rows, strict=True):
        place[t] = row
