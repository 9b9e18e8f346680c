"""Records a rollout: its rewards, and the returns, lengths and infos of episodes that end in it."""

from typing import NamedTuple

import numpy as np

from fastppo.envs.atari import continues_game
from fastppo.machine import kernels
from fastppo.machine.arena import Arena
from fastppo.stepping.frame_store import carry_frames, rows_by_step
from fastppo.stepping.infos import EpisodeInfos, finite_scalars


class RolloutViews(NamedTuple):
    """The arrays of a rollout that stepping reads and writes, for one slice of environments."""

    obs: np.ndarray  # [t+1 e ...], or [2 e ...]: see rows_by_step
    stacks: np.ndarray  # i64 [t+1 e k] see FrameStore; empty where each observation is stored whole
    act: np.ndarray  # [t e ...] as the policy chose it
    val: np.ndarray  # f32 [t e] value of obs[t]
    nxt: np.ndarray  # f32 [t e] value of the true successor, where an episode is truncated
    valid: np.ndarray  # bool [t e] false for rows that are no step
    raw: np.ndarray  # f32 [t e]
    term: np.ndarray  # bool [t e]
    trunc: np.ndarray  # bool [t e]
    total: np.ndarray  # f64 [t e] return of the episode until this step
    length: np.ndarray  # i64 [t e] its length in steps; 0 where none ended
    same_game: np.ndarray  # bool [t e] the episode that begins after it continues its game
    fin: np.ndarray  # [e ...] the last final observation
    frames: np.ndarray  # [e f ...] see FrameStore
    infos: np.ndarray  # u1 [bytes] see infos.py
    drawn: np.ndarray  # bool [3] see GlobalRngWatch

    @classmethod
    def of(cls, arena: Arena, first: int, last: int, worker: int = 0) -> "RolloutViews":
        """The views of environments [first, last), which `worker` steps."""
        return cls(*(arena[name][:, first:last] for name in cls._fields[:-4]),
                   arena["fin"][first:last], arena["frames"][first:last], arena["infos"][worker],
                   arena["drawn"][worker])


class RolloutRecorder:
    """The rewards of a slice of environments, and the record of the episodes that end.

    Steps are counted from 0; `origin` is the first step of the rollout. Returns are summed in
    float64 at the end of a rollout, so a step that is taken again after an interrupt counts once.
    """

    def __init__(self, views: RolloutViews, first: int = 0, origin: int = 0):
        self.views, self.infos = views, EpisodeInfos(first)
        self.rewards = np.zeros(views.raw.shape)  # f64 [t e] as the environments returned them
        self.origin, self.returns = origin, np.zeros(views.raw.shape[1])  # of episodes before it
        self.next_rollout = self.origin, self.returns

    def start_rollout(self) -> None:
        """Continues where the last rollout ended."""
        rows = rows_by_step(self.views.obs, len(self.rewards))
        rows[0][:] = rows[-1]
        carry_frames(self.views.frames, self.views.stacks)
        self.origin, self.returns = self.next_rollout
        self.infos.clear()

    def end(self, t: int, e: int, start: int, term: bool, trunc: bool, info: dict) -> None:
        """Records that the episode of environment e that began at step `start` ended in row t."""
        views = self.views
        views.term[t, e], views.trunc[t, e] = term, trunc
        views.length[t, e] = self.origin + t + 1 - start
        views.same_game[t, e] = again = continues_game(info)
        self.infos.add(t, e, {} if again else finite_scalars(info))  # those of games are shown

    def finish_rollout(self, steps: int) -> None:
        """Writes the rewards and returns of a rollout, and the infos of the episodes that ended."""
        views, rewards, returns = self.views, self.rewards[:steps], self.returns.copy()
        ended, total = views.length[:steps] > 0, np.empty_like(rewards)
        kernels.discounted(rewards, ended, 1.0, returns, total)
        views.raw[:steps], views.total[:steps] = rewards, total
        self.infos.write(views.infos)
        self.next_rollout = self.origin + steps, returns
