"""Rollout views and episode statistics of a slice of environments."""

from typing import NamedTuple

import numpy as np

from fastppo.machine import kernels
from fastppo.machine.arena import Arena
from fastppo.stepping.infos import EpisodeInfos, finite_scalars

WARMUP_EPISODE = -1  # training's episodes are 0, 1, 2, ...; those before it count down


class RolloutViews(NamedTuple):
    """The arrays a Serial writes, all over one slice of environments."""

    obs: np.ndarray  # [t+1 e ...]
    fin: np.ndarray  # [e ...]
    raw: np.ndarray  # f32 [t e]
    term: np.ndarray  # bool [t e]
    trunc: np.ndarray  # bool [t e]
    total: np.ndarray  # f64 [t e]: return of the episode that ended at this step
    length: np.ndarray  # i64 [t e]: its length in steps; 0 where none ended
    infos: np.ndarray  # u1 [bytes]: see infos.py
    drawn: np.ndarray  # bool [3]: see contract.GlobalNoise

    @classmethod
    def of(cls, arena: Arena, first: int, last: int, slot: int = 0) -> "RolloutViews":
        """The environments [first, last) of an arena's arrays, and the slot of their process."""
        return cls(arena["obs"][:, first:last], arena["fin"][first:last],
                   *(arena[name][:, first:last] for name in cls._fields[2:-2]),
                   arena["infos"][slot], arena["drawn"][slot])


class EpisodeClock(NamedTuple):
    """An environment's episode under way; replaced whole, once the next one has begun."""

    episode: int
    start: int  # its first step, counted since `begin`,
    last: int  # and the one at which a time limit that we keep ourselves cuts it


class EpisodeRecorder:
    """The episodes of a slice: clocks, rewards as answered, and what is entered where one ends.

    `origin` is the rollout's first step. Nothing is added up step by step, so every line may be run
    again after an interrupt: returns are summed when the rollout is over.
    """

    def __init__(self, views: RolloutViews, first: int):
        self.views, self.ends = views, EpisodeInfos(first)
        self.rewards = np.empty(views.raw.shape)  # f64 [t e], the environments' own numbers
        self.begin()

    def begin(self) -> None:
        """Every environment will begin an episode at step 0."""
        envs = self.rewards.shape[1]
        self.clocks = [EpisodeClock(0, 0, 0)] * envs
        # after: the next rollout's origin, and what episodes under way then have returned.
        self.origin, self.after = 0, (0, np.zeros(envs))

    @property
    def first_episodes_over(self) -> bool:
        """Whether every environment has ended an episode since `begin`."""
        return all(clock.episode > 0 for clock in self.clocks)

    def open(self) -> int:
        """A rollout begins where the last one ended; returns the oldest step of its episodes."""
        self.origin, self.carry = self.after
        self.ends.clear()
        return min(clock.start for clock in self.clocks)

    def end(self, t: int, e: int, term: bool, trunc: bool, info) -> None:
        """Enter that the episode of environment e ended at step t."""
        views = self.views
        views.term[t, e], views.trunc[t, e] = term, trunc
        views.length[t, e] = self.origin + t + 1 - self.clocks[e].start
        self.ends.add(t, e, finite_scalars(info))

    def close(self, steps: int) -> None:
        """Enter all rewards of a rollout, the returns of the episodes that ended, their infos."""
        rewards, ended = self.rewards[:steps], self.views.length[:steps] > 0
        total, carry = np.empty_like(rewards), self.carry.copy()
        kernels.discounted(rewards, ended, 1.0, carry, total)
        self.views.raw[:steps] = rewards
        np.copyto(self.views.total[:steps], total, where=ended)
        self.ends.tell(self.views.infos)
        self.after = self.origin + steps, carry
