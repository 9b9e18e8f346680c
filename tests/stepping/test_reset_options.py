"""reset_options: which episode has which options, and that they come again in every replay."""

import csv
import json
import math
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from asked_of_runs import iterations
from fault_envs import guard, holds
from gymnasium.spaces import Box, Discrete
from interruption import Interruption
from optional_packages import NEEDS_EXTENSION

from fastppo import PPO
from fastppo.config import Config
from fastppo.errors import ConfigError, EnvError
from fastppo.runs.crash_bundle import read_bundle
from fastppo.stepping.rollout_recorder import MAX_INFO_KEYS
from fastppo.workers import team

SETTINGS = dict(preset="none", seed=3, num_envs=3, num_steps=8, num_minibatches=2, epochs=1,
                hidden_sizes=(4,), total_steps=240, norm_rewards=True)


class Levels(gym.Env):
    """Sees its level, a random number and its step; episodes of 5 to 9 steps, longer on top.

    It takes the level out of the options, which nobody else may notice.
    """

    observation_space, action_space = Box(-1, 99, (3,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.level, self.steps = -1 if options is None else options.pop("level"), 0
        if self.level == 13:
            raise KeyError("there is no level 13")
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        ended = self.steps >= 5 + self.level % 5
        return self._seen(), self.level + float(action) / 8, ended, False, {}

    def _seen(self):
        return np.array([self.level, self.np_random.random(), self.steps], np.float32)


def rising(progress):
    """A curriculum: another level in each iteration."""
    return {"level": int(10 * progress)}


def falling(progress):
    """Another level for each environment, the same one in two iterations."""
    return [{"level": e + 3 - int(5 * progress) // 2} for e in range(3)]


OPTIONS = {"dict": {"level": 2}, "list": [{"level": e} for e in (3, 0, 7)], "rising": rising,
           "falling": falling}


def bits(ppo, rollout):
    """All that an iteration has left behind, as bytes and numbers."""
    return ([x.numpy().tobytes() for x in rollout], ppo.episodes.stats(),
            ppo.learner.flat.values.numpy().tobytes())


def levels(ppo, count):
    """The level of each environment at each step of some iterations, [t e]."""
    return np.concatenate([ppo.collect().obs[:-1, :, 0].numpy().copy() for _ in range(count)])


def test_an_episode_has_the_options_of_the_iteration_in_which_it_begins():
    asked = []

    def by_progress(progress):
        asked.append(progress)
        return {"level": len(asked) % 5}
    with PPO(Levels, reset_options=by_progress, num_workers=0, **SETTINGS) as ppo:
        rows = [ppo.collect().obs.numpy().copy() for _ in range(10)]
    assert asked == [i / 10 for i in range(10)]  # 24 of 240 steps each
    begun = 0
    for i, obs in enumerate(rows):
        for t, row in enumerate(obs):
            for level, _, step in row if (i, t) == (0, 0) or t else ():
                if step == 0:
                    assert level == (i + 1) % 5  # the first row of a rollout is of the one before
                    begun += 1
    assert begun > 25


def test_every_environment_has_its_own_and_a_later_change_is_of_later_episodes():
    with PPO(Levels, reset_options=[{"level": e} for e in (3, 0, 7)], **SETTINGS) as ppo:
        assert (levels(ppo, 3) == [3, 0, 7]).all()
        ppo.reset_options = {"level": 2}
        changed = levels(ppo, 3)
        assert (changed[0] == [3, 0, 7]).all() and (changed[-8:] == 2).all()
        ppo.reset_options = None
        assert (levels(ppo, 3)[-8:] == -1).all()
        ppo.evaluate(3)
        assert ppo.evaluate(2).returns.max() < 0  # of level -1: evaluations have no options


@NEEDS_EXTENSION
@pytest.mark.some(2)
@pytest.mark.parametrize("name", OPTIONS)
def test_the_same_bits_come_of_any_number_of_workers(name):
    found = []
    for workers, acting in ((0, "local"), (1, "local"), (3, "local")):
        with PPO(Levels, reset_options=OPTIONS[name], num_workers=workers, acting=acting,
                 **SETTINGS) as ppo:
            found.append(iterations(ppo, 6, bits))
    assert found[0] == found[1] == found[2]
    with PPO(Levels, num_workers=0, acting="local", **SETTINGS) as ppo:
        assert iterations(ppo, 6, bits) != found[0]


@pytest.mark.some(3)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=NEEDS_EXTENSION)])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_resumed_run_is_the_same_bit_for_bit(name, workers, tmp_path):
    path, options = tmp_path / "c.safetensors", OPTIONS[name]
    with PPO(Levels, reset_options=options, num_workers=0, **SETTINGS) as ppo:
        iterations(ppo, 3, bits)
        ppo.checkpoint(path)
        want = iterations(ppo, 1, bits)
        ppo.collect()
        ppo.checkpoint(tmp_path / "pending.safetensors")  # of the iteration before
        want += iterations(ppo, 4, bits)
    again = {"reset_options": options} if callable(options) else {}
    if again:
        with pytest.raises(ConfigError, match="(?s)had your own reset_options.*fix: reset_options"):
            PPO.resume(path, Levels)
    with PPO.resume(path, Levels, num_workers=workers, **again) as ppo:
        assert iterations(ppo, 5, bits) == want
    with PPO.resume(tmp_path / "pending.safetensors", Levels, **again) as ppo:
        assert iterations(ppo, 4, bits) == want[1:]


def test_options_that_were_set_later_are_those_of_a_resumed_run_which_may_change_them(tmp_path):
    path = tmp_path / "c.safetensors"
    with PPO(Levels, reset_options={"level": 1}, num_workers=0, **SETTINGS) as ppo:
        iterations(ppo, 2, bits)
        ppo.reset_options = {"level": 4, "goal": [1, {"at": 2.5}]}
        iterations(ppo, 1, bits)
        ppo.checkpoint(path)
        want = iterations(ppo, 3, bits)
    with PPO.resume(path, Levels) as ppo:
        assert iterations(ppo, 3, bits) == want
        assert ppo.reset_options == {"level": 4, "goal": [1, {"at": 2.5}]}
    with PPO.resume(path, Levels, reset_options=None) as ppo:
        seen = levels(ppo, 3)
        assert (seen[0] != -1).any() and (seen[-8:] == -1).all()


def test_a_run_that_had_none_can_be_resumed_with_options(tmp_path):
    with PPO(Levels, num_workers=0, **SETTINGS) as ppo:
        iterations(ppo, 2, bits)
        ppo.checkpoint(tmp_path / "c.safetensors")
    with PPO.resume(tmp_path / "c.safetensors", Levels, reset_options={"level": 2}) as ppo:
        seen = levels(ppo, 2)
    assert (seen[0] == -1).any() and (seen[-4:] == 2).all()


@NEEDS_EXTENSION
@pytest.mark.some(2)
@pytest.mark.parametrize("name", OPTIONS)
def test_workers_that_start_again_change_no_bit(name, monkeypatch):
    monkeypatch.setattr(team, "PAUSES", (0.0, 0.0, 0.0))
    found = []
    for killed in ((), (0, 3)):
        with PPO(Levels, reset_options=OPTIONS[name], num_workers=2, on_worker_failure="restart",
                 **SETTINGS) as ppo:
            found.append([])
            for i in range(6):
                if i in killed:
                    process = ppo.collector.vec.team.workers[1].process
                    os.kill(process.pid, signal.SIGKILL)
                    assert holds(lambda one=process: one.poll() is not None)
                found[-1] += [one[0] for one in iterations(ppo, 1, bits)]
            assert ppo.collector.vec.restarts.count == len(killed)
    assert found[0] == found[1]


@pytest.mark.some(1)
@pytest.mark.parametrize("workers, acting", [
    (0, "local"), (0, "central"), pytest.param(2, "local", marks=NEEDS_EXTENSION)])
def test_an_interrupt_anywhere_in_a_rollout_changes_no_bit(workers, acting):
    settings = SETTINGS | dict(num_workers=workers, acting=acting, reset_options=rising)
    modules = "collect vecenv stepping/replay stepping/environments workers/worker_vecenv"
    with guard(300), PPO(Levels, **settings) as ppo:
        with Interruption(-1, modules) as counted:
            want = [iterations(ppo, 1, bits)[0][0] for _ in range(2)]
        want += [one[0] for one in iterations(ppo, 8, bits)]
    struck, points = set(), 8 if workers else 20
    for at in np.linspace(1, counted.lines, points).astype(int).tolist():
        with guard(300), PPO(Levels, **settings) as ppo:
            found = []
            with Interruption(at, modules, struck) as strike:
                while len(found) < 4:
                    try:
                        found.append(iterations(ppo, 1, bits)[0][0])
                    except KeyboardInterrupt:
                        struck.add(strike.place)
            assert found == want[:4], strike.place
    assert len(struck) > points // 2  # a run with fewer waits may end before the last ones


class Breaks(Levels):
    """Fails at the third step of level 4 alone."""

    def step(self, action):
        if self.level == 4 and self.steps == 2:
            raise RuntimeError(f"level {self.level} is broken")
        return super().step(action)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=NEEDS_EXTENSION)])
@pytest.mark.parametrize("env, said, step", [
    (Breaks, "RuntimeError: level 4 is broken", 2), (Levels, "KeyError: .*no level 13", -1)])
def test_a_bundle_has_the_options_and_its_replay_fails_again(
        command, monkeypatch, tmp_path, workers, env, said, step):
    monkeypatch.setattr("envs_for_tests.Under", env, raising=False)
    bad = 4 if env is Breaks else 13
    with PPO(env, num_workers=workers, run_dir=str(tmp_path), **SETTINGS,
             reset_options=lambda progress: {"level": bad if progress > 0.3 else 1}) as ppo:
        with pytest.raises(EnvError, match=said) as caught:
            ppo.learn()
    place = caught.value.places[0]
    assert place.step == step and f"environment {place.env} (" in str(caught.value)
    bundle = next(tmp_path.glob(f"fault-env{place.env}-*.bundle"))
    assert read_bundle(bundle).options[-1][1] == {"level": bad}
    code, out, _ = command("replay", str(bundle), "--env_name=envs_for_tests:Under")
    assert code == 0 and "again     environment" in out
    assert said.partition(": ")[2].removeprefix(".*") in out


def test_the_error_of_wrong_options_names_the_environment():
    with PPO("CartPole-v1", **SETTINGS, reset_options={"low": "deep"}) as ppo:
        with pytest.raises(EnvError, match=r"in reset\(\) of CartPole-v1: ValueError: .*deep"):
            ppo.collect()


def test_returns_are_shown_by_option(tmp_path):
    options = [{"level": 1, "name": "easy", "wind": 0.5}, {"level": 2, "name": "hard", "wind": 0.7},
               {"level": 2, "on": True, "goal": [3]}]
    with PPO(Levels, reset_options=options, run_dir=str(tmp_path), **SETTINGS) as ppo:
        ppo.learn()
        stats, recent = ppo.episodes.stats(), ppo.episodes.state.recent
    shown = {name.rpartition("/")[2]: x for name, x in stats.items()
             if name.startswith("charts/episodic_return/")}
    assert shown.keys() == {"level=1", "level=2", "name=easy", "name=hard", "on=True"}
    for name, value in shown.items():
        own = [total for total, _, infos in recent if f"charts/episodic_return/{name}" in infos]
        assert math.isclose(value, np.mean(own)) and len(own) > 5
    assert 5 < shown["level=1"] < 10 < shown["name=hard"] < 17.5  # six steps of 1, seven of 2
    with open(tmp_path / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert math.isclose(float(rows[-1]["charts/episodic_return/level=2"]), shown["level=2"])


def test_the_number_of_metrics_by_option_is_limited():
    with PPO(Levels, num_workers=0, **SETTINGS | {"total_steps": 24 * 60},
             reset_options=lambda progress: {"level": int(1e4 * progress)}) as ppo:
        ppo.learn()
        names = [name for name in ppo.episodes.stats() if "level=" in name]
        assert len(ppo.episodes.state.names) == MAX_INFO_KEYS and len(names) <= MAX_INFO_KEYS
        assert len(ppo.collector.snapshots.log.state.options) < 9  # those of running episodes


@NEEDS_EXTENSION
def test_nothing_is_sent_to_the_workers_unless_the_options_change():
    counts = []
    for options in (None, {"level": 2}, rising):
        with PPO(Levels, num_workers=2, norm_obs=False, reset_options=options, learner="torch",
                 **SETTINGS) as ppo:
            for _ in range(5):
                ppo.update(ppo.collect())
            counts.append(ppo.collector.vec.team.posted.generation)
    assert counts == [6, 7, 11]  # start and five rollouts; once more; and each time


@pytest.mark.parametrize("options, said", [
    ([{"level": 1}] * 2, "a list of one for each of 3 environments"),
    (lambda progress: 7, "reset_options are 7, but must be a dict"),
    (lambda progress: [{"level": 1}], "a list of one for each of 3"),
    ({"level": np.int64(3)}, "that JSON can hold"), ({"level": object()}, "that JSON can hold")])
def test_what_are_no_options_is_an_error(options, said):
    with PPO(Levels, reset_options=options, num_workers=0, **SETTINGS) as ppo:
        with pytest.raises(ConfigError, match=said):
            ppo.collect()
    with PPO(Levels, num_workers=0, **SETTINGS) as ppo:
        ppo.reset_options = options
        with pytest.raises(ConfigError, match=said):
            ppo.collect()
        ppo.reset_options = {"level": 2}
        assert (ppo.collect().obs[:, :, 0] == 2).all()


@pytest.mark.parametrize("options", [7, "level=3", [1, 2], [{"level": 1}, None], {1: 2}])
def test_a_setting_that_can_be_no_options_is_refused_at_once(options):
    with pytest.raises(ConfigError, match="reset_options is .*must be a dict by name, a list of"):
        Config(reset_options=options)


class Optionless(gym.Env):
    """An environment of before options."""

    observation_space, action_space = Box(-1, 1, (1,)), Discrete(2)

    def reset(self, *, seed=None):
        return np.zeros(1, np.float32), {}


@pytest.mark.parametrize("env, said", [
    (Optionless, "unexpected keyword argument 'options'"), (Levels, "KeyError: 'level'")])
def test_wrong_options_are_the_environments_own_error_with_its_number(env, said):
    with PPO(env, reset_options={"stage": 3}, num_workers=0, **SETTINGS) as ppo:
        with pytest.raises(EnvError, match=rf"(?s)environment 0 \(seed.*reset\(\).*{said}"):
            ppo.collect()


def test_a_vector_environment_is_reset_by_itself_and_has_none():
    said = "(?s)resets its environments itself.*leave reset_o"
    vector = gym.make_vec("CartPole-v1", 3, "vector_entry_point")
    with pytest.raises(ConfigError, match=said):
        PPO(vector, reset_options={"low": -0.1}, **SETTINGS)
    with PPO(vector, **SETTINGS) as ppo:
        ppo.reset_options = {"low": -0.1}
        with pytest.raises(ConfigError, match=said):
            ppo.learn()


def test_options_are_json_on_the_command_line(command, tmp_path):
    run = tmp_path / "run"
    code, out, err = command("--env_name=CartPole-v1", "--reset_options={\"low\": -0.01, \"high\":"
                             " 0.01}", "--num_envs=2", "--num_steps=32", "--num_minibatches=1",
                             "--total_steps=64", "--num_workers=0", f"--run_dir={run}",
                             "--eval_episodes=0", "--progress=none", "--seed=1")
    assert code in (0, None), err
    assert json.loads((run / "config.json").read_text())["reset_options"] == {
        "low": -0.01, "high": 0.01}
    code, _, err = command("--env_name=CartPole-v1", "--reset_options=3")
    assert code == 2 and "reset_options is no JSON object" in err
