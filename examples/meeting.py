"""A game of two agents, as a PettingZoo ParallelEnv: they meet, and both are rewarded.

    python examples/meeting.py
    python main.py --env_name=examples.meeting:Meeting --total_steps=100k
"""

import numpy as np
from gymnasium.spaces import Box, Discrete

from fastppo import PPO


class Meeting:
    """Two agents on a ring of 9 places see where both are, and step left, right, or not at all.

    Where they meet the game ends. It is truncated after 20 steps, and each step costs 0.1.
    """

    metadata = {"name": "meeting"}
    possible_agents = ["ann", "bob"]
    places = 9

    def observation_space(self, agent):
        return Box(0.0, 1.0, (2 * self.places,), np.float32)

    def action_space(self, agent):
        return Discrete(3)

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.steps = [*self.possible_agents], 0
        self.at = dict(zip(self.agents, self.rng.choice(self.places, 2, replace=False)))
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions):
        for agent, action in actions.items():
            self.at[agent] = (self.at[agent] + (0, 1, -1)[action]) % self.places
        self.steps += 1
        met, late = self.at["ann"] == self.at["bob"], self.steps == 20
        self.agents = [] if met or late else self.agents
        each = {agent: {} for agent in actions}
        return (self._seen(), dict.fromkeys(each, 1.0 if met else -0.1),
                dict.fromkeys(each, bool(met)), dict.fromkeys(each, late), each)

    def close(self):
        pass

    def _seen(self):
        def places_of(agent):
            return np.eye(self.places, dtype=np.float32)[self.at[agent]]
        ann, bob = map(places_of, self.possible_agents)
        return {"ann": np.concatenate([ann, bob]), "bob": np.concatenate([bob, ann])}


if __name__ == "__main__":
    with PPO(Meeting, seed=1, total_steps=100_000) as ppo:
        ppo.learn()
        print(ppo.evaluate(100))
