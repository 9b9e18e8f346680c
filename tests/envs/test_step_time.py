"""num_workers="auto": the time of a step decides the number of workers, and nothing else."""

import math
import random

import gymnasium as gym
import numpy as np
import pytest
import torch
from optional_packages import NEEDS_EXTENSION

from fastppo import Config, make_vec
from fastppo.cli.command_line import read
from fastppo.envs import source
from fastppo.envs.source import MOST_STEPS, step_seconds
from fastppo.errors import ConfigError, Error
from fastppo.machine import limits
from fastppo.settings.presets import PRESETS
from fastppo.trainer.given_settings import config_for
from fastppo.trainer.resolve import workers_are_faster

LOCAL = Config(acting="local", num_envs=64, num_steps=64, total_steps=400_000)
CENTRAL = LOCAL.replace(acting="central")


class Witness(gym.Env):
    """Draws from every shared generator; counts its calls, over all of its kind."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2, start=3)
    steps = resets = closed = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        Witness.resets += 1
        self.left = 5
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert action in self.action_space
        random.random(), np.random.rand(), torch.rand(1)
        Witness.steps += 1
        self.left -= 1
        return np.zeros(2, np.float32), 1.0, self.left == 0, False, {}

    def close(self):
        Witness.closed += 1


class Broken(Witness):
    """Fails in its second step."""

    def step(self, action):
        if self.left == 4:
            raise RuntimeError("no further")
        return super().step(action)


@pytest.fixture(autouse=True)
def counters_at_zero():
    Witness.steps = Witness.resets = Witness.closed = 0


def test_workers_pay_where_they_save_more_than_they_cost():
    assert workers_are_faster(40e-6, LOCAL, 2)
    assert workers_are_faster(40e-6, CENTRAL.replace(num_envs=256), 2)
    assert workers_are_faster(math.inf, LOCAL, 2)
    assert not workers_are_faster(40e-6, LOCAL.replace(total_steps=4096), 2)  # too short
    assert workers_are_faster(40e-6, LOCAL.replace(total_steps=4096 * 100), 2)
    assert not workers_are_faster(1e-6, CENTRAL, 2)  # handing over takes longer
    assert workers_are_faster(1e-6, LOCAL.replace(total_steps=4_000_000), 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_one_worker_saves_nothing(workers):
    assert not workers_are_faster(1.0, LOCAL, workers)


def test_measuring_ends_after_a_number_of_steps_that_play_whole_episodes():
    assert 0 < step_seconds(Witness()) < math.inf
    assert Witness.steps <= MOST_STEPS + 1 and Witness.resets >= Witness.steps // 5


def test_measuring_ends_after_one_slow_step(monkeypatch):
    times = iter(range(0, 100, 10))
    monkeypatch.setattr(source, "perf_counter", lambda: next(times))
    assert step_seconds(Witness()) == 10.0
    assert Witness.steps == 2  # the first one is not counted


def test_an_environment_that_fails_takes_infinite_time_and_its_run_reports_why(trainer):
    assert step_seconds(Broken()) == math.inf
    with pytest.raises(Error, match="no further"):
        trainer(Broken, num_workers="auto", num_envs=1).learn(8)


def test_measuring_leaves_the_shared_generators_and_closes_the_environment(trainer):
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    ppo = trainer(Witness, num_workers="auto", total_steps=32)
    after = random.getstate(), np.random.get_state(), torch.get_rng_state()
    assert Witness.steps > 5 and Witness.closed == 1 and ppo.config.num_workers == 0
    assert before[0] == after[0] and torch.equal(before[2], after[2])
    assert all(map(np.array_equal, before[1], after[1]))


def test_nothing_is_measured_unless_asked_for(trainer):
    trainer(Witness)
    assert (Witness.steps, Witness.resets) == (0, 1)  # which shows whether there are masks


@pytest.mark.parametrize("seconds, wanted", [
    (0.0, 0), pytest.param(math.inf, min(limits.usable_cores(), 4), marks=NEEDS_EXTENSION)])
def test_the_measurement_decides_the_number_of_workers_and_nothing_else(
        trainer, monkeypatch, seconds, wanted):
    monkeypatch.setattr(source, "step_seconds", lambda env: seconds)
    wanted = wanted if wanted > 1 else 0
    ppo, plain = trainer("CartPole-v1", num_workers="auto"), trainer("CartPole-v1")
    assert ppo.config == plain.config.replace(num_workers=wanted)
    for one in (ppo, plain):
        one.learn(64)
    assert torch.equal(ppo.learner.flat.values, plain.learner.flat.values)


def test_a_vector_environment_chooses_its_workers_too(monkeypatch):
    monkeypatch.setattr(source, "step_seconds", lambda env: 0.0)
    env = make_vec("CartPole-v1", num_envs=2, num_workers="auto", seed=1)
    assert len(env.slices) == 1
    env.close()


@pytest.mark.parametrize("name", ["num_envs", "num_steps"])
def test_auto_is_the_presets_value_where_it_changes_learning_else_the_default(name):
    for env, wanted in (("Acrobot-v1", PRESETS["acrobot"]), ("Blackjack-v1", vars(Config()))):
        assert getattr(config_for(env, {name: "auto"}), name) == wanted[name]
        request = read([f"--env={env}", f"--{name}=auto", "--num_workers=auto"])
        assert getattr(request.config, name) == wanted[name]
        assert request.given["num_workers"] == "auto" and name not in request.given
    assert getattr(config_for([gym.Env, gym.Env], {name: "auto"}), name) == getattr(Config(), name)


def test_auto_is_no_value_of_other_numbers():
    for name in ("num_minibatches", "eval_episodes", "epochs"):
        with pytest.raises(ConfigError, match=f"{name} is"):
            read([f"--{name}=auto"])
        with pytest.raises(ConfigError, match=f"{name} is 'auto'"):
            config_for("CartPole-v1", {name: "auto"})
