"""Games of several agents: what their definition in plain Python says, and always the same bits."""

import os
import signal
from collections import defaultdict

import numpy as np
import pytest
from asked_of_runs import iterations
from fault_envs import guard, holds
from games_by_definition import (
    NEAR,
    Definition,
    assert_advantages,
    assert_ends,
    assert_moments,
    assert_probabilities,
    bits,
    followed,
    stretches,
)
from games_for_tests import (
    Central,
    InfoMasked,
    InfoMaskedTurns,
    Masked,
    MaskedTurns,
    Pictured,
    Reaching,
    Scripted,
    Turns,
    Uneven,
)
from gymnasium.spaces import Box, Discrete
from interruption import Interruption
from optional_packages import NEEDS_EXTENSION

from fastppo import PPO
from fastppo.errors import CheckpointError, ConfigError, EnvError, SpaceError, WorkerError
from fastppo.machine.kernels import Purpose, episode_seed
from fastppo.trainer.callbacks import rollout_collected
from fastppo.workers import team

SETTINGS = dict(preset="none", seed=3, num_envs=3, num_steps=16, num_minibatches=2, epochs=1,
                hidden_sizes=(4,), total_steps=10**6, norm_rewards=True, num_workers=0)


@pytest.mark.some(2)
@pytest.mark.parametrize("longest", [np.inf, 5], ids=["free", "limit"])
@pytest.mark.parametrize("workers, acting", [
    (0, "local"), (0, "central"), pytest.param(2, "local", marks=NEEDS_EXTENSION),
    pytest.param(2, "central", marks=NEEDS_EXTENSION)])
def test_a_rollout_is_what_the_games_played_again_by_its_actions_give(
        workers, acting, longest):
    limit = {} if longest == np.inf else {"max_episode_steps": longest}
    kinds, count = set(), 0
    with PPO(Scripted, **SETTINGS | dict(num_workers=workers, acting=acting, lr=0.01) | limit
             ) as ppo:
        for rollout, steps, ended, definition in followed(ppo, Scripted, 8, longest):
            assert_rows(rollout, steps, definition)
            assert_advantages(ppo, rollout, steps, definition)
            assert_ends(ppo, ended)
            count += len(steps)
            assert ppo.step == count
            kinds |= kinds_of(rollout, steps)
    assert kinds == {"starts", "born", "waits", "term", "trunc", "both", "cut by the rollout",
                     "ends with the rollout", "invalid first", "invalid last"}


def assert_rows(rollout, steps, definition):
    """Rows are valid where an agent took part, and they are exactly its step."""
    obs, index = rollout.obs["obs"].numpy(), rollout.obs["agent"].numpy()
    for (t, row), valid in np.ndenumerate(rollout.valid.numpy()):
        assert valid == ((t, row) in steps), (t, row)
        if not valid:
            assert not obs[t, row].any() and index[t, row] == 0 and rollout.raw[t, row] == 0
            assert not rollout.term[t, row] and not rollout.trunc[t, row]
            continue
        step = steps[t, row]
        np.testing.assert_array_equal(obs[t, row], step.obs)
        assert index[t, row] == row % len(definition.names)
        assert rollout.raw[t, row] == np.float32(step.rew)
        assert (rollout.term[t, row], rollout.trunc[t, row]) == (step.term, step.trunc)
    for row in range(obs.shape[1]):
        np.testing.assert_array_equal(obs[-1, row], definition.seen.get(row, np.zeros(4)))


def kinds_of(rollout, steps):
    """What happened in a rollout, by name: that a test has seen it."""
    valid, kinds = rollout.valid.numpy(), set()
    for t, row in np.argwhere(valid).tolist():
        step = steps[t, row]
        kinds.add({(0, 0): "starts", (1, 0): "term", (0, 1): "trunc", (1, 1): "both"}[
            int(step.term), int(step.trunc)])
        ends = step.term or step.trunc
        if t == len(valid) - 1:
            kinds.add("ends with the rollout" if ends else "cut by the rollout")
        elif ends and not valid[t + 1, row]:
            kinds.add("waits")
        if t and not valid[t - 1, row] and step.obs[1]:  # its game is older than this step
            kinds.add("born")
    kinds |= {name for name, row in (("invalid first", 0), ("invalid last", -1))
              if not valid[row].all()}
    return kinds


def test_rewards_are_normalised_by_the_returns_of_valid_steps_alone():
    carry, seen = defaultdict(float), []
    with PPO(Scripted, **SETTINGS) as ppo:
        for rollout, steps, _, _ in followed(ppo, Scripted, 4):
            for (_, row), step in sorted(steps.items()):
                carry[row] = ppo.config.gamma * carry[row] + step.rew
                seen.append(carry[row])
                if step.term or step.trunc:
                    carry[row] = 0.0
            want = rollout.raw.numpy() / np.sqrt(np.var(seen) + 1e-8)
            np.testing.assert_allclose(rollout.rew, np.clip(want, -10, 10), rtol=1e-5)
            assert (rollout.rew != rollout.raw).any()


class Watched(Scripted):
    """Scripted, which notes what the agents of a step saw before it."""

    acted_on: list = []

    def step(self, actions):
        self.acted_on.append([self.now_seen[agent] for agent in self.agents])
        return super().step(actions)

    def _seen(self, agents):
        self.now_seen = super()._seen(agents)
        return self.now_seen


@pytest.mark.some(1)
@pytest.mark.parametrize("workers", [0, pytest.param(3, marks=NEEDS_EXTENSION)])
def test_moments_are_of_what_agents_acted_on_from_the_random_rollout_on(workers, monkeypatch):
    monkeypatch.setattr(Watched, "acted_on", [])
    with PPO(Watched, norm_obs=True, **SETTINGS) as ppo:
        ppo.collect()
        warmup = np.concatenate(Watched.acted_on[:16 * 3])
        assert len(Watched.acted_on) == 2 * 16 * 3 and len(warmup) < 16 * 3 * 4 - 20
    rows = [warmup]
    with PPO(Scripted, norm_obs=True, **SETTINGS | dict(num_workers=workers)) as ppo:
        for _, steps, _, _ in followed(ppo, Scripted, 3):
            assert_moments(ppo.policy.observer, rows)
            rows.append(np.array([step.obs for step in steps.values()]))
        assert_moments(ppo.policy.observer, rows)


@pytest.mark.parametrize("rnn", ["none", "gru", "lstm", "mingru"])
def test_the_update_finds_the_probabilities_with_which_the_agents_acted(rnn):
    memory = {} if rnn == "none" else {"rnn": rnn, "rnn_size": 4}
    with PPO(Scripted, **SETTINGS | memory | dict(num_minibatches=1, lr=0.01)) as ppo:
        assert_probabilities(ppo)


@pytest.mark.some(2)
@pytest.mark.parametrize("workers", [0, 1, pytest.param(2, marks=NEEDS_EXTENSION)])
def test_memory_is_zero_where_an_agent_begins_and_never_between(workers):
    begun = 0
    with PPO(Scripted, **SETTINGS | dict(rnn="gru", rnn_size=4, num_workers=workers)) as ppo:
        running = np.zeros(12, bool)
        for rollout in (ppo.collect() for _ in range(3)):
            state, valid = rollout.state.numpy(), rollout.valid.numpy()
            for t, row in np.ndindex(valid.shape):
                if valid[t, row]:
                    assert state[t, row].any() == running[row], (t, row)
                    begun += not running[row]
                running[row] = valid[t, row] and not (rollout.term | rollout.trunc)[t, row]
            ppo.update(rollout)
    assert begun > 40


def test_the_value_of_a_truncation_has_the_memory_of_its_agent():
    checked = 0
    with PPO(Scripted, **SETTINGS | dict(rnn="gru", rnn_size=4)) as ppo:
        for rollout, steps, _, _ in followed(ppo, Scripted, 2):
            for row in range(rollout.valid.shape[1]):
                for stretch in stretches(steps, row, 16):
                    (t, step), first = stretch[-1], stretch[0][0]
                    if first and step.trunc and not step.term:
                        state = None
                        for _, one in stretch:
                            _, state = ppo.policy.predict(
                                {"obs": one.obs, "agent": row % 4}, state=state)
                        after = ppo.policy.values(ppo.policy.observer.layout.rows(
                            [{"obs": step.after, "agent": row % 4}]), np.atleast_2d(state))
                        np.testing.assert_allclose(rollout.nxt[t, row], after[0], **NEAR)
                        checked += 1
    assert checked > 10


class Fixed(Scripted):
    """Scripted, but all agents begin, and their rewards are known sums."""

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.agents = list(self.possible_agents)
        return self._seen(self.agents), {agent: {} for agent in self.agents}


def test_metrics_count_games_and_have_the_return_of_each_agent():
    of_games, lengths = defaultdict(list), []  # of the four agents that each game has
    with PPO(Fixed, **SETTINGS) as ppo:
        for rollout, _, ended, one in followed(ppo, Fixed, 4):
            rollout_collected(ppo, rollout)
            definition = one
            for end in ended:
                of_games[end.row // 4].append(end)
        for ends in of_games.values():
            lengths += ends[:len(ends) // 4 * 4]
        stats, games = ppo.episodes.stats(), definition.games
    assert stats["charts/episodes"] == len(games) and 10 < len(games) < 100
    assert stats["charts/episodic_length"] == np.mean([length for length, _ in games])
    means = {f"env/{agent}/return": np.mean([returns[agent] for _, returns in games])
             for agent in Fixed.possible_agents}
    returned = np.mean([*means.values()])
    means |= {f"env/{agent}/length": np.mean([end.length for end in lengths if end.row % 4 == k])
              for k, agent in enumerate(Fixed.possible_agents)}
    shown = {name: value for name, value in stats.items() if name.startswith("env/")}
    assert shown == pytest.approx(means)
    assert stats["charts/episodic_return"] == pytest.approx(returned)


GAMES = {
    "scripted": (Scripted, {}), "gru": (Scripted, dict(rnn="gru", rnn_size=4)),
    "limit": (Scripted, dict(max_episode_steps=5)), "no index": (Scripted, dict(agent_index=False)),
    "uneven": (Uneven, {}), "masked": (Masked, {}), "masks of infos": (InfoMasked, {}),
    "continuous": (Reaching, {}),
    "central critic": (Central, dict(critic_keys=("state", "agent", "obs"))),
    "masked gru": (InfoMasked, dict(rnn="gru", rnn_size=4, agent_index=False)),
    "pictures": (Pictured, dict(frame_skip=2, grayscale=True, resize="4x3", frame_stack=3)),
    "limited continuous": (Reaching, dict(max_episode_steps=4, agent_index=False)),
    "past": (Scripted, dict(past=0.6, past_interval=2)),
    "past gru": (InfoMasked, dict(rnn="gru", rnn_size=4, past=0.6, past_interval=1)),
    "past continuous": (Reaching, dict(past=0.6, past_interval=2, norm_obs=True)),
    "turns": (Turns, {}), "turns limit": (InfoMaskedTurns, dict(max_episode_steps=5)),
    "turns gru": (MaskedTurns, dict(rnn="gru", rnn_size=4)),
    "mingru": (Scripted, dict(rnn="mingru", rnn_size=4)),
    "turns mingru": (MaskedTurns, dict(rnn="mingru", rnn_size=4)),
    "past mingru": (InfoMasked, dict(rnn="mingru", rnn_size=4, past=0.6, past_interval=1)),
    "past turns": (MaskedTurns, dict(past=0.6, past_interval=1)),
}
# What no worker computes:
IN_MAIN = "gru", "masked gru", "central critic", "past gru", "turns gru", "past mingru"
each_game = pytest.mark.parametrize("name", GAMES)


def made(name, **settings):
    """A PPO of one of GAMES."""
    make, own = GAMES[name]
    return PPO(make, **SETTINGS | own | settings)


@NEEDS_EXTENSION
@pytest.mark.some(2)
@pytest.mark.parametrize("name, acting", [
    (name, acting) for name in GAMES for acting in ("local", "central")
    if acting == "central" or name not in IN_MAIN])
def test_the_same_bits_come_of_any_number_of_workers(name, acting):
    found = []
    for workers in (0, 1, 2, 3):
        with made(name, num_workers=workers, acting=acting) as ppo:
            found.append(iterations(ppo, 4, bits))
    assert found[1:] == found[:1] * 3
    with made(name, acting=acting, seed=4) as ppo:
        assert iterations(ppo, 4, bits) != found[0]


@pytest.mark.some(2)
@pytest.mark.parametrize("workers", [(0, 0), pytest.param((0, 2), marks=NEEDS_EXTENSION),
                                     pytest.param((3, 1), marks=NEEDS_EXTENSION)])
@each_game
def test_a_resumed_run_is_the_same_bit_for_bit(name, workers, tmp_path):
    path, make = tmp_path / "c.safetensors", GAMES[name][0]
    with made(name, num_workers=workers[0], num_steps=5) as ppo:
        iterations(ppo, 3, bits)
        ppo.checkpoint(path)
        want = iterations(ppo, 1, bits)
        ppo.collect()
        ppo.checkpoint(tmp_path / "pending.safetensors")  # of the iteration before
        want += iterations(ppo, 4, bits)
    with PPO.resume(path, make, num_workers=workers[1]) as ppo:
        assert iterations(ppo, 5, bits) == want
    with PPO.resume(tmp_path / "pending.safetensors", make, num_workers=workers[1]) as ppo:
        assert iterations(ppo, 4, bits) == want[1:]


@pytest.mark.parametrize("workers", [
    0, pytest.param(2, marks=[NEEDS_EXTENSION, pytest.mark.full])])
def test_games_too_long_to_be_replayed_give_way_to_their_next_ones(workers, tmp_path):
    path, settings = tmp_path / "c.safetensors", dict(num_steps=2, replay_limit=3)
    with made("gru", **settings) as ppo:
        for _ in range(99):
            iterations(ppo, 1, bits)
            numbers, starts = ppo.collector.snapshots.log.state.episodes[:, :2].T.tolist()
            long = [ppo.progress.iteration * 2 - start > 3 for start in starts]
            if any(long) and not all(long):
                break
        ppo.checkpoint(path)
    with PPO.resume(path, Scripted, num_workers=workers) as ppo:
        rollout, env = ppo.collect(), Scripted()
        for row in (row for row in range(12) if long[row]):
            g, agent = row // 4, env.possible_agents[row % 4]
            seed = episode_seed(3, Purpose.ENV_SEED, g, numbers[row] + 1)
            obs = env.reset(seed=seed)[0]
            assert rollout.valid[0, row] == (agent in obs)
            np.testing.assert_array_equal(rollout.obs["obs"][0, row], obs.get(agent, np.zeros(4)))
            assert not rollout.state[0, row].any()
        ppo.update(rollout)
        ppo.checkpoint(path)
        want = iterations(ppo, 1, bits)
    with PPO.resume(path, Scripted, replay_limit=3) as ppo:
        assert iterations(ppo, 1, bits)[0]["weights"] == want[0]["weights"]


MODULES = ("collect vecenv envs/games games/stepper games/past stepping/replay stepping/rewards"
           " stepping/environments workers/worker_vecenv")


@pytest.mark.some(1)
@pytest.mark.parametrize("workers, acting", [
    (0, "local"), (0, "central"), pytest.param(2, "local", marks=NEEDS_EXTENSION)])
@pytest.mark.parametrize("name", ["scripted", "masked", "limit", "past", "turns", "turns limit"])
def test_an_interrupt_anywhere_in_a_rollout_changes_no_bit(name, workers, acting):
    settings = dict(num_workers=workers, acting=acting, num_steps=8)
    with guard(300), made(name, **settings) as ppo:
        with Interruption(-1, MODULES) as counted:
            want = iterations(ppo, 2, bits)
        want += iterations(ppo, 2, bits)
    struck, points = set(), 8 if workers else 24
    for at in np.linspace(1, counted.lines, points).astype(int).tolist():
        with guard(300), made(name, **settings) as ppo:
            found = []
            with Interruption(at, MODULES, struck) as strike:
                while len(found) < 4:
                    try:
                        found += iterations(ppo, 1, bits)
                    except KeyboardInterrupt:
                        struck.add(strike.place)
            assert found == want, strike.place
    assert len(struck) > points // 2  # a run with fewer waits may end before the last ones


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scripted", "turns"])
@pytest.mark.parametrize("acting", ["local", "central"])
def test_an_interrupt_at_any_line_of_games_changes_no_bit(acting, name):
    settings = dict(acting=acting, num_steps=4, norm_obs=False)
    modules = "games/stepper collect stepping/rewards"
    with made(name, **settings) as ppo:
        with Interruption(-1, modules) as counted:
            want = iterations(ppo, 3, bits)
        want += iterations(ppo, 1, bits)
    for at in range(1, counted.lines, 3):
        with guard(300), made(name, **settings) as ppo:
            found = []
            with Interruption(at, modules) as strike:
                while len(found) < 4:
                    try:
                        found += iterations(ppo, 1, bits)
                    except KeyboardInterrupt:
                        pass
            assert found == want, (at, strike.place)


@NEEDS_EXTENSION
@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["scripted", "gru", "masks of infos", "turns gru"])
def test_workers_that_start_again_change_no_bit(name, monkeypatch):
    monkeypatch.setattr(team, "PAUSES", (0.0, 0.0, 0.0))
    found = []
    for killed in ((), (0, 3)):
        with made(name, num_workers=2, on_worker_failure="restart") as ppo:
            found.append([])
            for i in range(6):
                if i in killed:
                    process = ppo.collector.vec.team.workers[1].process
                    os.kill(process.pid, signal.SIGKILL)
                    assert holds(lambda one=process: one.poll() is not None)
                found[-1] += [{**one, "numbers": None} for one in iterations(ppo, 1, bits)]
            assert ppo.collector.vec.restarts.count == len(killed)
    assert found[0] == found[1]


def test_a_game_of_one_agent_is_any_environment(tmp_path):
    class Solo(InfoMasked):
        possible_agents = ["bob"]
    with PPO(Solo, **SETTINGS) as ppo:
        definition = Definition(Solo, ppo.config)
        for _ in range(3):
            rollout = ppo.collect()
            steps, _ = definition.follow(rollout.act.numpy())
            assert len(steps) == 16 * 3 and rollout.valid.all()
            for (t, row), step in steps.items():
                np.testing.assert_array_equal(rollout.obs["obs"][t, row], step.obs)
                assert rollout.raw[t, row] == np.float32(step.rew)
                assert (rollout.term[t, row], rollout.trunc[t, row]) == (step.term, step.trunc)
            ppo.update(rollout)
        assert (ppo.config.agents, ppo.config.rows) == (1, 3)


class Levels(Fixed):
    """Fixed, with the level of its options as the reward of each of three steps."""

    possible_agents = ["ann", "bob"]

    def reset(self, seed=None, options=None):
        self.level = (options or {"level": 0})["level"]  # none where the masks are looked for
        return super().reset(seed)

    def step(self, actions):
        seen, _, _, _, infos = super().step(actions)
        over = self.now == 3
        self.agents = [] if over else list(self.possible_agents)
        return self._seen(self.possible_agents), *(dict.fromkeys(self.possible_agents, x) for x in (
            float(self.level), over, False)), infos


def test_options_are_of_games_and_returns_are_shown_by_them():
    settings = SETTINGS | dict(reset_options=[{"level": level} for level in (1, 5, 7)])
    with PPO(Levels, **settings) as ppo:
        for _ in range(2):
            rollout = ppo.collect()
            rollout_collected(ppo, rollout)
            ppo.update(rollout)
        assert (rollout.raw.numpy() == np.repeat([1, 5, 7], 2)).all()
        shown = {name: value for name, value in ppo.episodes.stats().items() if "level" in name}
    assert shown == {f"charts/episodic_return/level={level}": 3 * level for level in (1, 5, 7)}


class Faulty(Scripted):
    """Scripted, but a fault is added to the steps of one game, from the second on."""

    def __init__(self, seed, fault):
        super().__init__()
        self.bad, self.fault = seed, fault

    def reset(self, seed=None, options=None):
        self.failing = seed == self.bad
        return super().reset(seed, options)

    def step(self, actions):
        found = super().step(actions)
        if self.failing and self.now >= 2:
            self.fault(self, *found)
        return found


def comes_back(game, obs, rews, *_):
    game.agents = [*game.agents, *(game.gone - {*rews})]
    obs.update(game._seen(game.agents))


def leaves(game, *_):
    game.agents = game.agents[1:]


def of_the_dead(game, obs, rews, *_):
    rews.update(dict.fromkeys(game.gone, 1.0))


def of_a_stranger(game, obs, rews, *_):
    rews["zoe"] = 0.0


def is_a_stranger(game, *_):
    game.agents = [*game.agents, "zoe"]


def no_reward(game, obs, rews, *_):
    rews.clear()


def not_a_number(game, obs, rews, *_):
    rews.update(dict.fromkeys(rews, np.nan))


def no_flag(game, obs, rews, terms, *_):
    terms.update(dict.fromkeys(terms, "no"))


def another_shape(game, obs, *_):
    obs.update({agent: one[:3] for agent, one in obs.items()})


def not_seen(game, obs, *_):
    obs.clear()


def broken(game, *_):
    raise RuntimeError("a wheel came off")


@pytest.mark.parametrize("workers", [
    0, pytest.param(2, marks=[NEEDS_EXTENSION, pytest.mark.full])])
@pytest.mark.parametrize("fault, said", [
    (comes_back, "(ann|bob|cy|dee) is in the game again after its end"),
    (leaves, "(ann|bob|cy|dee) has left the game, but neither terminated nor truncated"),
    (of_the_dead, "(ann|bob|cy|dee) is rewarded, but is not in the game"),
    (of_a_stranger, "zoe is not one of the possible_agents"),
    (is_a_stranger, "zoe is not one of the possible_agents"),
    (no_reward, "there is no reward of (ann|bob|cy|dee)"),
    (not_a_number, "the reward is nan, not finite"),
    (no_flag, "terminated is 'no', not True or False"), (another_shape, r"has shape \(3,\)"),
    (not_seen, "there is no observation of (ann|bob|cy|dee)"),
    (broken, "RuntimeError: a wheel came off")])
def test_what_a_game_must_not_do_is_an_error_with_its_place(fault, said, workers):
    seed = episode_seed(3, Purpose.ENV_SEED, 2, 2)
    makers = [Scripted, Scripted, lambda: Faulty(seed, fault)]
    with PPO(makers, **SETTINGS | dict(num_workers=workers, norm_obs=False)) as ppo:
        with pytest.raises(EnvError, match=f"(?s).*{said}") as caught:
            for _ in range(9):
                ppo.update(ppo.collect())
    place, = caught.value.places
    assert (place.env, place.episode) == (2, 2) and place.step >= 1
    where = f"{'worker 1, ' if workers else ''}seed {seed}, episode 2, step {place.step}"
    assert f"environment 2 ({where}) failed in step()" in str(caught.value)


def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)


@NEEDS_EXTENSION
def test_the_error_of_a_worker_that_dies_names_the_game():
    seed = episode_seed(3, Purpose.ENV_SEED, 1, 2)
    makers = [Scripted, lambda: Faulty(seed, killed), Scripted]
    with PPO(makers, **SETTINGS | dict(num_workers=1, norm_obs=False)) as ppo:
        with pytest.raises(WorkerError, match=f"environment 1.*seed {seed}, episode 2") as got:
            for _ in range(9):
                ppo.update(ppo.collect())
    assert got.value.places[0][:2] == (1, 2)


def test_a_game_without_agents_after_its_reset_is_an_error():
    class Nobody(Scripted):
        def reset(self, seed=None, options=None):
            found = super().reset(seed, options)
            self.agents = []
            return found
    with PPO(Nobody, **SETTINGS) as ppo:
        with pytest.raises(EnvError, match=r"failed in reset\(\).*the game has no agents"):
            ppo.collect()


def test_no_number_that_is_not_finite_resets_a_game():
    with pytest.raises(ConfigError, match="nan_policy=reset_env is not for games"):
        PPO(Scripted, nan_policy="reset_env", **SETTINGS)
    seed = episode_seed(3, Purpose.ENV_SEED, 0, 0)
    with PPO([lambda: Faulty(seed, not_a_number)], **SETTINGS | dict(num_envs=1, norm_obs=False)
             ) as ppo:
        with pytest.raises(EnvError) as caught:
            ppo.collect()
    assert "fix: correct what it returns" in str(caught.value)
    assert "nan_policy" not in str(caught.value)


def test_spaces_that_no_padding_makes_equal_are_an_error_with_both_agents():
    class Kinds(Scripted):
        def action_space(self, agent):
            return Box(-1, 1, (2,)) if agent == "cy" else Discrete(3)
    with pytest.raises(SpaceError, match=r"(?s)the actions of ann are .*Discrete\(3\), those of cy"
                                         r" of Box\(-1.0, 1.0, \(2,\), float32\)"):
        PPO(Kinds, **SETTINGS)


@pytest.mark.parametrize("agent_index", [True, False])
def test_a_run_goes_on_with_as_many_agents_as_it_had(agent_index, tmp_path):
    def of(count):
        return type("Scripted", (Scripted,), {"possible_agents": ["ann", "bob", "cy"][:count]})
    path = tmp_path / "c.safetensors"
    for count in (1, 2):
        with PPO(of(count), **SETTINGS | dict(agent_index=agent_index)) as ppo:
            iterations(ppo, 1, bits)
            ppo.checkpoint(path)
        with pytest.raises((ConfigError, CheckpointError), match=(
                "agents is 2, but Scripted has 3" if count == 2 else "does not fit this run")):
            PPO.resume(path, of(3))
        with PPO.resume(path, of(count)) as ppo:
            assert ppo.config.agents == count


def test_the_number_of_agents_is_the_games_own():
    with pytest.raises(ConfigError, match="agents is 3, but Scripted has 4\n.*leave agents out"):
        PPO(Scripted, agents=3, **SETTINGS)
    with pytest.raises(ConfigError, match="agents is 3, but CartPole-v1 has 1"):
        PPO("CartPole-v1", agents=3, **SETTINGS)
    two = type("Two", (Scripted,), {"possible_agents": ["ann", "bob"]})
    three = type("Three", (Scripted,), {"possible_agents": ["ann", "bob", "cy"]})
    with pytest.raises(ConfigError, match="different numbers of agents: 2, 3, 4"):
        PPO([Scripted, two, three], agent_index=False, **SETTINGS)


def test_games_that_a_factory_makes_have_one_number_of_agents():
    made = iter([Scripted, Scripted, type("Two", (Scripted,), {"possible_agents": ["ann", "bob"]})])
    with pytest.raises(EnvError, match="not every game has 4 agents"):
        PPO(lambda: next(made)(), **SETTINGS | dict(num_envs=2, num_workers=0))


def test_a_game_without_a_state_gives_the_critic_none():
    with pytest.raises(ConfigError, match="no state_space, for critic_keys=state"):
        PPO(Scripted, **SETTINGS | dict(critic_keys=("state", "agent")))


def test_agents_may_have_numbers_for_names():
    numbered = type("Numbered", (Scripted,), {"possible_agents": [0, 1, 2, 3]})
    with PPO(numbered, **SETTINGS) as ppo:
        ppo.update(ppo.collect())


def test_the_state_of_the_game_is_seen_by_the_critic_alone():
    with PPO(Central, **SETTINGS | dict(critic_keys=("state", "agent"), norm_obs=False)) as ppo:
        definition, rollout = Definition(Central, ppo.config), ppo.collect()
        states = []
        for t, chosen in enumerate(rollout.act.numpy()):
            states.append([env.state() for env in definition.envs])
            for g in range(3):
                definition.step(g, t, chosen, {}, [])
        for t, row in np.argwhere(rollout.valid.numpy()).tolist():
            np.testing.assert_array_equal(rollout.obs["state"][t, row], states[t][row // 4])
        assert not rollout.obs["state"][:-1][~rollout.valid].any()
        one = {name: part[0, 0].numpy() for name, part in rollout.obs.items()}
        more = {**one, "state": one["state"] + 1}
        other = {**one, "obs": one["obs"] + 1}
        assert ppo.policy.value(one) != ppo.policy.value(more)
        assert ppo.policy.value(one) == ppo.policy.value(other)
        layout = ppo.policy.observer
        logits = [ppo.policy(layout.tensors(layout.layout.rows([seen])))[0].tolist()
                  for seen in (one, more, other)]
        assert logits[0] == logits[1] != logits[2]


def test_the_actions_of_an_agent_that_is_not_there_change_nothing():
    with PPO(Scripted, **SETTINGS) as ppo:
        definition, rollout = Definition(Scripted, ppo.config), ppo.collect()
        act = np.where(rollout.valid.numpy(), rollout.act.numpy(), 99)
        steps, _ = definition.follow(act)
        assert_rows(rollout, steps, definition)
        assert (act == 99).sum() > 20


@NEEDS_EXTENSION
@pytest.mark.full
def test_a_game_that_fails_twice_in_a_worker_is_truncated_before_that_step(monkeypatch):
    monkeypatch.setattr(team, "PAUSES", (0.0, 0.0, 0.0))
    seed = episode_seed(3, Purpose.ENV_SEED, 2, 1)
    makers = [Scripted, Scripted, lambda: Faulty(seed, broken)]
    settings = SETTINGS | dict(num_workers=2, on_worker_failure="restart", norm_obs=False)
    cut = False
    with PPO(makers, **settings) as ppo:
        definition = Definition(Scripted, ppo.config)
        for _ in range(3):
            ppo.learn(ppo.step + 1)
            rollout = ppo.rollout
            for t, chosen in enumerate(rollout.act.numpy()):
                steps, longest = {}, definition.longest
                for g in range(3):
                    failing = g == 2 and definition.begun[2] == 2
                    definition.longest = 1 if failing else longest
                    definition.step(g, t, chosen, steps, [])
                    definition.longest = longest
                    cut |= failing
                for row in range(12):
                    assert rollout.valid[t, row] == ((t, row) in steps)
                    if (t, row) in steps:
                        assert rollout.raw[t, row] == np.float32(steps[t, row].rew)
                        assert rollout.trunc[t, row] == steps[t, row].trunc
        assert ppo.collector.vec.restarts.count == 2 and cut
