"""Games for tests: PettingZoo's interfaces for games, without the package."""

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete


class Scripted:
    """A game whose agents come and go by chance, drawn from its seed and the actions.

    An agent sees its number, the step, how often it has acted, and a random number. Each begins
    with a chance of 0.7, one that is not there yet appears with 0.2, and one that is there
    terminates with 0.1 and is truncated with 0.1. A game without agents is over, also if some have
    never come. Its reward depends on the action.
    """

    metadata = {"name": "scripted"}
    possible_agents = ["ann", "bob", "cy", "dee"]

    def __init__(self, longest=12):
        self.longest = longest

    def observation_space(self, agent):
        return Box(-99, 99, (4,), np.float32)

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.now, self.gone = 0, set()
        self.acted = dict.fromkeys(self.possible_agents, 0)
        self.agents = [agent for agent in self.possible_agents if self.rng.random() < 0.7]
        self.agents = self.agents or [self.possible_agents[-1]]
        return self._seen(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert [*actions] == self.agents, "an agent acts that is not there, or one does not"
        self.now += 1
        acting, rews, terms, truncs = self.agents, {}, {}, {}
        for agent in acting:
            self.acted[agent] += 1
            action = int(actions[agent])
            rews[agent] = float(action + self.rng.integers(3)) / 4
            terms[agent] = bool(self.rng.random() < 0.1 + 0.05 * action)
            truncs[agent] = bool(self.rng.random() < 0.1) or self.now >= self.longest
        ended = {agent for agent in acting if terms[agent] or truncs[agent]}
        self.gone |= ended
        born = [agent for agent in self.possible_agents if agent not in acting
                and agent not in self.gone and self.rng.random() < 0.2]
        self.agents = [agent for agent in self.possible_agents
                       if agent in acting and agent not in ended or agent in born]
        seen = self._seen({*acting, *born})
        return seen, rews, terms, truncs, {agent: {} for agent in seen}

    def close(self):
        pass

    def _seen(self, agents):
        return {agent: np.array([self.possible_agents.index(agent), self.now, self.acted[agent],
                                 self.rng.random()], np.float32)
                for agent in self.possible_agents if agent in agents}


class Uneven(Scripted):
    """Scripted, but an agent's observations and actions have a size of their own."""

    sizes = dict(ann=2, bob=5, cy=3, dee=4)

    def observation_space(self, agent):
        return Box(-99, 99, (4 + self.sizes[agent] % 3,), np.float32)

    def action_space(self, agent):
        return Discrete(self.sizes[agent])

    def step(self, actions):
        assert all(0 <= action < self.sizes[agent] for agent, action in actions.items())
        return super().step({agent: action % 3 for agent, action in actions.items()})

    def _seen(self, agents):
        return {agent: np.append(obs, np.full(self.sizes[agent] % 3, 7, np.float32))
                for agent, obs in super()._seen(agents).items()}


class Masked(Uneven):
    """Uneven, but some actions are illegal; an agent sees its mask beside its observation."""

    def observation_space(self, agent):
        return Dict(observation=super().observation_space(agent),
                    action_mask=Box(0, 1, (self.sizes[agent],), np.int8))

    def step(self, actions):
        assert all(self.legal[agent][action] for agent, action in actions.items())
        return super().step(actions)

    def _seen(self, agents):
        seen = super()._seen(agents)
        self.legal = {agent: (self.rng.random(self.sizes[agent]) < 0.5).astype(np.int8)
                      for agent in seen}
        for mask in self.legal.values():
            mask[self.now % len(mask)] = 1
        return {agent: dict(observation=obs, action_mask=self.legal[agent])
                for agent, obs in seen.items()}


class InfoMasked(Masked):
    """Masked, but the masks are in the infos."""

    def observation_space(self, agent):
        return Uneven.observation_space(self, agent)

    def reset(self, seed=None, options=None):
        return self._apart(super().reset(seed, options)[0])

    def step(self, actions):
        seen, *rest, _ = super().step(actions)
        obs, infos = self._apart(seen)
        return obs, *rest, infos

    def _apart(self, seen):
        return ({agent: one["observation"] for agent, one in seen.items()},
                {agent: dict(action_mask=one["action_mask"]) for agent, one in seen.items()})


class Central(Scripted):
    """Scripted, with a state of the whole game: the step, and who is there."""

    state_space = Box(0, 99, (5,), np.float32)

    def state(self):
        return np.array([self.now, *(agent in self.agents for agent in self.possible_agents)],
                        np.float32)


class Reaching(Scripted):
    """Scripted, but an action is a vector with a size of the agent's own."""

    sizes = dict(ann=1, bob=3, cy=2, dee=3)

    def action_space(self, agent):
        return Box(-1, 1, (self.sizes[agent],), np.float32)

    def step(self, actions):
        assert all(action.shape == (self.sizes[agent],) for agent, action in actions.items())
        return super().step({agent: abs(action).sum() % 3 for agent, action in actions.items()})


class Pictured(Scripted):
    """Scripted, but an agent sees a picture, which the game draws into the same array again."""

    def __init__(self, longest=12):
        super().__init__(longest)
        self.pictures = {agent: np.zeros((12, 9, 3), np.uint8) for agent in self.possible_agents}

    def observation_space(self, agent):
        return Box(0, 255, (12, 9, 3), np.uint8)

    def _seen(self, agents):
        seen = {agent: self.pictures[agent] for agent in self.possible_agents if agent in agents}
        for picture in seen.values():
            picture[:] = self.rng.integers(256, size=picture.shape)
        return seen


class Turns:
    """A game in turns, as an AEC; what happens is drawn from its seed and the actions.

    Whose turn is next is drawn, so that a player may come again at once, or never. Rewards come to
    anybody at any time, also with the reset. All that are left end together with 0.06, one
    terminates with 0.07, by its own turn more likely, and is truncated with 0.05. A player that has
    ended is removed by step(None), which comes before all other turns. It sees its number, how many
    turns there were, how many of its own, and a random number.
    """

    metadata = {"name": "turns"}
    possible_agents = ["ann", "bob", "cy"]
    chances = dict(ann=0.5, bob=0.35, cy=0.15)

    def __init__(self, longest=15):
        self.longest = longest

    def observation_space(self, agent):
        return Box(-99, 99, (4,), np.float32)

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        self.rng = np.random.default_rng(seed)
        self.now, self.turns = 0, dict.fromkeys(self.possible_agents, 0)
        self.agents = list(self.possible_agents)
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self._cumulative_rewards = {agent: self.rng.integers(3) / 4 for agent in self.agents}
        self.infos = {agent: {} for agent in self.agents}
        self._choose()

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            assert action is None, "a player acts after its end"
            for known in (self.terminations, self.truncations, self._cumulative_rewards,
                          self.infos):
                del known[agent]
            self.agents.remove(agent)
        else:
            self._cumulative_rewards[agent] = 0.0
            self._play(agent, int(action))
        self._choose()

    def observe(self, agent):
        return np.array([self.possible_agents.index(agent), self.now, self.turns[agent],
                         self.random], np.float32)

    def last(self):
        agent = self.agent_selection
        return (self.observe(agent), self._cumulative_rewards[agent], self.terminations[agent],
                self.truncations[agent], self.infos[agent])

    def agent_iter(self):
        while self.agents:
            yield self.agent_selection

    def close(self):
        pass

    def _play(self, agent, action):
        self.now += 1
        self.turns[agent] += 1
        over = self.rng.random() < 0.06
        for one in self.agents:
            if self.rng.random() < 0.4:
                self._cumulative_rewards[one] += float(action + self.rng.integers(-2, 3)) / 4
            chance = 0.07 + 0.05 * action * (one == agent)
            self.terminations[one] = bool(over or self.rng.random() < chance)
            self.truncations[one] = bool(self.rng.random() < 0.05) or self.now >= self.longest

    def _choose(self):
        self.random = self.rng.random()
        ended = [one for one in self.agents if self.terminations[one] or self.truncations[one]]
        if ended or self.agents:
            chances = np.array([self.chances[one] for one in ended or self.agents])
            self.agent_selection = str(self.rng.choice(ended or self.agents,
                                                       p=chances / chances.sum()))


class MaskedTurns(Turns):
    """Turns, but some actions are illegal, and a player sees its mask beside its observation."""

    def observation_space(self, agent):
        return Dict(observation=super().observation_space(agent),
                    action_mask=Box(0, 1, (3,), np.int8))

    def step(self, action):
        assert action is None or self.legal[action]
        super().step(action)

    def observe(self, agent):
        return dict(observation=super().observe(agent), action_mask=self.legal)

    def _choose(self):
        super()._choose()
        self.legal = (self.rng.random(3) < 0.5).astype(np.int8)
        self.legal[self.now % 3] = 1
        if self.agents and self.terminations[self.agent_selection]:
            self.legal = np.zeros(3, np.int8)


class InfoMaskedTurns(MaskedTurns):
    """MaskedTurns, but the mask is in the info."""

    def observation_space(self, agent):
        return Turns.observation_space(self, agent)

    def observe(self, agent):
        return Turns.observe(self, agent)

    def _choose(self):
        super()._choose()
        for info in self.infos.values():
            info["action_mask"] = self.legal
