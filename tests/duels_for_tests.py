"""Games of a fixed length for tests: which game is an environment's n-th is known beforehand."""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

LENGTH = 5  # steps of a game


class Duel:
    """A parallel game of LENGTH steps; an agent is given its action and a random number.

    It sees its number, the step and a random number.
    """

    metadata = {"name": "duel"}
    possible_agents = ["ann", "bob", "cy"]

    def observation_space(self, agent):
        return Box(-9, 9, (3,), np.float32)

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.rng, self.now = np.random.default_rng(seed), 0
        self.agents = list(self.possible_agents)
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        acting, self.now = self.agents, self.now + 1
        rews = {agent: self._points(actions[agent]) + self.rng.integers(-1, 2) for agent in acting}
        over = dict.fromkeys(acting, self.now == LENGTH)
        seen = self._seen()
        self.agents = [] if self.now == LENGTH else acting
        return seen, rews, over, dict.fromkeys(acting, False), {agent: {} for agent in acting}

    def close(self):
        pass

    def _points(self, action):
        return float(action)

    def _seen(self):
        return {agent: np.array([k, self.now, self.rng.random()], np.float32)
                for k, agent in enumerate(self.agents)}


class Pair(Duel):
    """A Duel of two."""

    possible_agents = ["ann", "bob"]


class Reach(Pair):
    """A Pair, but an action is a vector."""

    def action_space(self, agent):
        return Box(-1, 1, (2,), np.float32)

    def _points(self, action):
        return float(np.round(abs(action).sum()))


class Fence(Duel):
    """A Duel in which some actions are illegal."""

    def observation_space(self, agent):
        return Dict(observation=super().observation_space(agent),
                    action_mask=Box(0, 1, (3,), np.int8))

    def step(self, actions):
        assert all(self.legal[agent][action] for agent, action in actions.items())
        return super().step(actions)

    def _seen(self):
        seen = super()._seen()
        self.legal = {agent: np.roll([1, 0, 1], self.rng.integers(3)).astype(np.int8)
                      for agent in seen}
        return {agent: dict(observation=one, action_mask=self.legal[agent])
                for agent, one in seen.items()}


class Board:
    """A game of two in turns, an AEC: who has put the larger numbers after 6 turns has won.

    A player sees what lies on the table, and may not put what the other one has just put.
    """

    metadata = {"name": "board"}
    possible_agents = ["ann", "bob"]
    played: list = []  # (player, legal actions, action) of all games of this process

    def observation_space(self, agent):
        return Dict(observation=Box(-1, 2, (6,), np.int8), action_mask=Box(0, 1, (3,), np.int8))

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents, self.table = list(self.possible_agents), []
        self.agent_selection = "ann"
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.infos = {agent: {} for agent in self.agents}

    def observe(self, agent):
        table = np.full(6, -1, np.int8)
        table[:len(self.table)] = self.table
        legal = np.ones(3, np.int8)
        legal[self.table[-1:]] = 0
        return dict(observation=table, action_mask=legal)

    def step(self, action):
        if self.terminations[self.agent_selection]:
            assert action is None
            self.agents.remove(self.agent_selection)
        else:
            legal = self.observe(self.agent_selection)["action_mask"]
            assert legal[action]
            self.played.append((self.agent_selection, np.flatnonzero(legal).tolist(), int(action)))
            self.table.append(int(action))
        if len(self.table) == 6:
            won = np.sign(sum(self.table[::2]) - sum(self.table[1::2]))
            self._cumulative_rewards = dict(ann=float(won), bob=float(-won))
            self.terminations = dict.fromkeys(self.possible_agents, True)
        if self.agents:
            self.agent_selection = self.agents[len(self.table) % len(self.agents)]

    def agent_iter(self):
        while self.agents:
            yield self.agent_selection

    def last(self):
        return self.observe(self.agent_selection), 0.0, False, False, {}

    def close(self):
        pass
