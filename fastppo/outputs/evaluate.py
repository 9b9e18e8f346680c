"""Plays episodes with a frozen policy: an exact number, the same ones every time."""

import math
from numbers import Integral
from typing import NamedTuple, Sequence

import numpy as np

from fastppo.envs import faults
from fastppo.envs.make import Factory, make_envs
from fastppo.errors import ConfigError
from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose
from fastppo.machine.noise import ActionNoise
from fastppo.networks.torch_state import isolated_rng, preserved_buffers
from fastppo.policy import Policy
from fastppo.stepping import checks

MAX_ENVS = 16  # played side by side


class Evaluation(NamedTuple):
    """Returns of whole episodes, undiscounted, as the environment gave them."""

    mean: float
    std: float  # over episodes, ddof 1; NaN for one
    ci95: float  # half the 95 % interval of the mean, normal approximation
    returns: np.ndarray  # f64 [episodes]
    lengths: np.ndarray  # i64 [episodes], steps

    def __str__(self) -> str:
        if len(self.returns) == 1:
            return f"{self.mean:.1f} (1 episode)"
        return f"{self.mean:.1f} ± {self.ci95:.1f} ({len(self.returns)} episodes)"


def evaluate(policy: Policy, factories: Sequence[Factory], seed: int, episodes: int,
             deterministic: bool = True) -> Evaluation:
    """Play episodes 0 .. episodes - 1 of the evaluation's own seeds in environments of its own.

    Environment i of n plays episodes i, i + n, ...: a fixed share, so that short episodes do not
    count more than long ones. Nothing of training is touched.
    """
    if not isinstance(episodes, Integral) or isinstance(episodes, bool) or episodes < 1:
        raise ConfigError(f"episodes is {episodes!r}, but must be a whole number, 1 or more",
                          "evaluate(episodes=100)")
    envs = make_envs(factories[:min(episodes, MAX_ENVS)])
    players = [EpisodePlayer(env, range(i, episodes, len(envs)), seed, policy)
               for i, env in enumerate(envs)]
    returns, lengths = np.zeros(episodes), np.zeros(episodes, np.int64)
    try:
        with preserved_buffers(policy.net), isolated_rng(seed, policy.observer.count.device):
            while active := [player for player in players if player.playing()]:
                rows, states = (np.concatenate([getattr(player, name) for player in active])
                                for name in ("row", "state"))
                noise = None if deterministic else np.concatenate([p.noise(policy) for p in active])
                actions, states = policy.decide(rows, noise, states)
                for player, action, state in zip(active, actions, states):
                    player.state = state[None]
                    player.step(action)
                    returns[player.episode], lengths[player.episode] = player.total, player.length
    finally:
        faults.close_all(envs)
    std = float(returns.std(ddof=1)) if episodes > 1 else math.nan
    half = 1.96 * std / math.sqrt(episodes)
    return Evaluation(float(returns.mean()), std, half, returns, lengths)


class EpisodePlayer:
    """One environment going through its share of the episodes; its faults are EnvErrors."""

    def __init__(self, env, episodes: range, seed: int, policy: Policy):
        self.env, self.left, self.seed, self.over = env, iter(episodes), seed, True
        self.seen, self.memory = policy.observer.layout, policy.memory

    def playing(self) -> bool:
        """Whether there is a step to take; begins the next episode where one is over."""
        if self.over:
            self.episode = next(self.left, None)
            if self.episode is None:
                return False
            self.over, self.total, self.length = False, 0.0, 0
            self.state = np.zeros((1, self.memory), np.float32)
            try:
                obs, _ = self.env.reset(seed=self._seed())
                self._see(obs)
            except BaseException as error:
                raise self._fault("reset()", error) from error
        return True

    def noise(self, policy: Policy) -> np.ndarray:
        """The random numbers [1 k] of this step of this episode."""
        noise, hold = ActionNoise(policy.head.noise, self.seed, self.episode + 1, 1), policy.head.hold
        return noise.at(self.length - self.length % hold if hold else 0, Purpose.EVALUATE)

    def step(self, action) -> None:
        """Take one step and count it."""
        try:
            obs, rew, term, trunc, _ = self.env.step(action)
            ends = checks.checked_flag(term, "terminated"), checks.checked_flag(trunc, "truncated")
            self.total, self.over = self.total + checks.checked_reward(rew), any(ends)
            self._see(obs)
        except BaseException as error:
            raise self._fault("step()", error) from error
        self.length += 1

    def _see(self, obs) -> None:
        """Keep an observation, as training would: ValueError for what its space does not say."""
        self.row = self.seen.rows([obs])
        if not self.over and (found := self.seen.unusable(self.row)):
            raise found[1]

    def _seed(self) -> int:
        return kernels.episode_seed(self.seed, Purpose.EVALUATE, 0, self.episode)

    def _fault(self, field: str, error: BaseException):
        where = f"evaluation, seed {self._seed()}, episode {self.episode}, step {self.length}"
        return faults.env_error(f"an environment ({where})", field, error,
                              f"play it alone: env.reset(seed={self._seed()})")
