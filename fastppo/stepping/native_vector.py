"""Environments that come as one vector environment: Gymnasium's own, or a simulator's on the GPU.

No workers: the main process acts for all of them at once, by the compiled policy where it serves.
What an end looks like is the mode in `metadata["autoreset_mode"]`:

    NEXT_STEP  obs[t+1] is the final observation; row t+1 is no step but the reset: not valid
    SAME_STEP  obs[t+1] is the reset's already, the final observation is in info["final_obs"]
    DISABLED   obs[t+1] is the final observation until we reset by a mask, within the same step
"""

from typing import NamedTuple, Sequence

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from fastppo.envs import faults
from fastppo.envs.actions import ActionMapping
from fastppo.envs.observations import ObservationLayout
from fastppo.errors import ConfigError, EnvError, SpaceError
from fastppo.machine import kernels
from fastppo.machine.arena import POISON, Arena
from fastppo.machine.kernels import Purpose
from fastppo.stepping import checks
from fastppo.stepping.actors import Actor, RandomActor
from fastppo.stepping.episodes import WARMUP_EPISODE
from fastppo.stepping.infos import EpisodeInfos, finite_scalars_of


class VectorState(NamedTuple):
    """Where the environments stand; replaced whole, so that an interrupt never sees half a step."""

    t: int  # the next step of the rollout
    over: np.ndarray  # bool [e] ended, and the next step is the reset (NEXT_STEP)
    cut: np.ndarray  # bool [e] of these, those whose truncation is yet to be entered
    total: np.ndarray  # f64 [e] rewards and
    length: np.ndarray  # i64 [e] steps of the episodes under way


class NativeVector:
    """A vector environment behind the calls of a Serial, writing the same arrays of the arena.

    It promises less: it is seeded once, by `begin`; its past cannot be played again, so after an
    interrupt inside its own step all episodes under way count as truncated, and new ones begin.
    Raises ConfigError for an unknown autoreset mode.
    """

    def __init__(self, env: VectorEnv, arena: Arena, actor: Actor, seed: int):
        self.env, self.arena, self.actor, self.seed = env, arena, actor, seed
        self.rows, self.steps, self.count = list(arena["obs"]), len(arena["raw"]), env.num_envs
        self.mode = autoreset_mode(env)
        self.follow = {AutoresetMode.NEXT_STEP: self._wait, AutoresetMode.SAME_STEP: self._final,
                       AutoresetMode.DISABLED: self._reset_some}[self.mode]
        self.acts = ActionMapping(env.single_action_space)
        self.seen = ObservationLayout(env.single_observation_space, env.single_action_space)
        single = env.single_action_space.shape
        if single is not None and env.action_space.shape != (self.count, *single):
            raise SpaceError(f"{env} batches its actions as {env.action_space}",
                             "gymnasium.vector.utils.batch_space(single_action_space, num_envs)")
        self.stand, self.under_way, self.busy = self._fresh(0), None, False
        self.ends = EpisodeInfos()

    def warmup(self, steps: int) -> None:
        """See Serial.warmup."""
        self.begin(WARMUP_EPISODE)
        actor = RandomActor(self.seen, self.rows, self.seed, 0)
        self._run(WARMUP_EPISODE, actor, steps)

    def begin(self, episode: int = 0) -> None:
        """Seed and reset the environments, once for all their episodes."""
        seed = kernels.episode_seed(self.seed, Purpose.ENV_SEED, 0, episode)
        self.rows[-1][:] = self._free(self._observed(self._reset(seed=seed)))
        self.stand, self.under_way, self.busy = self._fresh(0), None, False

    def rollout(self, iteration: int) -> None:
        """Take T steps in every environment; the same iteration given again goes on with it."""
        self.actor.start(iteration)
        self._run(iteration, self.actor, self.steps)
        self.ends.tell(self.arena["infos"][0])

    def close(self) -> None:
        """Leave the vector environment to whoever made it (a Source closes its own)."""

    def _run(self, iteration: int, actor: Actor, steps: int) -> None:
        if iteration != self.under_way:
            self.rows[0][:] = self.rows[-1]
            self.ends.clear()
            self.stand, self.under_way = self.stand._replace(t=0), iteration
        if self.busy:
            self._start_anew()
        for t in range(self.stand.t, steps):
            self._cut(actor, t)
            actions = actor.act(t, range(self.count))
            self._settle(t, self.arena["val"][t])
            self._step(t, actions)
        self._cut(actor, steps)
        actor.finish(steps)
        self._settle(steps, self.arena["nxt"][steps - 1])

    def _cut(self, actor: Actor, t: int) -> None:
        """Tell the actor whom step t - 1 truncated: before the next one takes their `fin`."""
        if t and (trunc := self.arena["trunc"][t - 1]).any():
            term, nxt = self.arena["term"][t - 1], self.arena["nxt"][t - 1]
            for e in np.flatnonzero(trunc & ~term & np.isnan(nxt)):
                actor.cut(t - 1, e)

    def _settle(self, t: int, val: np.ndarray) -> None:
        """Enter what NEXT_STEP tells a step late: `val` [e], of the final observations obs[t]."""
        _, over, cut, _, _ = self.stand
        if t:
            nxt, trunc, term = (self.arena[n][t - 1] for n in ("nxt", "trunc", "term"))
            nxt[cut & ~term] = val[cut & ~term]
            trunc[cut] = True
            nxt[~self.arena["valid"][t - 1]] = np.nan
        if t < self.steps:
            self.arena["valid"][t, over] = False
            for name in ("act", "logp", "val", "nxt"):
                row = self.arena[name][t]
                row[over] = POISON[row.dtype.kind]

    def _step(self, t: int, actions: list) -> None:
        _, over, _, total, length = self.stand
        self.busy = True
        obs, rew, term, trunc, info = self._called("step", 5, self.acts.stacked(actions))
        rew = self._rewards(rew, over)
        term, trunc = (self._flags(flags) & ~over for flags in (term, trunc))
        ended, total, length = term | trunc, np.where(over, 0.0, total + rew), length + ~over
        late, obs = self.follow(self._observed(obs), term, trunc, info)
        self.rows[t + 1][:] = self._free(obs, ended & late)
        for name, row in (("raw", np.where(over, np.nan, rew)), ("term", term),
                          ("trunc", trunc & ~late), ("total", np.where(ended, total, np.nan)),
                          ("length", np.where(ended, length, 0))):
            self.arena[name][t] = row
        for e in np.flatnonzero(ended):
            self.ends.add(t, int(e), finite_scalars_of(info, e))
        self.stand = VectorState(t + 1, ended & late, trunc & late, np.where(ended, 0.0, total),
                           np.where(ended, 0, length))
        self.busy = False

    def _wait(self, obs, term, trunc, info) -> tuple[bool, np.ndarray]:
        return True, obs

    def _final(self, obs, term, trunc, info) -> tuple[bool, np.ndarray]:
        cut = np.flatnonzero(trunc & ~term)
        if len(cut):
            if "final_obs" not in info:
                raise EnvError(f"{self.env} truncated episodes without info['final_obs'], although"
                               f" its autoreset mode is {self.mode}", "mend the vector environment")
            self.arena["fin"][cut] = self._finals([info["final_obs"][e] for e in cut], cut)
        return False, obs

    def _reset_some(self, obs, term, trunc, info) -> tuple[bool, np.ndarray]:
        ended = term | trunc
        if ended.any():
            self.arena["fin"][ended] = obs[ended]
            first = self._observed(self._reset(options={"reset_mask": ended.copy()}))
            obs = obs.copy()
            obs[ended] = first[ended]
        return False, obs

    def _start_anew(self) -> None:
        """Cut every episode under way at the last whole step, and begin new ones."""
        t, total, length = self.stand.t, self.stand.total, self.stand.length
        obs, term, trunc, valid = (self.arena[n] for n in ("obs", "term", "trunc", "valid"))
        if t:
            cut = valid[t - 1] & ~(term[t - 1] | trunc[t - 1])
            self.arena["fin"][cut] = obs[t, cut]
            told = cut & (length > 0)
            self.arena["total"][t - 1, told] = total[told]
            self.arena["length"][t - 1, told] = length[told]
            trunc[t - 1, cut] = True
        valid[t:] = True
        self.rows[t][:] = self._free(self._observed(self._reset()))
        self.stand, self.busy = self._fresh(t), False

    def _fresh(self, t: int) -> VectorState:
        never = np.zeros(self.count, bool)
        return VectorState(t, never, never, np.zeros(self.count), np.zeros(self.count, np.int64))

    def _reset(self, **how):
        return self._called("reset", 2, **how)[0]

    def _called(self, name: str, count: int, *args, **kwargs) -> Sequence:
        """The `count` parts of what the vector environment's method `name` returns."""
        try:
            *parts, last = getattr(self.env, name)(*args, **kwargs)
            if len(parts) != count - 1:
                raise ValueError(f"{len(parts) + 1} values to unpack, expected {count}")
            return *parts, last
        except BaseException as error:
            raise self._fault(f"{name}()", error) from error

    def _observed(self, obs, which=None) -> np.ndarray:
        """`obs` [e ...] as stored, checked; `which` environments they are of (default: all)."""
        which, store = range(self.count) if which is None else which, self.rows[0]
        try:
            if not self.seen.is_box:
                return self.seen.batch(obs, len(which))
            rows = checks.checked_observation(obs, (len(which), *store.shape[1:]), store.dtype)
        except Exception as error:  # converting runs the environment's own code
            raise self._fault("its observations", error) from error
        with np.errstate(over="ignore"):
            rows = np.array(rows, store.dtype, order="C")
        if rows.dtype == np.float32 and (at := kernels.first_nonfinite(rows)) >= 0:
            e, place = divmod(at, max(1, rows[0].size))
            raise self._fault("an observation", ValueError(
                f"observation[{place}] of environment {which[e]} is {rows.reshape(-1)[at]}"))
        return rows

    def _free(self, rows: np.ndarray, over=False) -> np.ndarray:
        """`rows` [e], checked: something is legal, and all is where an episode is `over`."""
        if self.seen.mask is not None:
            self.seen.legal(rows)[over] = True
            if found := self.seen.unusable(rows):
                raise self._fault(f"the observation of environment {found[0]}", found[1])
        return rows

    def _finals(self, found: list, which: np.ndarray) -> np.ndarray:
        """Single observations of the environments `which` as stored, checked."""
        if self.seen.is_box:
            return self._observed(found, which)
        try:
            return self.seen.rows(found)
        except Exception as error:
            raise self._fault("its last observations", error) from error

    def _rewards(self, rew, over: np.ndarray) -> np.ndarray:
        try:
            rew = np.asarray(rew, np.float64)
            if rew.shape != (self.count,):
                raise ValueError(f"the rewards have shape {rew.shape}, not ({self.count},)")
            rew = np.where(over, 0.0, rew)
            if not (good := np.abs(rew) <= checks.REWARD_MAX).all():
                e = int(good.argmin())
                raise ValueError(f"that of environment {e} is {rew[e]}, not finite in float32")
        except Exception as error:
            raise self._fault("its rewards", error) from error
        return rew

    def _flags(self, flags) -> np.ndarray:
        flags = np.asarray(flags)
        if flags.shape != (self.count,) or flags.dtype.kind not in "biuf":
            raise self._fault("its ends", ValueError(f"they are {flags.dtype} of shape"
                                                     f" {flags.shape}, not bool ({self.count},)"))
        return flags.astype(bool)

    def _fault(self, field: str, error: BaseException) -> EnvError:
        where = f"{self.env} (seed {self.seed}, rollout {self.under_way}, step {self.stand.t})"
        return faults.env_error(where, field, error, "run the vector environment alone to see why")


def autoreset_mode(env: VectorEnv) -> AutoresetMode:
    """What `env` does where an episode ends; raises ConfigError where its metadata do not say."""
    mode = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise ConfigError(
            f"{env} has the autoreset mode {mode!r} in its metadata, which is none of Gymnasium's",
            "env.metadata = {**env.metadata, 'autoreset_mode': gymnasium.vector.AutoresetMode"
            ".NEXT_STEP}, or whichever it is") from error
