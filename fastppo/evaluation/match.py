"""Games between two policies, or between a policy and a random or human player."""

from typing import Any, Iterator, Sequence

import numpy as np

from fastppo.envs.make import Factory
from fastppo.errors import Error
from fastppo.evaluation.evaluate import EvaluationEnvs
from fastppo.networks.action_heads import Head
from fastppo.policy import Policy
from fastppo.spaces.actions import ActionMapping
from fastppo.spaces.leaves import leaf_arrays
from fastppo.spaces.observations import ObservationLayout


class MatchEnvs(EvaluationEnvs):
    """Games in which an agent acts by `policy`, each in turn, and all others by `opponent`.

    A return is that of the policy's agent, and `scores` are its, see Game.score.
    """

    def __init__(self, policy: Policy, factories: Sequence[Factory], seed: int, opponent: Any):
        super().__init__(policy, factories, seed)
        self.opponent = opponent
        self.others = np.zeros((len(self.envs), opponent.memory), np.float32)

    def begin(self, e: int, number: int) -> None:
        """See EvaluationEnvs."""
        self.others[e:e + self.agents] = 0.0
        super().begin(e, number)

    def decide(self, rows: np.ndarray, deterministic: bool) -> list[Any]:
        """See EvaluationEnvs."""
        own = rows % self.agents == [self.seat(row - row % self.agents) for row in rows]
        actions: dict[int, Any] = {}
        for player, states, part in ((self.policy, self.states, own),
                                     (self.opponent, self.others, ~own)):
            if part.any():
                found = self.decide_by(player, states, rows[part], deterministic)
                actions |= dict(zip(np.flatnonzero(part), found))
        return [actions[i] for i in range(len(rows))]

    def seat(self, e: int) -> int:
        """The place of the policy's agent in the game of row e."""
        return self.running[e].number % self.agents

    def steps(self, active: Sequence[int], deterministic: bool
              ) -> Iterator[tuple[int, float, bool]]:
        """See EvaluationEnvs; the reward of a game's last step is the return of the agent."""
        for e, _, over in super().steps(active, deterministic):
            game, seat = self.envs[e].game, self.seat(e)
            if over:
                self.scores[self.running[e].number] = game.score(seat)
                if isinstance(self.opponent, Person):
                    self.opponent.show(self.obs[[e + k for k in range(self.agents) if k != seat]])
            yield e, game.totals[seat] * over, over


class RandomPlayer:
    """Plays uniformly random legal actions, in place of a policy."""

    memory, head = 0, Head(0)

    def __init__(self, layout: ObservationLayout, seed: int):
        self.layout, self.actions = layout, ActionMapping(layout.act_space)
        self.rng = np.random.default_rng(seed)

    def decide(self, rows: np.ndarray, noise: Any, state: np.ndarray
               ) -> tuple[list[Any], np.ndarray]:
        """See Policy.decide."""
        shape = len(rows), self.actions.size
        act = self.actions.random(self.rng.random(shape, np.float32), self.rng.standard_normal(
            shape, np.float32), self.layout.legal(rows))
        return self.actions.to_env()(act), state


class Person(RandomPlayer):
    """Asks at the terminal for actions, in place of a policy."""

    def decide(self, rows: np.ndarray, noise: Any, state: np.ndarray
               ) -> tuple[list[Any], np.ndarray]:
        """See Policy.decide; Error where nothing more is typed."""
        chosen = []
        for row in rows[:, None]:
            mask = self.layout.legal(row)
            legal = range(self.actions.space.n) if mask is None else np.flatnonzero(mask)
            self.show(row)
            try:
                while (text := input(f"your action, of {' '.join(map(str, legal))}: ")) not in map(
                        str, legal):
                    pass
            except EOFError:
                raise Error("the input has ended before the game") from None
            chosen.append([int(text)])
        return self.actions.to_env()(np.array(chosen).reshape(-1, *self.actions.store.shape)), state

    def show(self, rows: np.ndarray) -> None:
        """Prints the first of some observations."""
        print("\n".join(board_text(x[:1]) for i, x in enumerate(leaf_arrays(rows))
                        if i != self.layout.mask and x[0].ndim), flush=True)


def board_text(planes: np.ndarray) -> str:
    """A board [1 h w 2], of one's own pieces, X, and the other's, O; others as they are."""
    if planes.ndim != 4 or planes.shape[3] != 2:
        return str(planes[0])
    marks = np.where(planes[0, :, :, 0] > 0, "X", np.where(planes[0, :, :, 1] > 0, "O", "."))
    return "\n".join(map(" ".join, marks))
