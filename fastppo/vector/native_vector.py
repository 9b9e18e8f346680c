"""Steps one vector environment: Gymnasium's own, or a simulator that steps all of them at once.

There are no workers: the main process acts for all environments. What an episode's end looks like
is the autoreset mode, metadata["autoreset_mode"]:

    NEXT_STEP  obs[t+1] is the final observation; row t+1 is the reset, not a step: it is not valid
    SAME_STEP  obs[t+1] is the reset's already; the final observation is in info["final_obs"]
    DISABLED   obs[t+1] is the final observation until we reset by a mask, in the same step
"""

from typing import Any, ContextManager, NamedTuple

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from fastppo.envs import faults
from fastppo.errors import ConfigError
from fastppo.machine import kernels
from fastppo.machine.shared_memory import Arena
from fastppo.spaces.leaves import fitting_array, is_batch, tree_map
from fastppo.spaces.observations import ObservationLayout
from fastppo.stepping.actors import Actor, RandomActor
from fastppo.stepping.environments import REWARD_MAX, WARMUP_EPISODE, checked_reward
from fastppo.stepping.replay import ResumedEpisodes
from fastppo.stepping.rollout_recorder import RolloutRecorder, RolloutViews, finite_scalars_of


class VectorState(NamedTuple):
    """The progress of a rollout; replaced as a whole, so an interrupt never sees half a step."""

    t: int  # the next step of the rollout
    start: np.ndarray  # i64 [e] first step of each running episode
    resetting: np.ndarray  # bool [e] the next step is the reset (NEXT_STEP)
    truncated: np.ndarray  # bool [e] of these, the ones whose truncation is not recorded yet


class NativeVector:
    """A vector environment with the calls of a Serial, writing the same arrays.

    It promises less than a Serial: `begin` seeds it once, and its episodes cannot be replayed. So
    an interrupt inside its own step truncates all running episodes, and new ones begin. Raises
    EnvError for a fault, and ConfigError for an unknown autoreset mode.
    """

    def __init__(self, env: VectorEnv, arena: Arena, actor: Actor, seed: int):
        self.env, self.arena, self.actor, self.seed = env, arena, actor, seed
        self.views = RolloutViews.of(arena, 0, env.num_envs)
        self.obs, self.count = list(self.views.obs), env.num_envs
        self.mode = parse_autoreset_mode(
            (env.metadata or {}).get("autoreset_mode"), f"the metadata of {env}")
        actor.next_step = self.mode is AutoresetMode.NEXT_STEP
        self.layout = ObservationLayout(env.single_observation_space, env.single_action_space)

    def warmup(self, steps: int) -> None:
        """See Serial.warmup."""
        self.begin(episode=WARMUP_EPISODE)
        actor = RandomActor(self.layout, self.obs, self.views.act, self.seed)
        self._run(WARMUP_EPISODE, actor, steps)

    def begin(self, resumed: ResumedEpisodes | None = None, episode: int = 0) -> list[int]:
        """Seeds and resets the environments, once for all their episodes; none can be resumed."""
        origin = resumed.step if resumed else 0
        self.recorder = RolloutRecorder(self.views, origin=origin)
        self.iteration, self.stepping = None, False
        self.state = self._new_episodes(0)
        # A resumed run gets other episodes than those of its first start.
        seed = kernels.episode_seed(self.seed, kernels.Purpose.ENV_SEED, 0, episode + origin)
        self.obs[-1][:] = self._stored(self._reset(seed=seed))
        return list(range(self.count)) if resumed else []

    def rollout(self, iteration: int) -> None:
        """Does what Serial.rollout does."""
        self.actor.start(iteration)
        self._run(iteration, self.actor, len(self.obs) - 1)

    def close(self) -> None:
        """Nothing: the code that made the vector environment closes it."""

    def _run(self, iteration: int, actor: Actor, steps: int) -> None:
        actor.to_env = actor.actions.to_batch()
        if self.iteration != iteration:
            self.recorder.start_rollout()
            self.state, self.iteration = self.state._replace(t=0), iteration
        if self.stepping:
            self._restart(actor)
        for t in range(self.state.t, steps):
            self._value_truncations(actor, t)
            actions = actor.act(t, range(self.count))
            self._finish_row(t, self.arena["val"][t])
            self._mark_resets(t)
            self._step(t, actions)
        self._value_truncations(actor, steps)
        actor.finish(steps)
        self._finish_row(steps, self.arena["nxt"][steps - 1])
        self.recorder.finish_rollout(steps)
        for name in ("act", "logp", "val", "raw", "nxt"):
            rows = self.arena[name]
            rows[~self.arena["valid"]] = np.nan if rows.dtype.kind == "f" else -1

    def _value_truncations(self, actor: Actor, t: int) -> None:
        """Tells the actor which environments step t - 1 truncated, before `fin` is overwritten."""
        if t:
            term, trunc, nxt = (self.arena[name][t - 1] for name in ("term", "trunc", "nxt"))
            for e in np.flatnonzero(trunc & ~term & np.isnan(nxt)).tolist():
                actor.truncated(t - 1, e)

    def _finish_row(self, t: int, val: np.ndarray) -> None:
        """Writes to row t - 1 what NEXT_STEP shows a step late; `val` [e] are values of obs[t]."""
        if t:
            truncated = self.state.truncated
            bootstrapped = truncated & ~self.views.term[t - 1]
            self.arena["nxt"][t - 1, bootstrapped] = val[bootstrapped]
            self.views.trunc[t - 1, truncated] = True

    def _mark_resets(self, t: int) -> None:
        """Marks row t as invalid for the environments that step t only resets."""
        self.arena["valid"][t, self.state.resetting] = False

    def _step(self, t: int, actions: Any) -> None:
        _, start, resetting, _ = self.state
        self.stepping, late = True, self.mode is AutoresetMode.NEXT_STEP
        with self._fault_in("step()"):
            obs, rew, term, trunc, info = self.env.step(actions)
        self.recorder.rewards[t] = self._rewards(rew, resetting)
        term = self._per_env(term, "its terminations").astype(bool)
        trunc = self._per_env(trunc, "its truncations").astype(bool)
        over = term | trunc  # an episode can be over with its reset: the next row resets again
        term, trunc = term & ~resetting, trunc & ~resetting
        ended, told = term | trunc, not info.keys() <= {"final_obs", "_final_obs"}
        for e in np.flatnonzero(ended).tolist():  # before a reset, which may change the info
            self.recorder.end(t, e, start[e], term[e], trunc[e] and not late,
                              finite_scalars_of(info, e) if told else {})
        self.obs[t + 1][:] = self._next_observations(obs, info, over, trunc & ~term)
        first_step = self.recorder.origin + t + (2 if late else 1)
        self.state = VectorState(t + 1, np.where(over, first_step, start), over & late,
                                 trunc & late)
        self.stepping = False

    def _next_observations(self, obs: Any, info: dict, ended: np.ndarray, truncated: np.ndarray
                           ) -> np.ndarray:
        """The observations [e ...] of the next row; `fin` gets the final ones not among them."""
        if self.mode is AutoresetMode.SAME_STEP:
            which = np.flatnonzero(truncated).tolist()
            with self._fault_in(f"info['final_obs'] of environments {which}"):
                final = info["final_obs"] if which else []
                self.views.fin[which] = self.layout.batch(
                    tree_map(lambda x: np.asarray(x)[which], final), len(which)) \
                    if is_batch(final) else self.layout.rows([final[e] for e in which])
            return self._stored(obs)
        rows = self._stored(obs, final=ended)
        if self.mode is AutoresetMode.DISABLED and ended.any():
            self.views.fin[ended] = rows[ended]
            first = self._reset(options={"reset_mask": ended.copy()})
            rows[ended] = self._stored(first, final=~ended)[ended]
        return rows

    def _restart(self, actor: Actor) -> None:
        """Truncates the running episodes after the last whole step, and begins new ones."""
        t, start, _, _ = self.state
        term, trunc, length, valid = (self.arena[n] for n in ("term", "trunc", "length", "valid"))
        if t:
            actor.finish(t)  # values the last observations, before the state is cleared
            running = valid[t - 1] & ~(term[t - 1] | trunc[t - 1])
            for e in np.flatnonzero(running).tolist():
                self.recorder.end(t - 1, e, start[e], False, True, {})
        else:
            self.recorder.returns = np.zeros(self.count)
        for rows, value in ((term, False), (trunc, False), (length, 0), (valid, True)):
            rows[t:] = value
        self.arena["state"][t] = 0.0
        self.obs[t][:] = self._stored(self._reset())
        self.state, self.stepping = self._new_episodes(t), False

    def _new_episodes(self, t: int) -> VectorState:
        """The state in which every environment begins an episode with step t of the rollout."""
        none = np.zeros(self.count, bool)
        return VectorState(t, np.full(self.count, self.recorder.origin + t), none, none)

    def _reset(self, **how: Any) -> Any:
        with self._fault_in("reset()"):
            obs, _ = self.env.reset(**how)
        return obs

    def _stored(self, obs: Any, final: np.ndarray | None = None) -> np.ndarray:
        """A batch of observations as rows [e ...] of the rollout buffer: a copy, checked.

        `final`, bool [e]: no action follows these, so every action counts as legal.
        """
        layout, store = self.layout, self.obs[0]
        with self._fault_in("its observations"), np.errstate(over="ignore"):
            rows = layout.batch(obs, self.count) if not layout.is_box else np.array(fitting_array(
                obs, "observation", store.shape, store.dtype), store.dtype, order="C")
        if layout.mask is not None and final is not None:
            layout.legal(rows)[final] = True
        if found := layout.unusable(rows):
            with self._fault_in(f"the observation of environment {found[0]}"):
                raise found[1]
        return rows

    def _rewards(self, rew: Any, resetting: np.ndarray) -> np.ndarray:
        """Rewards as f64 [e], 0 where the step was only a reset."""
        rew = np.where(resetting, 0.0, self._per_env(rew, "its rewards", np.float64))
        if not (good := np.abs(rew) <= REWARD_MAX).all():
            e = int(good.argmin())
            with self._fault_in(f"the reward of environment {e}"):
                checked_reward(rew[e])
        return rew

    def _per_env(self, values: Any, field: str, dtype: type | None = None) -> np.ndarray:
        """`values` as an array [e] of numbers."""
        with self._fault_in(field):
            array = np.asarray(values, dtype)
            if array.shape != (self.count,) or array.dtype.kind not in "biuf":
                raise ValueError(f"they are {array.dtype} of shape {array.shape}, not one number"
                                 f" for each of {self.count} environments")
            return array

    def _fault_in(self, field: str) -> ContextManager[None]:
        """Raises an EnvError that names the vector environment, the step and `field`."""
        return faults.fault_in(
            lambda: f"{self.env} (seed {self.seed}, rollout {self.iteration}, step {self.state.t})",
            field, "step the vector environment alone to see it")


def parse_autoreset_mode(mode: Any, where: str) -> AutoresetMode:
    """`mode`, found in `where`, as an autoreset mode; ConfigError if Gymnasium does not know it."""
    try:
        return AutoresetMode(mode)
    except ValueError as error:
        raise ConfigError(f"{where} has the autoreset mode {mode!r}, which Gymnasium does not know",
                          "take NEXT_STEP, SAME_STEP or DISABLED") from error
