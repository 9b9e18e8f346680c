"""Steps games of several agents, each of which is a row of the rollout.

An agent that ends has a terminal row, and none until its game is over; one that appears later
begins there. The rows in between are no steps: valid is false, and what they see are zeros. So are
the rows of an agent that waits for its turn; see settle_turns for what it is given then.
"""

import math
import time
from typing import Any, Callable, Sequence

import numpy as np

from fastppo.envs.atari import GAME_LENGTH, GAME_RETURN, SAME_GAME
from fastppo.envs.games import Game
from fastppo.errors import EnvError
from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose
from fastppo.machine.shared_memory import Arena
from fastppo.spaces.leaves import leaf_arrays
from fastppo.stepping.actors import Actor, LocalActor, Weights
from fastppo.stepping.environments import SNAPSHOTS, RunningEpisode, checked_reward
from fastppo.stepping.replay import EpisodeHistory
from fastppo.vecenv import Serial

POOL = "pool", "pool_mean", "pool_scale"  # arrays of the arena: parameters and moments [k ...]


class Games(Serial):
    """A Serial whose environments are the seats of games: rows [g * n, (g + 1) * n) of game g.

    All rows of a game have its running episode; `born` [e] is the step with which a row's agent
    began. A game that fails is the fault of its first row.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        agents = self.views.raw.shape[1] // len({seat.game for seat in self.envs})
        if any(len(seat.game.agents) != agents for seat in self.envs):
            raise EnvError(f"not every game has {agents} agents, as the first one has",
                           "make games of as many agents")
        self.born = [0] * len(self.envs)
        self.against = np.full(len(self.envs), -1, np.int8)  # of the running games
        self.limits = [seat.game.limit for seat in self.envs]
        absent = [np.zeros_like(x[0]) for x in leaf_arrays(self.writer.staging)]
        if self.layout.mask is not None:  # every action counts as legal
            absent[self.layout.mask][...] = 1
        self.absent = absent[0] if self.writer.plain else absent
        if (note := self.note) is not None:
            self.note = lambda step, e: note(step, e // self.agents)

    def begin(self, *args: Any, **kwargs: Any) -> list[int]:
        """See Serial.begin."""
        restarted = super().begin(*args, **kwargs)
        self._record_acting(-1, range(len(self.envs)))
        return restarted

    def _record_acting(self, t: int, group: range) -> None:
        """Records who acts in step t.

        An interrupt may make actors act again in a step in which some games have already ended.
        """
        part = slice(group.start, group.stop)
        self.views.against[t, part] = self.against[part]
        for e in range(group.start, group.stop, self.agents):
            self.views.acting[t, e:e + self.agents] = self.envs[e].game.alive

    def receive(self, e: int, obs: Any, info: dict, begins: RunningEpisode | None = None,
                ended: bool = False) -> None:
        """Stores the observations, by row, with which the game of row e begins."""
        for row in range(e, e + self.agents):
            self._store(row, obs.get(row - e))
        self.envs[e].game.limit = min(self.limits[e], begins.limit)
        self.born[e:e + self.agents] = [begins.start] * self.agents
        if self.rules.past:
            self.against[e:e + self.agents] = opponents(
                self.seed, self.rules.past, self.number(e), begins.number, self.agents)
        self.running[e:e + self.agents] = [begins] * self.agents

    def _store(self, row: int, obs: Any) -> None:
        self.writer.slots[row][...] = self.absent if obs is None else self.writer.convert(obs)

    def _step(self, actor: Actor, t: int, group: range) -> None:
        """See Serial._step."""
        actions, progress = actor.act(t, group), self.progress
        for e in range(max(group.start, progress.done), group.stop, self.agents):
            progress.stepping = e
            self._step_game(actor, t, e, actions[e - group.start:][:self.agents])
        self.writer.copy(self.obs[t + 1], group)
        self._record_acting(t + 1, group)
        progress.done, progress.stepping = max(progress.done, group.stop), None

    def _step_game(self, actor: Actor, t: int, e: int, actions: Sequence[Any]) -> None:
        """Takes step t in the game of row e, and begins its next game if it is over."""
        game, part, rewards = self.envs[e].game, slice(e, e + self.agents), self.recorder.rewards[t]
        self.views.valid[t, part], rewards[part] = game.alive, 0.0
        if self.rules.past:
            self.views.valid[t, part] &= self.views.against[t, part] < 0
        if self.note is not None:
            self.note(self.now - self.running[e].start, e)
        try:
            obs, turns = game.step(actions)
            turns = {e + k: self.checked(*turn) for k, turn in turns.items()}
            for k, seen in obs.items():
                self._store(e + k, seen)
        except BaseException as error:
            raise self.fault(e, "step()", error) from error
        over = not any(game.alive)
        ends = [row for row, (_, term, trunc) in turns.items() if term or trunc]
        for row, (rew, term, trunc) in turns.items():
            rewards[row] = rew
            if row in ends:
                self._record_end(actor, t, row, self.born[row], term, trunc, game_info(game)
                                 if over and row == ends[-1] else {SAME_GAME: True})
        for row, alive in enumerate(game.alive, e):
            if not alive:
                self._store(row, None)
            elif row not in turns:
                self.born[row] = self.now + 1
        if over:
            if self.rules.past:
                self._record_duel(t, e)
            self.begin_next(e)

    def _record_duel(self, t: int, e: int) -> None:
        """Records how the policy has done in a game against a snapshot."""
        against = self.views.against[t, e:e + self.agents].tolist()
        if max(against) >= 0:
            self.views.duels[t, e] = max(against), self.envs[e].game.score(against.index(-1))

    def play_again(self, e: int, histories: Sequence[EpisodeHistory], actor: Actor,
                   seconds: float = math.inf) -> Sequence[float]:
        """See Serial.play_again, for the game of row e."""
        return replay_game(self, e, histories, actor.to_env, seconds)


def opponents(seed: int, past: float, game: int, episode: int, agents: int) -> list[int]:
    """The snapshots that act in an episode of a game, by agent; -1: the policy itself.

    In a share `past` of the games these are all agents but one. It, and the snapshot, are drawn.
    """
    drawn = np.empty((1, 3), np.float32)
    kernels.uniform(seed, Purpose.PAST, game, max(episode, 0), drawn)
    share, own, snapshot = drawn[0].tolist()
    if share >= past or episode < 0:  # of the warm-up
        return [-1] * agents
    return [-1 if k == int(own * agents) else int(snapshot * SNAPSHOTS) for k in range(agents)]


def replay_game(games: Games, e: int, histories: Sequence[EpisodeHistory],
                to_env: Callable[[np.ndarray], list], seconds: float) -> Sequence[float]:
    """Plays the game of row e again by the actions of its rows; their returns until then.

    Raises EnvError as replay.replay_episode does.
    """
    number, start, first_number, first_start, actions, _ = histories[0]
    if actions is None:
        raise EnvError(f"game {games.number(e)} was interrupted when it was too long to be"
                       " replayed", "raise replay_limit")
    begun, game = time.monotonic(), games.envs[e].game
    games.begin_episode(e, games.new_episode(e, first_number)._replace(start=first_start))
    totals = np.zeros(games.agents)
    for step, taken in enumerate(zip(*(to_env(one.actions) for one in histories)), first_start + 1):
        try:
            if time.monotonic() - begun > seconds:
                raise TimeoutError(f"its replay has taken more than {seconds:g} s")
            obs, turns = game.step(taken)
            for k, turn in turns.items():
                totals[k] = 0.0 if turn.term or turn.trunc else totals[k] + checked_reward(turn.rew)
        except BaseException as error:
            raise games.fault(e, "step()", error) from error
        for k, alive in enumerate(game.alive):
            if alive and k not in turns:
                games.born[e + k] = step
            games._store(e + k, obs[k] if alive else None)
    if not any(game.alive) or (games.running[e].number, games.running[e].start) != (number, start):
        raise games.fault(e, "step()", ValueError("in its replay the game ended at another step"))
    return totals


def game_info(game: Game) -> dict[str, float]:
    """The numbers of a game that is over: mean return and length; those of its agents, and their
    means by role, which is an agent's name without its number.
    """
    rows: dict[str, list[int]] = {}
    for k, agent in enumerate(game.agents):
        if agent in game.ended:
            for name in dict.fromkeys((agent, f"{agent}".rstrip("_0123456789") or agent)):
                rows.setdefault(name, []).append(k)
    return {GAME_RETURN: sum(game.totals) / len(game.agents), GAME_LENGTH: float(game.steps)} | {
        f"{name}/{what}": float(np.mean([x[k] for k in own])) for name, own in rows.items()
        for what, x in (("return", game.totals), ("length", game.counts))}


class PastLocalActor(LocalActor):
    """A LocalActor in which snapshots act for their rows, see RolloutViews.against."""

    def __init__(self, arena: Arena, first: int, last: int, *rest: Any):
        super().__init__(arena, first, last, *rest)
        self.against, self.pool = arena["against"][:, first:last], [arena[name] for name in POOL]

    def start(self, iteration: int) -> None:
        """See LocalActor; reads the snapshots, too."""
        super().start(iteration)
        self.selves = [self.read(*parts) for parts in zip(*self.pool)]

    def act(self, t: int, group: range) -> list:
        """See LocalActor."""
        self.acting_now = rows_of_snapshots(self.against[t])
        return super().act(t, group)

    def sample(self, weights: Weights, obs: np.ndarray, noise: np.ndarray, act: np.ndarray,
               *outputs: np.ndarray) -> None:
        """See LocalActor."""
        super().sample(weights, obs, noise, act, *outputs)
        for k, rows in self.acting_now:
            chosen, *rest = act[rows], *(np.empty_like(x[:len(rows)]) for x in outputs)
            super().sample(self.selves[k], obs[rows], noise[rows], chosen, *rest)
            act[rows] = chosen


def rows_of_snapshots(against: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """(snapshot, its rows i64 [n]) of those that act, of `against` i8 [e]."""
    return [(k, np.flatnonzero(against == k)) for k in sorted({*against.tolist()} - {-1})]
