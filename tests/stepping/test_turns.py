"""Games in turns: what their definition in plain Python says."""

import pkgutil
from collections import defaultdict

import numpy as np
import pytest
import torch
from fault_envs import guard
from games_by_definition import (
    NEAR,
    Turnwise,
    assert_advantages,
    assert_ends,
    assert_moments,
    assert_probabilities,
    bits,
    followed,
    seen_by,
    stretches,
)
from games_for_tests import InfoMaskedTurns, MaskedTurns, Turns
from optional_packages import NEEDS_EXTENSION

from fastppo import PPO, reference
from fastppo.errors import ConfigError, EnvError
from fastppo.machine.kernels import Purpose, episode_seed
from fastppo.trainer.callbacks import rollout_collected
from fastppo.update.batches import flatten_rollout
from fastppo.update.epoch_transforms import make_epoch_transforms
from fastppo.workers import team

SETTINGS = dict(preset="none", seed=3, num_envs=3, num_steps=16, num_minibatches=2, epochs=1,
                hidden_sizes=(4,), total_steps=10**6, norm_rewards=True, num_workers=0, lr=0.01)
GAMES = dict(plain=Turns, masked=MaskedTurns, masks_of_infos=InfoMaskedTurns)
MEMORY = dict(rnn="gru", rnn_size=4)


@pytest.mark.some(3)
@pytest.mark.parametrize("longest", [np.inf, 5], ids=["free", "limit"])
@pytest.mark.parametrize("workers, acting", [
    (0, "local"), (0, "central"), pytest.param(2, "local", marks=NEEDS_EXTENSION),
    pytest.param(3, "central", marks=NEEDS_EXTENSION)])
@pytest.mark.parametrize("game", GAMES)
def test_a_rollout_is_what_the_games_played_again_by_its_actions_give(
        game, workers, acting, longest):
    limit = {} if longest == np.inf else {"max_episode_steps": longest}
    kinds, count, make = set(), 0, GAMES[game]
    with PPO(make, **SETTINGS | dict(num_workers=workers, acting=acting) | limit) as ppo:
        for rollout, steps, ended, definition in followed(ppo, make, 12, longest):
            assert_turns(rollout, steps, definition)
            assert_advantages(ppo, rollout, steps, definition)
            assert_ends(ppo, ended)
            count += len(steps)
            assert ppo.step == count
            kinds |= kinds_of(rollout, steps, ended)
    assert kinds == {"goes on", "term", "trunc", "both", "again at once", "waits", "ends waiting",
                     "ends by its turn", "open", "of an earlier rollout", "no turn"}


def assert_turns(rollout, steps, definition):
    """Rows are valid where a turn's outcome is known, and they are exactly that turn."""
    open_turns = {(t, row): obs for row, (t, obs) in definition.taken.items() if t >= 0}
    acting = rollout.acting.numpy()
    for (t, row), valid in np.ndenumerate(rollout.valid.numpy()):
        assert valid == ((t, row) in steps), (t, row)
        assert acting[t, row] == (valid or (t, row) in open_turns), (t, row)
        if valid:
            step = steps[t, row]
            assert rollout.raw[t, row] == np.float32(step.rew)
            assert (rollout.term[t, row], rollout.trunc[t, row]) == (step.term, step.trunc)
        obs = steps[t, row].obs if valid else open_turns.get((t, row))
        assert_seen(rollout, t, row, obs, definition)
    players = len(definition.names)
    assert (acting[:-1].reshape(len(acting) - 1, -1, players).sum(2) == 1).all()
    for row in range(acting.shape[1]):
        assert acting[-1, row] == (row in definition.seen)
        assert_seen(rollout, -1, row, definition.seen.get(row), definition)


def assert_seen(rollout, t, row, obs, definition):
    """A row has the observation of its player, or zeros and a mask of ones."""
    parts = obs if isinstance(obs, dict) else {"obs": obs}
    for name, found in rollout.obs.items():
        want = name == "action_mask" if obs is None else \
            parts.get(name, row % len(definition.names))
        np.testing.assert_array_equal(found[t, row], np.broadcast_to(want, found[t, row].shape))


def ended_by(step):
    return step.term or step.trunc


def kinds_of(rollout, steps, ended):
    """What happened in a rollout, by name: that a test has seen it."""
    acting, kinds = rollout.acting.numpy(), set()
    valid, turns = rollout.valid.numpy(), {row: -1 for row in range(acting.shape[1])}
    for (t, row), step in sorted(steps.items()):
        kinds.add({(0, 0): "goes on", (1, 0): "term", (0, 1): "trunc", (1, 1): "both"}[
            int(step.term), int(step.trunc)])
        if not ended_by(step):
            kinds.add("again at once" if acting[t + 1, row] else "waits")
        turns[row] = t
    for one in ended:
        last = max((t for t in range(one.t + 1) if acting[t, one.row]), default=-1)
        kinds.add("of an earlier rollout" if last < 0 else
                  "ends by its turn" if last == one.t else "ends waiting")
    kinds |= {"open"} if (acting[:-1] & ~valid).any() else set()
    return kinds | ({"no turn"} if not acting[:-1].any(0).all() else set())


def test_a_turn_that_is_open_at_the_end_of_a_rollout_counts_in_the_return_alone():
    """Its value is that to which the turn before leads; its reward is in no row that is valid."""
    given = trained = found = checked = 0.0
    with PPO(Turns, **SETTINGS | dict(num_steps=5)) as ppo:
        for rollout, steps, ended, definition in followed(ppo, Turns, 30):
            trained += rollout.raw.numpy()[rollout.valid.numpy()].sum()
            given += sum(one.total for one in ended)
            length = ppo.arena["length"]
            found += ppo.arena["total"][length > 0].sum()
            for row, (t, _) in definition.taken.items():
                before = max((at for at, r in steps if r == row), default=-1)
                if t >= 0 <= before and not ended_by(steps[before, row]):
                    assert rollout.nxt[before, row] == rollout.val[t, row]
                    checked += 1
    assert found == pytest.approx(given) and abs(given - trained) > 0.2
    assert checked > 10


def test_rewards_are_normalised_by_the_returns_of_valid_turns_alone():
    carry, seen = defaultdict(float), []
    with PPO(Turns, **SETTINGS) as ppo:
        for rollout, steps, ended, _ in followed(ppo, Turns, 4):
            ends = {(one.t, one.row) for one in ended}
            for t, row in np.ndindex(rollout.valid.shape):
                if (t, row) in steps:
                    carry[row] = ppo.config.gamma * carry[row] + steps[t, row].rew
                    seen.append(carry[row])
                if (t, row) in ends:
                    carry[row] = 0.0
            valid = rollout.valid.numpy()
            want = rollout.raw.numpy() / np.sqrt(np.var(seen) + 1e-8)
            np.testing.assert_allclose(rollout.rew[valid], np.clip(want, -10, 10)[valid], rtol=1e-5)


class Watched(Turns):
    """Turns, which notes what the player of each turn has seen."""

    acted_on: list = []

    def step(self, action):
        if action is not None:
            self.acted_on.append(self.observe(self.agent_selection))
        super().step(action)


@pytest.mark.some(1)
@pytest.mark.parametrize("workers", [0, pytest.param(3, marks=NEEDS_EXTENSION)])
def test_moments_are_of_turns_that_were_trained_on_after_the_random_rollout(workers, monkeypatch):
    monkeypatch.setattr(Watched, "acted_on", [])
    with PPO(Watched, norm_obs=True, **SETTINGS) as ppo:
        ppo.collect()
    rows = [np.array(Watched.acted_on[:16 * 3])]
    with PPO(Turns, norm_obs=True, **SETTINGS | dict(num_workers=workers)) as ppo:
        for _, steps, _, _ in followed(ppo, Turns, 3):
            assert_moments(ppo.policy.observer, rows)
            rows.append(np.array([step.obs for step in steps.values()]))
        assert_moments(ppo.policy.observer, rows)


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("rnn", ["none", "gru", "lstm", "mingru"])
def test_the_update_finds_the_probabilities_with_which_the_players_acted(rnn, game):
    memory = {} if rnn == "none" else {"rnn": rnn, "rnn_size": 4}
    with PPO(GAMES[game], **SETTINGS | memory | dict(num_minibatches=1)) as ppo:
        assert_probabilities(ppo)


@pytest.mark.some(2)
@pytest.mark.parametrize("workers", [0, 1, pytest.param(2, marks=NEEDS_EXTENSION)])
def test_memory_is_carried_over_waits_and_zero_where_a_game_begins(workers):
    """It is what predict() gives for a player's turns alone, and values are seen with it."""
    states, kinds = {}, set()
    with PPO(Turns, **SETTINGS | MEMORY | dict(num_workers=workers)) as ppo:
        for rollout, steps, ended, definition in followed(ppo, Turns, 4):
            ends = {(one.t, one.row) for one in ended}
            turns = {at: step.obs for at, step in steps.items()} | {
                (t, row): obs for row, (t, obs) in definition.taken.items() if t >= 0}
            for t, row in np.ndindex(rollout.valid.shape):
                state = states.get(row)
                np.testing.assert_allclose(rollout.state[t, row], np.zeros(8) if state is None else
                                           np.ravel(state), **NEAR)
                if (t, row) in turns:
                    kinds.add(state is None)
                    _, states[row] = ppo.policy.predict(
                        {"obs": turns[t, row], "agent": row % 3}, state=state)
                if (t, row) in ends:
                    del states[row]
    assert kinds == {True, False}


def test_the_value_of_a_truncation_has_the_memory_of_its_player():
    checked = 0
    with PPO(Turns, **SETTINGS | MEMORY) as ppo:
        for rollout, steps, _, _ in followed(ppo, Turns, 6):
            for row in range(9):
                for (t, step), *_ in (one[::-1] for one in stretches(steps, row, 16)):
                    if step.term:
                        continue
                    rows = ppo.policy.observer.layout.rows
                    _, state = ppo.policy.predict({"obs": step.obs, "agent": row % 3},
                                                  state=rollout.state[t, row].numpy()[None])
                    value = ppo.policy.values(rows([{"obs": step.after, "agent": row % 3}]),
                                              np.atleast_2d(state))
                    np.testing.assert_allclose(rollout.nxt[t, row], value[0], **NEAR)
                    checked += step.trunc
    assert checked > 10


def test_metrics_count_games_and_have_all_that_a_player_was_given():
    with PPO(Turns, **SETTINGS) as ppo:
        for rollout, _, _, one in followed(ppo, Turns, 8):
            rollout_collected(ppo, rollout)
            definition = one
        stats, games = ppo.episodes.stats(), definition.games
    assert stats["charts/episodes"] == len(games) and 20 < len(games) < 100
    assert stats["charts/episodic_length"] == np.mean([length for length, _ in games])
    means = {f"env/{agent}/return": np.mean([returns[agent] for _, returns in games])
             for agent in Turns.possible_agents}
    shown = {name: value for name, value in stats.items() if name.endswith("/return")}
    assert shown == pytest.approx(means)
    assert stats["charts/episodic_return"] == pytest.approx(np.mean([*means.values()]))


@pytest.mark.parametrize("settings", [
    dict(learner="torch"), pytest.param(dict(learner="kernel"), marks=NEEDS_EXTENSION),
    dict(norm_values=True, epochs=2, recompute_advantages=True),
    dict(norm_advantages="rollout", num_minibatches=5)], ids=str)
def test_every_way_to_learn_takes_turns(settings):
    with PPO(Turns, **SETTINGS | settings) as ppo:
        for rollout, steps, _, definition in followed(ppo, Turns, 4):
            assert_turns(rollout, steps, definition)
            assert_advantages(ppo, rollout, steps, definition)
        assert torch.cat([x.reshape(-1) for x in ppo.policy.parameters()]).isfinite().all()


def test_advantages_are_recomputed_by_the_values_of_turns_alone():
    checked = 0
    with PPO(Turns, **SETTINGS | dict(recompute_advantages=True, lr=0.1)) as ppo:
        rollout, config = ppo.collect(), ppo.config
        definition = Turnwise(Turns, config)
        steps, _ = definition.follow(rollout.act.numpy())
        ppo.update(rollout)
        recompute, = make_epoch_transforms(config, ppo.policy)
        batch = recompute(rollout, flatten_rollout(rollout), 0, 1)
        adv, ret = (np.full(rollout.valid.shape, np.nan, np.float32) for _ in range(2))
        adv[rollout.valid], ret[rollout.valid] = batch.adv, batch.ret
        for row in range(9):
            for stretch in stretches(steps, row, 16):
                at, (_, last) = [t for t, _ in stretch], stretch[-1]
                val = np.array([ppo.policy.value(seen_by(row, one.obs, definition))
                                for _, one in stretch])
                end = rollout.nxt[at[-1], row].item() if last.term or last.trunc else \
                    ppo.policy.value(seen_by(row, last.after, definition))
                flags = ([getattr(one, name) for _, one in stretch] for name in ("term", "trunc"))
                columns = (np.array(x)[:, None] for x in (
                    rollout.rew.numpy()[at, row], val, [*val[1:], end], *flags))
                want = reference.gae(*columns, True, config.gamma, config.gae_lambda)[:, 0]
                np.testing.assert_allclose(adv[at, row], want, rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(ret[at, row], want + val, rtol=1e-4, atol=1e-5)
                checked += (abs(val - rollout.val[at, row].numpy()) > 1e-3).sum()
    assert checked > 20


class Faulty(Turns):
    """Turns, but a fault is added to the steps of one game, from the third turn on."""

    def __init__(self, seed, fault):
        super().__init__()
        self.bad, self.fault, self.gone = seed, fault, []

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.failing, self.gone = seed == self.bad, []

    def step(self, action):
        chosen = self.agent_selection
        self.gone += [chosen] * (action is None)
        super().step(action)
        if self.failing and self.now >= 3:
            self.fault(self, chosen)

    def observe(self, agent):
        return self.seen if hasattr(self, "seen") else super().observe(agent)


def selects_a_stranger(game, _):
    game.agent_selection = "zoe"


def has_a_stranger(game, _):
    game.agents.append("zoe")


def rewards_a_stranger(game, _):
    game._cumulative_rewards["zoe"] = 1.0


def brings_back(game, _):
    for agent in game.gone[:1]:
        game.agents.append(agent)
        for known in (game.terminations, game.truncations, game._cumulative_rewards):
            known[agent] = 0
        game.infos[agent], game.agent_selection = {}, agent


def removes_nobody(game, chosen):
    if chosen in game.gone:
        game.agents, game.agent_selection = [*game.agents, chosen], chosen


def leaves(game, chosen):
    game.agents = [agent for agent in game.agents if agent != chosen]
    if game.agent_selection == chosen and game.agents:
        game.agent_selection = game.agents[0]


def all_leave(game, _):
    game.agents = []


def not_a_number(game, chosen):
    game._cumulative_rewards = dict.fromkeys(game._cumulative_rewards, np.nan)


def no_number(game, chosen):
    game._cumulative_rewards = dict.fromkeys(game._cumulative_rewards, "much")


def no_flag(game, chosen):
    game.truncations = dict.fromkeys(game.truncations, "no")


def another_shape(game, _):
    game.seen = np.zeros(3, np.float32)


def not_seen(game, _):
    game.seen = None


def no_info(game, _):
    game.infos.clear()


def broken(game, _):
    raise RuntimeError("a wheel came off")


@pytest.mark.parametrize("workers", [
    0, pytest.param(2, marks=[NEEDS_EXTENSION, pytest.mark.full])])
@pytest.mark.parametrize("fault, said", [
    (selects_a_stranger, "zoe is not one of the possible_agents"),
    (has_a_stranger, "zoe is not one of the possible_agents"),
    (rewards_a_stranger, "zoe is not one of the possible_agents"),
    (brings_back, "(ann|bob|cy) is in the game again after its end"),
    (removes_nobody, "(ann|bob|cy) is in the game again after its end"),
    (leaves, "(ann|bob|cy) has left the game, but neither terminated nor truncated"),
    (all_leave, "(ann|bob|cy) has left the game, but neither terminated nor truncated"),
    (not_a_number, "the reward is nan, not finite"), (no_number, "'much'"),
    (no_flag, "truncated is 'no', not True or False"), (another_shape, r"has shape \(3,\)"),
    (not_seen, "observation"), (no_info, "KeyError"),
    (broken, "RuntimeError: a wheel came off")])
def test_what_an_aec_must_not_do_is_an_error_with_its_place(fault, said, workers):
    seed = episode_seed(3, Purpose.ENV_SEED, 2, 2)
    makers = [Turns, Turns, lambda: Faulty(seed, fault)]
    with guard(120), PPO(makers, **SETTINGS | dict(num_workers=workers, norm_obs=False)) as ppo:
        with pytest.raises(EnvError, match=f"(?s).*{said}") as caught:
            for _ in range(9):
                ppo.update(ppo.collect())
    place, = caught.value.places
    assert (place.env, place.episode) == (2, 2) and place.step >= 2
    where = f"{'worker 1, ' if workers else ''}seed {seed}, episode 2, step {place.step}"
    assert f"environment 2 ({where}) failed in step()" in str(caught.value)


@NEEDS_EXTENSION
@pytest.mark.full
def test_a_game_that_fails_twice_in_a_worker_is_truncated_before_that_turn(monkeypatch):
    class Cut(Turnwise):
        def step(self, g, *args):
            self.longest = 2 if g == 2 and self.begun[2] == 2 else np.inf
            super().step(g, *args)
    monkeypatch.setattr(team, "PAUSES", (0.0, 0.0, 0.0))
    seed = episode_seed(3, Purpose.ENV_SEED, 2, 1)
    makers = [Turns, Turns, lambda: Faulty(seed, broken)]
    settings = SETTINGS | dict(num_workers=2, on_worker_failure="restart", norm_obs=False)
    with PPO(makers, **settings) as ppo:
        definition = Cut(Turns, ppo.config)
        for _ in range(3):
            ppo.learn(ppo.step + 1)
            steps, ended = definition.follow(ppo.rollout.act.numpy())
            assert_turns(ppo.rollout, steps, definition)
            assert_ends(ppo, ended)
        assert ppo.collector.vec.restarts.count == 2 and definition.begun[2] > 2


def test_a_game_of_one_player_is_any_environment():
    class Solo(InfoMaskedTurns):
        possible_agents = ["bob"]
    with PPO(Solo, **SETTINGS) as ppo:
        definition = Turnwise(Solo, ppo.config)
        for _ in range(3):
            rollout = ppo.collect()
            steps, _ = definition.follow(rollout.act.numpy())
            assert rollout.valid.all() and len(steps) == 16 * 3
            for (t, row), step in steps.items():
                np.testing.assert_array_equal(rollout.obs["obs"][t, row], step.obs["obs"])
                assert rollout.raw[t, row] == np.float32(step.rew)
                assert (rollout.term[t, row], rollout.trunc[t, row]) == (step.term, step.trunc)
            ppo.update(rollout)
        assert (ppo.config.agents, ppo.config.rows) == (1, 3)


def test_an_aec_whose_agents_act_at_once_has_a_parallel_form():
    class AtOnce(Turns):
        metadata = {"name": "rush", "is_parallelizable": True}
    with pytest.raises(ConfigError, match="(?s)rush is the AEC of a game whose agents act at once"
                                          ".*fix: .*rush.parallel_env"):
        PPO(AtOnce, **SETTINGS)


def test_an_aec_without_agents_after_its_reset_is_an_error():
    class Nobody(Turns):
        def reset(self, seed=None, options=None):
            super().reset(seed, options)
            self.agents = []
    with PPO(Nobody, **SETTINGS) as ppo:
        with pytest.raises(EnvError, match=r"failed in reset\(\).*the game has no agents"):
            ppo.collect()


def test_a_turn_without_a_legal_action_is_an_error():
    class Stuck(MaskedTurns):
        def _choose(self):
            super()._choose()
            self.legal = self.legal * (self.now != 4)
    with PPO(Stuck, **SETTINGS) as ppo:
        with pytest.raises(EnvError, match="(?s)the action mask forbids every action.*api_test"):
            for _ in range(9):
                ppo.update(ppo.collect())


CLASSIC = {"connect_four-v3": "pygame", "tictactoe-v3": "pygame", "go-v5": "pygame",
           "chess-v6": "chess", "leduc_holdem-v4": "rlcard", "texas_holdem-v4": "rlcard",
           "texas_holdem_no_limit-v6": "rlcard", "hanabi-v5": "pyspiel"}  # and what it needs


@pytest.mark.packages
@pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision lowered")
@pytest.mark.parametrize("name", CLASSIC)
def test_a_classic_game_is_trained_as_it_is_played_by_its_own_interface(name):
    pytest.importorskip(CLASSIC[name])
    registry, found = pytest.importorskip("pettingzoo").aec_registry, []
    make = pkgutil.resolve_name(registry[f"classic/{name}"].entry_point)
    settings = SETTINGS | dict(num_envs=2, num_steps=40, norm_obs=False, max_episode_steps=50)
    for workers in (0, 2):
        with PPO(f"classic/{name}", **settings | dict(num_workers=workers)) as ppo:
            definition = Turnwise(make, ppo.config, 50)
            found.append([])
            for _ in range(2):
                rollout = ppo.collect()
                steps, ended = definition.follow(rollout.act.numpy())
                assert_turns(rollout, steps, definition)
                assert_ends(ppo, ended)
                ppo.update(rollout)
                found[-1].append({**bits(ppo, rollout), "numbers": None})
            assert definition.games and ppo.evaluate(2).lengths.min() > 0
    assert found[0] == found[1]
