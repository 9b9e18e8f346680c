"""Games played again by recorded actions in plain Python, and whether a rollout is what happened.

No code of fastppo computes it, but that of seeds.
"""

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
from asked_of_runs import assert_ratio_is_one

from fastppo import reference
from fastppo.machine.kernels import Purpose, episode_seed

NEAR = dict(rtol=1e-5, atol=1e-5)


class Step(NamedTuple):
    """What an agent that took part in a step saw before it and after, and was given."""

    obs: Any
    rew: float
    term: bool
    trunc: bool
    after: Any


class Ended(NamedTuple):
    """An agent, or a game, that has ended: its row, step of the rollout, return and length."""

    row: int
    t: int
    total: float
    length: int


class Definition:
    """Games played one after the other by recorded actions, with no code of fastppo but seeds."""

    in_turns = False

    def __init__(self, make, config, longest=np.inf):
        self.envs, self.seed = [make() for _ in range(config.num_envs)], config.seed
        self.names, self.longest = self.envs[0].possible_agents, longest
        self.begun = [0] * config.num_envs
        self.totals, self.counts = defaultdict(float), defaultdict(int)
        self.lengths, self.returns, self.seen = {}, {}, {}
        self.games = []  # (length, {agent: return}) of those that are over
        for g in range(config.num_envs):
            self.begin(g)

    def begin(self, g):
        """Begins the next game of number g: `seen` [row] is what the agents that act see."""
        seed = episode_seed(self.seed, Purpose.ENV_SEED, g, self.begun[g])
        self.begun[g] += 1
        self.lengths[g], self.returns[g] = 0, {}
        for agent, obs in self.envs[g].reset(seed=seed)[0].items():
            self.seen[self.row(g, agent)] = obs

    def row(self, g, agent):
        """The row of an agent of game g."""
        return g * len(self.names) + self.names.index(agent)

    def follow(self, act):
        """({(t, row): Step}, [Ended of agents]) of the actions [t rows] of a rollout."""
        steps, ended = {}, []
        for t, chosen in enumerate(act):
            for g in range(len(self.envs)):
                self.step(g, t, chosen, steps, ended)
        return steps, ended

    def step(self, g, t, chosen, steps, ended):
        """Step t of game g."""
        there = {agent: self.row(g, agent) for agent in self.names
                 if self.row(g, agent) in self.seen}
        obs, rews, terms, truncs, _ = self.envs[g].step(
            {agent: chosen[row] for agent, row in there.items()})
        self.lengths[g] += 1
        cut = self.lengths[g] >= self.longest
        for agent, row in there.items():
            over = truncs[agent] or cut
            steps[t, row] = Step(self.seen.pop(row), rews[agent], terms[agent], over, obs[agent])
            self.totals[row] += rews[agent]
            self.counts[row] += 1
            if terms[agent] or over:
                self.returns[g][agent] = self.totals.pop(row)
                ended.append(Ended(row, t, self.returns[g][agent], self.counts.pop(row)))
        for agent in [] if cut else self.envs[g].agents:
            self.seen[self.row(g, agent)] = obs[agent]
        if cut or not self.envs[g].agents:
            self.games.append((self.lengths[g], self.returns[g]))
            self.begin(g)


class Turnwise(Definition):
    """The same for games in turns. A Step is a turn, and what its player gets until its next one.

    `taken` {row: (t, observation) of its last turn} has those whose outcome is open; of one of an
    earlier rollout t is -1. A player takes part from its first turn on.
    """

    in_turns = True

    def begin(self, g):
        env, seed = self.envs[g], episode_seed(self.seed, Purpose.ENV_SEED, g, self.begun[g])
        self.taken = {} if not g and not self.begun[g] else self.taken
        self.begun[g] += 1
        self.lengths[g], self.returns[g] = 0, dict.fromkeys(self.names, 0.0)
        env.reset(seed=seed)
        self.seen[self.row(g, env.agent_selection)] = self.look(env, env.agent_selection)

    def look(self, env, agent):
        """What a player sees, with the mask that its info has."""
        seen, info = env.observe(agent), env.infos[agent]
        return {"obs": seen, **info} if info and not isinstance(seen, dict) else seen

    def follow(self, act):
        self.taken = {row: (-1, obs) for row, (_, obs) in self.taken.items()}
        return super().follow(act)

    def step(self, g, t, chosen, steps, ended):
        env, names = self.envs[g], self.names
        row = self.row(g, env.agent_selection)
        self.returns[g][names[row % len(names)]] += env.last()[1]
        self.taken[row] = t, self.seen.pop(row)
        self.counts.setdefault(row, self.lengths[g])
        env.step(chosen[row])
        self.lengths[g] += 1
        cut, outcomes = self.lengths[g] >= self.longest, []
        if cut:
            outcomes = [(agent, env._cumulative_rewards[agent], env.terminations[agent], True)
                        for agent in env.agents]
        for agent in () if cut else env.agent_iter():
            outcomes.append((agent, *env.last()[1:4]))
            if not (env.terminations[agent] or env.truncations[agent]):
                self.seen[self.row(g, agent)] = self.look(env, agent)
                break
            self.outcome(g, t, *outcomes.pop(), steps, ended)
            env.step(None)
        for outcome in outcomes:
            self.outcome(g, t, *outcome, steps, ended)
        if cut or not env.agents:
            self.games.append((self.lengths[g], self.returns[g]))
            self.begin(g)

    def outcome(self, g, t, agent, rew, term, trunc, steps, ended):
        """What a player has got until a turn of its own, or its end, after step t of the game."""
        row, over = self.row(g, agent), term or trunc
        if over:
            self.returns[g][agent] += rew
        if row in self.taken:
            at, obs = self.taken.pop(row)
            self.totals[row] += rew
            if at >= 0:
                steps[at, row] = Step(obs, rew, term, trunc, self.look(self.envs[g], agent))
            if over:
                ended.append(Ended(row, t, self.totals.pop(row),
                                   self.lengths[g] - self.counts.pop(row)))


def followed(ppo, make, rollouts, longest=np.inf):
    """(rollout, steps, ended, definition) of some iterations, with an update after each."""
    kind = Turnwise if hasattr(make, "agent_iter") else Definition
    definition = kind(make, ppo.config, longest)
    for _ in range(rollouts):
        rollout = ppo.collect()
        steps, ended = definition.follow(rollout.act.numpy())
        yield rollout, steps, ended, definition
        ppo.update(rollout)


def seen_by(row, obs, definition):
    """An observation as the policy gets it."""
    parts = obs if isinstance(obs, dict) else {"obs": obs}
    return {**parts, "agent": row % len(definition.names)}


def stretches(steps, row, count):
    """[[(t, Step), ...]] of a row: the steps of one agent after the other."""
    found = [[]]
    for t in range(count):
        if (t, row) in steps:
            found[-1].append((t, steps[t, row]))
            if steps[t, row].term or steps[t, row].trunc:
                found.append([])
    return [one for one in found if one]


def assert_advantages(ppo, rollout, steps, definition):
    """They are those of each agent's own steps alone, as if there were no others."""
    config, arrays = ppo.config, {name: getattr(rollout, name).numpy() for name in (
        "rew", "val", "nxt", "adv", "ret")}
    for row in range(rollout.valid.shape[1]):
        for stretch in stretches(steps, row, config.num_steps):
            at, last = [t for t, _ in stretch], stretch[-1][1]
            assert definition.in_turns or at == [*range(at[0], at[-1] + 1)]
            rew, val, nxt, adv, ret = (arrays[name][at, row] for name in arrays)
            own = [ppo.policy.value(seen_by(row, step.obs, definition)) for _, step in stretch]
            np.testing.assert_allclose(val, own, **NEAR)
            end = np.nan if last.term else ppo.policy.value(
                seen_by(row, last.after, definition))
            want = np.append(val[1:], end)
            np.testing.assert_allclose(nxt, want, **NEAR)
            flags = [np.array([getattr(step, name) for _, step in stretch])[:, None]
                     for name in ("term", "trunc")]
            found = reference.gae(rew[:, None], val[:, None], want[:, None], *flags, True,
                                  config.gamma, config.gae_lambda)[:, 0]
            np.testing.assert_allclose(adv, found, **NEAR)
            np.testing.assert_allclose(ret, found + val, **NEAR)


def assert_probabilities(ppo):
    """An update finds the probabilities with which the agents acted, in three iterations."""
    for _ in range(3):
        rollout = ppo.collect()
        if not ppo.policy.memory:
            assert_ratio_is_one(ppo, rollout)
            continue
        stats = ppo.update(rollout)
        assert stats["losses/clipfrac"] == 0 and abs(stats["losses/approx_kl"]) < 1e-5
        assert abs(stats["losses/old_approx_kl"]) < 1e-5


def assert_ends(ppo, ended):
    """Returns and lengths of the agents are those of the steps in which they took part."""
    length, total = ppo.arena["length"], ppo.arena["total"]
    assert {(t, row) for t, row in np.argwhere(length).tolist()} == {
        (one.t, one.row) for one in ended}
    for row, t, value, count in ended:
        assert (length[t, row], total[t, row]) == (count, value)


def assert_moments(observer, rows):
    """The moments of a policy are those of all `rows`; an agent's number has none."""
    count, mean, var = reference.moments(rows)
    assert observer.count.item() == count
    np.testing.assert_allclose(observer.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(observer.m2 / observer.count, var, rtol=1e-9)


def bits(ppo, rollout):
    """All that an iteration has left behind; what is no step is poison, and not compared."""
    valid, arrays = rollout.valid.numpy(), {}
    for name in ("act", "logp", "val", "raw", "rew", "nxt", "adv", "ret"):
        arrays[name] = getattr(rollout, name).numpy()[valid].tobytes()
    for name in ("obs", "term", "trunc", "valid", "state", "length", "total"):
        arrays[name] = ppo.arena[name].tobytes()
    past = ppo.collector.past
    return {**arrays, "numbers": ppo.episodes.stats(), "past": past and [
        past.ratings.tobytes(), ppo.arena["pool"].tobytes()], "step": ppo.step,
            "weights": [x.numpy().tobytes() for x in ppo.policy.state_dict().values()]}
