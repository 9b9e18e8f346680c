"""Games between two policies, a policy and a random player, and a policy and a person."""

import io
import json
from functools import partial

import numpy as np
import pytest
from duels_for_tests import Board, Duel, Fence, Pair, Reach
from scipy.stats import binomtest

from fastppo import PPO, load, reference
from fastppo.cli.eval import score_lines
from fastppo.evaluation.evaluate import evaluate
from fastppo.evaluation.match import MatchEnvs, RandomPlayer
from fastppo.machine.kernels import Purpose, episode_seed

SETTINGS = dict(preset="none", num_envs=4, num_steps=16, num_minibatches=2, epochs=2, lr=0.05,
                hidden_sizes=(4,), total_steps=10**6, num_workers=0)
LSTM, GRU = dict(rnn="lstm", rnn_size=3), dict(rnn="gru", rnn_size=4)


def trained(make, seed, **settings):
    """A PPO after some updates."""
    ppo = PPO(make, **SETTINGS | settings, seed=seed)
    for _ in range(4):
        ppo.update(ppo.collect())
    return ppo


@pytest.fixture
def two(request):
    """Two PPOs of a game, with some settings each."""
    make, *settings = getattr(request, "param", (Board, {}, {}))
    found = [trained(make, seed, **own) for seed, own in enumerate(settings)]
    yield make, *found
    for ppo in found:
        ppo.close()


def game_by_hand(make, policies, number, sampled):
    """(score, return, length) of the first policy in game `number` of seed 5, without Environments.
    """
    env, steps = make(), 0
    seat, totals = number % len(env.possible_agents), dict.fromkeys(env.possible_agents, 0.0)
    players = [policies[k != seat] for k in range(len(totals))]
    states = [np.zeros((1, one.memory), np.float32) for one in players]
    obs, _ = env.reset(seed=episode_seed(5, Purpose.EVALUATE, 0, number)) or (None, None)

    def action_of(agent, seen):
        k = env.possible_agents.index(agent)
        parts = {**(seen if isinstance(seen, dict) else {"obs": seen}), "agent": k}
        noise, letters = None, players[k].head.noise
        if sampled:
            draw = {"u": reference.uniform, "n": reference.normal}
            at = 5, Purpose.EVALUATE, number * len(players) + k + 1, steps, (1, len(letters))
            noise = np.float32(np.where([x == "u" for x in letters], draw["u"](*at),
                                        draw["n"](*at)))
        (action,), states[k] = players[k].decide(
            players[k].observer.layout.rows([parts]), noise, states[k])
        return action

    while env.agents:
        if obs is None:  # in turns
            agent = env.agent_selection
            over = env.terminations[agent]
            env.step(None if over else action_of(agent, env.observe(agent)))
            steps += not over
            totals.update(env._cumulative_rewards)
            continue
        obs, rews, *_ = env.step({agent: action_of(agent, obs[agent]) for agent in env.agents})
        steps += 1
        for agent, rew in rews.items():
            totals[agent] += rew
    own, *others = sorted(totals.items(), key=lambda one: one[0] != env.possible_agents[seat])
    other = np.mean([total for _, total in others])
    return (0.5 if own[1] == other else float(own[1] > other)), own[1], steps


@pytest.mark.some(4)
@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("two", [
    (Board, {}, {}), (Duel, {}, {}), (Fence, LSTM, {}), (Board, GRU, LSTM), (Reach, {}, GRU),
    (Reach, dict(distribution="gaussian"), dict(distribution="beta"))], indirect=True, ids=[
        "turns", "three", "masked memory", "memories", "box", "distributions"])
def test_a_match_is_its_games_played_by_hand(two, sampled):
    make, a, b = two
    policies = a.policy, b.policy
    found = evaluate(a.policy, a.source.evaluation_factories()[:2], 5, 8, not sampled,
                     make=partial(MatchEnvs, opponent=b.policy))
    want = [game_by_hand(make, policies, number, sampled) for number in range(8)]
    assert found.scores.tolist() == [score for score, _, _ in want]
    np.testing.assert_allclose(found.returns, [total for _, total, _ in want])
    assert found.lengths.tolist() == [length for _, _, length in want]
    if sampled:
        assert len({*found.returns}) > 1


class Counting(RandomPlayer):
    """Remembers how often it has acted in a game."""

    memory, seen = 1, []

    def decide(self, rows, noise, state):
        self.seen += state[:, 0].tolist()
        return super().decide(rows, noise, state)[0], state + 1


def test_an_opponent_forgets_the_games_before(monkeypatch):
    monkeypatch.setattr(Counting, "seen", [])
    with PPO(Duel, **SETTINGS, seed=1) as ppo:
        evaluate(ppo.policy, ppo.source.evaluation_factories()[:2], 5, 8, make=partial(
            MatchEnvs, opponent=Counting(ppo.policy.observer.layout, 1)))
    assert sorted(Counting.seen) == sorted([*range(5)] * 2 * 8)


def test_a_random_player_takes_legal_actions_alone_and_each_as_often():
    with PPO(Fence, **SETTINGS, seed=1) as ppo:
        layout = ppo.policy.observer.layout
        masks = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 0]], np.int8)
        rows = layout.rows([dict(observation=np.zeros(3, np.float32), action_mask=mask, agent=0)
                            for mask in masks])
        player, count = RandomPlayer(layout, 1), np.zeros((3, 3))
        again = RandomPlayer(layout, 1).decide(rows, None, np.zeros((3, 0)))[0]
        for i in range(3_000):
            actions, _ = player.decide(rows, None, np.zeros((3, 0)))
            assert i or actions == again
            count[range(3), actions] += 1
    assert (count[masks == 0] == 0).all() and count[2, 1] == 3_000
    for n, p in ((count[0], 1 / 3), (count[1, ::2], 1 / 2)):
        assert (abs(n - 3_000 * p) < 5 * np.sqrt(3_000 * p * (1 - p))).all()


GAME = "--env_name=duels_for_tests:Board"


@pytest.fixture
def saved(two, tmp_path, monkeypatch):
    """The files of two policies, in the current folder."""
    monkeypatch.chdir(tmp_path)
    for name, ppo in zip("ab", two[1:]):
        ppo.save(tmp_path / f"{name}.safetensors")
    return "a.safetensors", "b.safetensors"


def test_eval_plays_against_another_policy_or_a_random_player(command, saved):
    a, b = saved
    for opponent in ("random", b):
        argv = "eval", a, f"--opponent={opponent}", "--episodes=20", "--seed=5", GAME
        code, out, err = command(*argv, "--json")
        told = json.loads(out)
        assert (code, err) == (0, "") and told["episodes"] == len(told["scores"]) == 20
        assert told["lengths"] == [6] * 20 and {*told["scores"]} <= {0, 0.5, 1}
        assert told["returns"] == [2 * score - 1 for score in told["scores"]]
        assert command(*argv, "--json")[1] == out
        code, out, _ = command(*argv)
        games, score = out.splitlines()[-2:]
        won, drawn, lost = (told["scores"].count(x) for x in (1, 0.5, 0))
        assert games == f"games     20: {won} won, {drawn} drawn, {lost} lost"
        assert score.startswith(f"score     {np.mean(told['scores']):.3f}, 95 % interval ")
    other = load(b)
    policy = load(a)
    want = [game_by_hand(Board, (policy, other), number, False)[0] for number in range(20)]
    assert told["scores"] == want
    assert "scores" not in json.loads(command("eval", a, "--episodes=2", GAME, "--json")[1])


def test_match_samples_the_actions_of_both(command, saved):
    a, b = saved
    argv = "match", a, b, "--games=20", "--seed=5", GAME
    code, out, _ = command(*argv)
    want = [game_by_hand(Board, (load(a), load(b)), number, True)[0] for number in range(20)]
    won, drawn, lost = map(want.count, (1, 0.5, 0))
    assert code == 0 and f"stochastic actions\nopponent  {b}\n" in out
    assert f"games     20: {won} won, {drawn} drawn, {lost} lost" in out
    assert json.loads(command(*argv, "--json")[1])["scores"] == want
    assert json.loads(command(*argv[:-2], "--seed=6", GAME, "--json")[1])["scores"] != want
    likeliest = [game_by_hand(Board, (load(a), load(b)), number, False)[0] for number in range(20)]
    assert json.loads(command(*argv, "--no-stochastic", "--json")[1])["scores"] == likeliest
    told = json.loads(command("match", a, "random", GAME, "--json")[1])
    assert len(told["scores"]) == 200 and told["deterministic"] is False
    # The same policy on both sides is as good as itself.
    assert "no clear difference" in command("match", a, a, "--games=100", GAME)[1]


def test_who_is_better_is_wilsons_interval():
    for won, of, said in ((37, 50, "the policy is better"), (13, 50, "the opponent is better"),
                          (27, 50, "no clear difference"), (50, 50, "the policy is better")):
        scores = np.array([1.0] * won + [0.0] * (of - won))
        low, high = binomtest(won, of).proportion_ci(method="wilson")
        games, score = score_lines(scores)
        assert games == f"games     {of}: {won} won, 0 drawn, {of - won} lost"
        assert score == (f"score     {won / of:.3f}, 95 % interval {low:.3f} to {high:.3f}: {said}")


def test_wrong_opponents_are_refused(command, saved, trainer):
    a, _ = saved
    with trained(Pair, 1) as ppo:
        ppo.save("pair.safetensors")
    trainer("CartPole-v1").save("pole.safetensors")

    def refused(*argv):
        code, out, err = command(*argv)
        assert code == 2 and err.startswith("error: ") and "Traceback" not in err, err
        return err
    for verb in (["eval", a, "--opponent=pair.safetensors"], ["match", a, "pair.safetensors"]):
        assert "pair.safetensors is a policy whose observations are of the space" in refused(
            *verb, GAME)
    for verb in (["eval", "pole.safetensors", "--opponent=random"],
                 ["match", "pole.safetensors", "random"], ["play", "pole.safetensors", "--person"]):
        assert "CartPole-v1 is no game of several agents" in refused(*verb)
    for verb in (["eval", a, "--opponent=none.safetensors"], ["match", a, "none.safetensors"],
                 ["match", "none.safetensors", a]):
        assert "there is no file none.safetensors" in refused(*verb, GAME)
    assert "games is 0" in (said := refused("match", a, a, "--games=0", GAME))
    assert "fix: --games=100" in said
    assert "match takes A B beside its options, not a.safetensors" in refused("match", a)


ANSWERS = "9\nx\n\n-1\n" + "0\n1\n2\n" * 30  # one of three is legal


@pytest.fixture
def typed(monkeypatch):
    """A function that types answers."""
    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_person_is_asked_until_the_answer_is_a_legal_action(command, saved, typed, monkeypatch):
    monkeypatch.setattr(Board, "played", [])
    typed(ANSWERS)
    code, out, err = command("play", saved[0], "--person", "--episodes=2", "--seed=5", GAME)
    assert (code, err) == (0, "")
    results = [line[line.rindex(": ") + 2:] if ": " in line else line for line in out.splitlines()]
    results = [line for line in results if line in ("the policy has won", "a draw", "you have won")]
    played = np.array([action for _, _, action in Board.played]).reshape(2, 6)
    for game, result, own in zip(played, results, (0, 1), strict=True):
        policy, person = game[own::2].sum(), game[1 - own::2].sum()
        assert result == ("the policy has won" if policy > person else
                          "you have won" if person > policy else "a draw")
    prompts = out.count("your action, of ")
    assert prompts >= 6 + 4 and "your action, of 0 1 2: " in out
    first = [legal for who, legal, _ in Board.played if who == "bob"][0]
    assert f"your action, of {' '.join(map(str, first))}: " in out


def test_a_person_plays_games_without_masks(command, tmp_path, typed):
    with trained(Pair, 1) as ppo:
        ppo.save(tmp_path / "pair.safetensors")
    typed(ANSWERS)
    code, out, _ = command("play", str(tmp_path / "pair.safetensors"), "--person",
                           "--env_name=duels_for_tests:Pair")
    assert code == 0 and out.count("your action, of 0 1 2: ") == 5 + 4


def test_a_person_who_leaves_is_no_traceback(command, saved, typed):
    for text in ("", "x\n"):
        typed(text)
        code, out, err = command("play", saved[0], "--person", GAME)
        assert code == 1 and err == "error: the input has ended before the game\n"


def test_a_person_plays_no_actions_that_are_not_numbers(command, tmp_path, typed):
    with trained(Reach, 1) as ppo:
        ppo.save(tmp_path / "reach.safetensors")
    typed(ANSWERS)
    code, _, err = command("play", str(tmp_path / "reach.safetensors"), "--person",
                           "--env_name=duels_for_tests:Reach")
    assert code == 2 and "the actions of duels_for_tests:Reach are no numbers, but of the" in err
    assert "leave --person out" in err and "Traceback" not in err
