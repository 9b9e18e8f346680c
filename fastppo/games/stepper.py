"""Steps games of several agents, each of which is a row of the rollout.

An agent that ends has a terminal row, and none until its game is over; one that appears later
begins there. The rows in between are no steps: valid is false, and what they see are zeros.
"""

import math
import time
from typing import Any, Sequence

import numpy as np

from fastppo.envs.atari import GAME_LENGTH, GAME_RETURN, SAME_GAME
from fastppo.envs.games import Game
from fastppo.errors import EnvError
from fastppo.spaces.leaves import leaf_arrays
from fastppo.stepping import replay
from fastppo.stepping.actors import Actor
from fastppo.stepping.environments import RunningEpisode, checked_reward
from fastppo.vecenv import Serial


class Games(Serial):
    """A Serial whose environments are the seats of games: rows [g * n, (g + 1) * n) of game g.

    All rows of a game have its running episode; `born` [e] is the step with which a row's agent
    began. A game that fails is the fault of its first row.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.agents, count = len(self.envs[0].game.agents), len(self.envs)
        self.starts, self.born = range(0, count, self.agents), [0] * count
        self.limits = [seat.game.limit for seat in self.envs]
        absent = [np.zeros_like(x[0]) for x in leaf_arrays(self.writer.staging)]
        if self.layout.mask is not None:  # every action counts as legal
            absent[self.layout.mask][...] = 1
        self.absent = absent[0] if self.writer.plain else absent
        if (note := self.note) is not None:
            self.note = lambda step, e: note(step, e // self.agents)

    def number(self, e: int) -> int:
        """The number of row e's game in the run, which has the seeds of an environment."""
        return (self.first + e) // self.agents

    def receive(self, e: int, obs: Any, info: dict, begins: RunningEpisode | None = None,
                ended: bool = False) -> None:
        """Stores the observations, by row, with which the game of row e begins."""
        for row in range(e, e + self.agents):
            self._store(row, obs.get(row - e))
        self.envs[e].game.limit = min(self.limits[e], begins.limit)
        self.born[e:e + self.agents] = [begins.start] * self.agents
        self.running[e:e + self.agents] = [begins] * self.agents

    def _store(self, row: int, obs: Any) -> None:
        self.writer.slots[row][...] = self.absent if obs is None else self.writer.convert(obs)

    def _step(self, actor: Actor, t: int, group: range) -> None:
        """See Serial._step; all agents of a game act at once."""
        actions, progress = actor.act(t, group), self.progress
        for e in range(max(group.start, progress.done), group.stop, self.agents):
            progress.stepping = e
            self._step_game(actor, t, e, actions[e - group.start:][:self.agents])
        self.writer.copy(self.obs[t + 1], group)
        progress.done, progress.stepping = max(progress.done, group.stop), None

    def _step_game(self, actor: Actor, t: int, e: int, actions: Sequence[Any]) -> None:
        """Takes step t in the game of row e, and begins its next game if it is over."""
        game, part, rewards = self.envs[e].game, slice(e, e + self.agents), self.recorder.rewards[t]
        self.views.valid[t, part], rewards[part] = game.alive, 0.0
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
                self._store(row, None)
        for row in range(e, e + self.agents):
            if game.alive[row - e] and row not in turns:
                self.born[row] = self.now + 1
        if over:
            self.begin_next(e)

    def _restore(self, actor: Actor, e: int) -> None:
        """See Serial._restore, for the game of row e."""
        stop = self.recorder.origin + self.progress.t
        histories = [self.log.history(row, self.running[e], stop)
                     for row in range(e, e + self.agents)]
        replay_game(self, e, histories)
        self.progress.done = e + self.agents * (histories[0].start > stop)
        self.progress.stepping = None

    def resume_episode(self, e: int, resumed: replay.ResumedEpisodes) -> bool:
        """See replay.resume_episode, for the game of row e."""
        part = slice(e, e + self.agents)
        histories = resumed.histories[part]
        limit = self.new_episode(e, histories[0].number).limit
        if resumed.step - histories[0].start >= limit or histories[0].actions is None:
            return False
        for _ in range(2):  # the cause of a failure may have been outside
            try:
                totals = replay_game(self, e, histories, self.rules.replay_timeout)
                self.recorder.returns[part] = totals
                self.writer.copy(self.obs[-1], range(e, part.stop))
                return all(one.tobytes() == two.tobytes() for one, two in zip(
                    leaf_arrays(self.obs[-1][part]), leaf_arrays(resumed.obs[part])))
            except EnvError as error:
                replay.log.warning("a replay has failed: %s", error.what)
                if isinstance(error.__cause__, TimeoutError):
                    break
        return False


def replay_game(games: Games, e: int, histories: Sequence[replay.EpisodeHistory],
                seconds: float = math.inf) -> list[float]:
    """Plays the game of row e again by the actions of its rows; their returns until then.

    Raises EnvError as replay.replay_episode does.
    """
    number, start, first_number, first_start, actions, _ = histories[0]
    if actions is None:
        raise EnvError(f"game {games.number(e)} was interrupted when it was too long to be"
                       " replayed", "raise replay_limit")
    begun, game = time.monotonic(), games.envs[e].game
    games.begin_episode(e, games.new_episode(e, first_number)._replace(start=first_start))
    totals, alive = np.zeros(games.agents), game.alive
    to_env = games.actor.to_env
    for step, taken in enumerate(zip(*(to_env(one.actions) for one in histories)), first_start + 1):
        try:
            if time.monotonic() - begun > seconds:
                raise TimeoutError(f"its replay has taken more than {seconds:g} s")
            obs, turns = game.step(taken)
            for k, turn in turns.items():
                totals[k] = 0.0 if turn.term or turn.trunc else totals[k] + checked_reward(turn.rew)
        except BaseException as error:
            raise games.fault(e, "step()", error) from error
        for k in range(games.agents):
            if game.alive[k] and not alive[k]:
                games.born[e + k] = step
            games._store(e + k, obs.get(k) if game.alive[k] else None)
        alive = game.alive
    if not any(alive) or (games.running[e].number, games.running[e].start) != (number, start):
        raise games.fault(e, "step()", ValueError("in its replay the game ended at another step"))
    return totals


def game_info(game: Game) -> dict[str, float]:
    """The numbers of a game that is over: mean return of its agents, length, and their returns."""
    returns = {f"{agent}/return": total for agent, total in zip(game.agents, game.totals)
               if agent in game.ended}
    return {GAME_RETURN: sum(game.totals) / len(game.agents), GAME_LENGTH: float(game.steps),
            **returns}
