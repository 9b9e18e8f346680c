"""Evaluations of games, and the bundles of their faults."""

import numpy as np
import pytest
from games_for_tests import Scripted, Turns
from optional_packages import NEEDS_EXTENSION

from fastppo import PPO
from fastppo.errors import EnvError
from fastppo.machine.kernels import Purpose, episode_seed
from fastppo.runs.crash_bundle import read_bundle
from fastppo.spaces.leaves import AGENT, OBS_KEY

SETTINGS = dict(preset="none", seed=3, num_envs=3, num_steps=16, num_minibatches=2, epochs=1,
                hidden_sizes=(4,), total_steps=10**6, num_workers=0)


def returns_by_hand(ppo, seed):
    """{agent: return} and length of a game with the likeliest actions, without Environments."""
    game, totals, steps = Scripted(), {}, 0
    obs, _ = game.reset(seed=seed)
    while game.agents:
        rows = ppo.policy.observer.layout.rows([
            {AGENT: game.possible_agents.index(agent), OBS_KEY: obs[agent]}
            for agent in game.agents])
        actions, _ = ppo.policy.decide(rows, None, np.zeros((len(rows), 0), np.float32))
        obs, rews, *_ = game.step(dict(zip(game.agents, actions)))
        steps += 1
        for agent, rew in rews.items():
            totals[agent] = totals.get(agent, 0.0) + rew
    return totals, steps


def returns_of_turns_by_hand(ppo, seed):
    """The same of a game in turns: with what a player is given before its first one."""
    game, totals, steps = Turns(), {}, 0
    states = np.zeros((3, ppo.policy.memory), np.float32)
    game.reset(seed=seed)
    for agent in game.agent_iter():
        obs, rew, term, trunc, _ = game.last()
        totals[agent], action = totals.get(agent, 0.0) + rew, None
        if not (term or trunc):
            k = game.possible_agents.index(agent)
            rows = ppo.policy.observer.layout.rows([{AGENT: k, OBS_KEY: obs}])
            (action,), states[[k]] = ppo.policy.decide(rows, None, states[[k]])
            steps += 1
        game.step(action)
    return totals, steps


@pytest.mark.parametrize("make, by_hand, memory", [
    (Scripted, returns_by_hand, {}), (Turns, returns_of_turns_by_hand, {}),
    (Turns, returns_of_turns_by_hand, dict(rnn="gru", rnn_size=4))])
def test_the_return_of_a_game_is_the_mean_of_its_agents(make, by_hand, memory):
    with PPO(make, **SETTINGS | memory) as ppo:
        ppo.update(ppo.collect())
        found = ppo.evaluate(7)
        again = ppo.evaluate(7)
        assert found.returns.tolist() == again.returns.tolist()
        for k in range(7):
            totals, steps = by_hand(ppo, episode_seed(3, Purpose.EVALUATE, 0, k))
            assert found.returns[k] == pytest.approx(
                sum(totals.values()) / len(make.possible_agents))
            assert found.lengths[k] == steps


def test_sampled_actions_differ_between_agents_and_come_again():
    class Alike(Scripted):
        """All agents see the same, and act until the end; the reward is the action."""

        taken = []

        def reset(self, seed=None, options=None):
            super().reset(seed, options)
            self.agents = [*self.possible_agents]
            return dict.fromkeys(self.agents, np.zeros(4, np.float32)), {}

        def step(self, actions):
            self.now += 1
            Alike.taken.append(tuple(int(one) for one in actions.values()))
            over = self.now == 6
            self.agents = [] if over else self.agents
            zeros = dict.fromkeys(actions, np.zeros(4, np.float32))
            each = dict.fromkeys(actions, 0.5)
            return zeros, each, dict.fromkeys(actions, over), dict.fromkeys(actions, False), {}

    with PPO(Alike, **SETTINGS, agent_index=False) as ppo:
        taken = []
        for _ in range(2):
            Alike.taken.clear()
            ppo.evaluate(3, deterministic=False)
            taken.append([*Alike.taken])
    assert taken[0] == taken[1] and any(len(set(one)) > 1 for one in taken[0])


class Breaks(Scripted):
    """Fails where two agents are left after three steps."""

    def step(self, actions):
        if self.now >= 3 and len(self.agents) == 2:
            raise RuntimeError("two are left")
        return super().step(actions)


class BreaksInTurns(Turns):
    """Fails in its fourth turn, where two are left."""

    def step(self, action):
        if self.now >= 3 and len(self.agents) == 2 and action is not None:
            raise RuntimeError("two are left")
        super().step(action)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=NEEDS_EXTENSION)])
@pytest.mark.parametrize("norm_obs", [False, True])  # with a warm-up it fails there
@pytest.mark.parametrize("make", [Breaks, BreaksInTurns])
def test_a_bundle_has_the_actions_of_all_agents_and_its_replay_fails_again(
        command, monkeypatch, tmp_path, workers, norm_obs, make):
    monkeypatch.setattr("envs_for_tests.Under", make, raising=False)
    with PPO(make, **SETTINGS | dict(num_workers=workers), norm_obs=norm_obs,
             run_dir=str(tmp_path)) as ppo:
        with pytest.raises(EnvError, match="two are left") as caught:
            ppo.learn()
    place = caught.value.places[0]
    path = next(tmp_path.glob(f"fault-env{place.env}-*.bundle"))
    assert read_bundle(path).history.actions.shape == (
        place.step + 1, len(make.possible_agents))
    code, out, _ = command("replay", str(path), "--env_name=envs_for_tests:Under")
    assert code == 0 and f"step      {place.step}, with the action [" in out
    assert "again     environment" in out and "RuntimeError: two are left" in out
