"""Past selves as opponents: who plays whom, what they do, and how they are rated."""

import copy

import numpy as np
import pytest
import torch
from asked_of_runs import weights
from duels_for_tests import LENGTH, Board, Duel, Fence, Pair, Reach
from games_for_tests import Scripted
from torch.nn.utils import parameters_to_vector

from fastppo import PPO, reference
from fastppo.errors import ConfigError
from fastppo.gpu.device_actor import DeviceActor
from fastppo.reference import Purpose
from fastppo.trainer import collector
from fastppo.trainer.callbacks import rollout_collected
from fastppo.update.flat_parameters import trained_parameters

SETTINGS = dict(preset="none", seed=3, num_envs=4, num_steps=7, num_minibatches=2, epochs=2,
                hidden_sizes=(4,), total_steps=10**6, num_workers=0, lr=0.05, past=0.6,
                past_interval=2)
CASES = {
    "discrete": (Duel, {}), "come and go": (Scripted, {}),
    "box": (Reach, dict(norm_obs=True)), "masked": (Fence, {}),
    "central": (Duel, dict(acting="central", norm_obs=True)),
    "central box": (Reach, dict(acting="central")),
    "central masked": (Fence, dict(acting="central")),
    "memory": (Pair, dict(rnn="gru", rnn_size=4)),
    "on a device": (Fence, dict(acting="central", norm_obs=True)),
    "in turns": (Board, {}), "central in turns": (Board, dict(acting="central", norm_obs=True)),
}
CUDA = [pytest.mark.cuda, pytest.mark.skipif(
    not torch.cuda.is_available(), reason="needs a GPU with CUDA")]


def made(name, **settings):
    """A PPO of one of CASES."""
    make, own = CASES[name]
    return PPO(make, **SETTINGS | own | settings)


def players(config, g, episode):
    """The snapshots that act in an episode of game g, by agent; -1: the policy itself."""
    share, own, snapshot = reference.uniform(config.seed, Purpose.PAST, g, episode, (1, 3))[0]
    found = [-1] * config.agents
    if share < config.past:
        found = [int(snapshot * 8)] * config.agents
        found[int(own * config.agents)] = -1
    return found


class Pool:
    """The pool by definition: copies of whole policies; and Elo's ratings by hand."""

    def __init__(self):
        self.selves, self.ratings, self.own = [None] * 8, [1000.0] * 8, 1000.0

    def begin(self, iteration, ppo):
        """Takes the policy in, if that is due."""
        number, rest = divmod(iteration, ppo.config.past_interval)
        for k in [] if rest else [1 + (number - 1) % 7] if number else range(8):
            self.selves[k], self.ratings[k] = copy.deepcopy(ppo.policy), self.own

    def rate(self, k, score):
        """A game against snapshot k."""
        change = 16 * (score - 1 / (1 + 10 ** ((self.ratings[k] - self.own) / 400)))
        self.own, self.ratings[k] = self.own + change, self.ratings[k] - change


def iterations(ppo, count):
    """(iteration, rollout, who acts [t e], the pool) of some iterations, with their updates.

    The games are followed by the ends of their agents, which stand in `length`.
    """
    pool, episodes = Pool(), [0] * ppo.config.num_envs
    for i in range(count):
        rollout = ppo.collect()  # no update between its start and now
        pool.begin(i, ppo)
        who, ended = np.zeros(rollout.valid.shape, int), ppo.arena["length"] > 0
        over = (ended & ~ppo.arena["same_game"]).reshape(len(who), -1, ppo.config.agents).any(2)
        for t, g in np.ndindex(over.shape):
            who[t].reshape(over.shape[1], -1)[g] = players(ppo.config, g, episodes[g])
            episodes[g] += over[t, g]
        yield i, rollout, who, pool
        ppo.update(rollout)


def noise_of(ppo, step):
    """The random numbers f32 [e k] of an acting step."""
    letters = ppo.policy.head.noise
    draw = {"u": reference.uniform, "n": reference.normal}[letters[0]]
    return draw(ppo.config.seed, Purpose.ACT, 0, step, (ppo.config.rows, len(letters))).astype("f4")


@pytest.mark.some(5)
@pytest.mark.filterwarnings("ignore:RNN module weights")  # of the policies that the test asks
@pytest.mark.parametrize("name, device", [*((name, "cpu") for name in CASES), *(
    pytest.param(name, "cuda", marks=CUDA) for name in ("central masked", "memory"))])
def test_opponents_act_by_their_snapshot_and_only_the_rows_of_the_policy_are_valid(
        name, device, monkeypatch):
    others, kinds = 0, set()
    if name == "on a device":
        monkeypatch.setattr(collector, "CentralActor", DeviceActor)
    with made(name, device=device, precision="fp32") as ppo:
        for i, rollout, who, pool in iterations(ppo, 9):
            acting, state = rollout.acting.numpy()[:-1], rollout.state.numpy()
            is_open = acting & (who < 0) & ~rollout.valid.numpy()  # of a turn
            assert not is_open.any() or CASES[name][0] is Board and is_open.sum(0).max() == 1
            assert (rollout.valid.numpy() | is_open == acting & (who < 0)).all()
            for t, slots in enumerate(who):
                noise = noise_of(ppo, i * 7 + t)
                current = ppo.policy.act(ppo.collector.vec.obs[t], noise, state[t])
                for k in sorted({*slots}):
                    rows = np.flatnonzero((slots == k) & acting[t])
                    kinds |= {(k, len(rows) > 0)}
                    act, _, _, after = current if k < 0 else pool.selves[k].act(
                        ppo.collector.vec.obs[t], noise, state[t])
                    near(rollout.act[t], act, rows)
                    over = (rollout.term | rollout.trunc)[t].numpy()
                    near(state[t + 1], np.where(over[:, None], 0, after), rows)
                    others += (act[rows] != current[0][rows]).sum()
                for x, own in zip((rollout.act, rollout.logp, rollout.val), current):
                    near(x[t], own, np.flatnonzero(rollout.valid[t]))
    assert others > 10  # the snapshots do not act as the policy does
    assert {k for k, acts in kinds if acts} >= {-1, 0, 1, 2}


def near(found, want, rows):
    """Rows are the same, actions that are numbers and values up to the rounding."""
    np.testing.assert_allclose(found[rows], want[rows], rtol=1e-4, atol=1e-5)


def test_games_are_those_of_the_closed_form():
    with made("discrete") as ppo:
        for i, _, who, _ in iterations(ppo, 4):
            for (t, row), k in np.ndenumerate(who):
                g, agent = divmod(row, 3)
                assert k == players(ppo.config, g, (i * 7 + t) // LENGTH)[agent]


@pytest.mark.parametrize("name", ["discrete", "box", "central"])
def test_the_pool_has_the_first_policy_and_the_last_seven(name):
    with made(name, past_interval=1) as ppo:
        for i, _, _, pool in iterations(ppo, 10):
            for k, one in enumerate(pool.selves):
                np.testing.assert_array_equal(ppo.arena["pool"][k], parameters_to_vector(
                    trained_parameters(one)).detach())
                if ppo.config.norm_obs:
                    for part in ("shift", "scale"):
                        np.testing.assert_array_equal(
                            ppo.arena["pool_mean" if part == "shift" else "pool_scale"][k],
                            getattr(one.observer, part))
            assert len({x.tobytes() for x in ppo.arena["pool"]}) == min(i + 1, 8)


@pytest.mark.parametrize("name", ["discrete", "in turns"])
def test_ratings_are_elos_in_the_order_of_the_games(name):
    scores = set()
    with made(name, num_steps=17) as ppo:
        agents = ppo.config.agents
        for _, rollout, who, pool in iterations(ppo, 8):
            ended = ppo.arena["length"] > 0
            for t, row in np.argwhere(ended & ~ppo.arena["same_game"]).tolist():
                g = row // agents
                rows = slice(g * agents, (g + 1) * agents)
                totals = ppo.arena["total"][t, rows].tolist()
                slots = who[t, rows].tolist()
                if max(slots) >= 0:
                    own = totals.pop(slots.index(-1))
                    other = sum(totals) / len(totals)
                    scores.add(score := 1 if own > other else 0 if own < other else 0.5)
                    pool.rate(max(slots), score)
            rollout_collected(ppo, rollout)
            stats = ppo.episodes.stats()
            assert stats["games/elo"] == pytest.approx(pool.own, abs=1e-9)
            for k, rating in enumerate(pool.ratings):
                assert stats[f"games/elo_{k}"] == pytest.approx(rating, abs=1e-9)
    assert scores == {0, 0.5, 1}


def spoil(rollout):
    """Overwrites what a rollout has in the rows of opponents."""
    away = ~rollout.valid
    for x in (rollout.act, rollout.logp, rollout.val, rollout.raw, rollout.rew, rollout.adv,
              rollout.ret):
        x[away] = 2 if x.dtype == torch.int64 else 1e9
    rollout.obs["obs"][:-1][away] = 7.0
    rollout.state[:-1][away] = 5.0
    assert 0.2 < away.float().mean() < 0.8


@pytest.mark.parametrize("settings", [
    dict(learner="torch"), dict(norm_obs=True), dict(rnn="gru", rnn_size=4, norm_obs=True)])
def test_the_rows_of_opponents_change_nothing_of_an_update(settings):
    found = []
    for change in (lambda rollout: None, spoil):
        with PPO(Duel, **SETTINGS | settings) as ppo:
            stats = []
            for _ in range(3):
                rollout = ppo.collect()
                change(rollout)
                stats.append(ppo.update(rollout))
            found.append((weights(ppo).tolist(), ppo.policy.observer.mean.tolist(), [
                {name: x for name, x in one.items() if "losses/" in name} for one in stats]))
    assert found[0] == found[1]


def test_steps_moments_and_the_scale_of_returns_are_of_the_rows_of_the_policy_alone():
    carry, seen, count = np.zeros(12), [], 0
    with PPO(Duel, **SETTINGS | dict(norm_obs=True, norm_rewards=True)) as ppo:
        sums = []  # of the observations, the warm-up's first
        for _, rollout, who, _ in iterations(ppo, 4):
            observer, valid = ppo.policy.observer, rollout.valid.numpy()
            found = observer.count.item() * observer.mean.numpy()
            sums = sums or [found]
            np.testing.assert_allclose(found, sum(sums), rtol=1e-9)
            assert observer.count == 7 * 12 + count  # all act in the warm-up
            for t, row in np.argwhere(valid).tolist():
                carry[row] = ppo.config.gamma * carry[row] + rollout.raw[t, row].item()
                seen.append(carry[row])
                carry[row] *= not rollout.term[t, row]
            want = rollout.raw.numpy() / np.sqrt(np.var(seen) + 1e-8)
            np.testing.assert_allclose(rollout.rew[valid], np.clip(want, -10, 10)[valid], rtol=1e-5)
            sums.append(rollout.obs["obs"][:-1].numpy()[valid].sum(0, dtype=float))
            count += (who < 0).sum()
            assert ppo.step == count == len(seen)


def test_with_a_share_of_one_each_game_has_one_agent_of_the_policy():
    with PPO(Duel, **SETTINGS | dict(past=1.0)) as ppo:
        seats = set()
        for _, rollout, who, _ in iterations(ppo, 5):
            assert ((who < 0).reshape(7, 4, 3).sum(2) == 1).all()
            assert rollout.valid.sum() == 7 * 4
            seats |= {row % 3 for row in np.argwhere(who < 0)[:, 1]}
        assert seats == {0, 1, 2} and ppo.step == 5 * 7 * 4


@pytest.mark.parametrize("env", ["CartPole-v1", type("Solo", (Duel,), {"possible_agents": ["a"]})])
def test_past_selves_need_others(env):
    with pytest.raises(ConfigError, match=r"past=0\.6 is for games of several agents"):
        PPO(env, **SETTINGS)


class Struck(Duel):
    """A Duel that is interrupted once in the last step of each game."""

    struck: set = set()

    def reset(self, seed=None, options=None):
        self.seed = seed
        return super().reset(seed)

    def step(self, actions):
        if self.now == LENGTH - 1 and self.seed not in self.struck:
            self.struck.add(self.seed)
            raise KeyboardInterrupt
        return super().step(actions)


@pytest.mark.parametrize("acting", ["local", "central"])
def test_an_interrupt_after_the_end_of_a_game_leaves_its_last_actions(acting, monkeypatch):
    found = []
    for last in (Duel, Struck):
        monkeypatch.setattr(Struck, "struck", set())
        with PPO([Duel, Duel, Duel, last], **SETTINGS | dict(acting=acting)) as ppo:
            found.append([])
            while ppo.progress.iteration < 5:
                try:
                    rollout = ppo.collect()
                except KeyboardInterrupt:
                    continue
                found[-1].append([x[rollout.valid].tolist() for x in (
                    rollout.act, rollout.logp, rollout.val)] + [ppo.arena["act"].tolist()])
                ppo.update(rollout)
    assert found[0] == found[1] and len(Struck.struck) > 3


@pytest.mark.parametrize("complete", [True, False])
def test_a_checkpoint_of_a_rollout_that_is_not_used_has_the_ratings_before_it(
        complete, monkeypatch, tmp_path):
    path = tmp_path / "c.safetensors"

    def interrupt(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt
    with made("discrete") as ppo:
        for _ in range(3):
            ppo.update(ppo.collect())
        if complete:
            ppo.collect()
        else:  # it is rated, but not counted
            monkeypatch.setattr("fastppo.collect.Progress", interrupt)
            with pytest.raises(KeyboardInterrupt):
                ppo.collect()
        ppo.checkpoint(path)
        want = ppo.collector.past.ratings
    with PPO.resume(path, Duel) as ppo:
        assert (ppo.collector.past.ratings != want).any()
        ppo.collect()
        np.testing.assert_array_equal(ppo.collector.past.ratings, want)
