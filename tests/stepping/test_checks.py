"""Checks of the values that environments return, and the warning about global generators."""

import random
import subprocess
import sys
from fractions import Fraction
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_workers import Late, Shared

from fastppo import PPO
from fastppo.errors import ConfigError, EnvError, SpaceError
from fastppo.stepping import environments as checks

SIZES = dict(num_envs=2, num_steps=8, num_minibatches=1, epochs=1, num_workers=0, preset="none")


@pytest.mark.parametrize("rew", [
    1, 1.5, np.float64(2), np.float32(3), np.int64(4), True, np.array(5), torch.tensor(6.0),
    torch.tensor(7), Fraction(1, 2)])
def test_one_real_number_is_a_reward(rew):
    assert checks.checked_reward(rew) == float(rew)


@pytest.mark.parametrize(("value", "meant"), [
    (True, True), (False, False), (np.bool_(True), True), (0, False), (np.array(1), True)])
def test_one_yes_or_no_is_a_flag(value, meant):
    assert checks.checked_flag(value) is meant


@pytest.mark.parametrize("value", [None, "", "no", b"", {}, [], (), set(), np.zeros(2)])
def test_what_is_not_one_yes_or_no_is_no_flag(value):
    with pytest.raises(ValueError, match="not True or False"):
        checks.checked_flag(value)


@pytest.mark.parametrize("rew", [None, "1", b"1", [1.0], np.array([1.0]), np.nan, np.inf, 1e39, 1j,
                                 1 + 0j, torch.tensor([1.0]),
                                 torch.tensor(1j), torch.tensor(torch.nan), {}])
def test_anything_else_is_not(rew):
    with pytest.raises(ValueError, match="the reward is"):
        checks.checked_reward(rew)


@pytest.fixture
def shared_generators():
    """They are afterwards as they were."""
    state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


@pytest.mark.parametrize(("draw", "named"), [(lambda env: np.random.rand(), "numpy.random"),
                                             (lambda env: random.random(), "of random"),
                                             (lambda env: torch.rand(()), "of torch")])
def test_an_environment_that_draws_from_a_shared_generator_is_named_once(
        draw, named, caplog, shared_generators):
    with PPO(lambda: Shared(draw), **SIZES) as ppo:
        ppo.collect()
        assert named in caplog.text
        caplog.clear()
        ppo.collect()
        assert caplog.text == ""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("length", [30, 19])
def test_a_shared_generator_is_watched_until_the_first_episodes_are_over(
        length, workers, caplog, shared_generators):
    sizes = {**SIZES, "num_envs": 2, "num_steps": 8, "num_workers": workers}
    with PPO(partial(Late, length), **sizes) as ppo:
        for _ in range(5):
            np.random.rand()  # the host's own draws are no environment's
            ppo.collect()
    assert caplog.text.count("numpy.random") == (length == 30)


def test_one_that_draws_from_its_own_is_not(caplog):
    with PPO(lambda: Shared(lambda env: env.np_random.random()), **SIZES) as ppo:
        ppo.collect()
    assert caplog.text == ""


def test_a_list_whose_environments_differ_in_their_spaces_is_refused():
    with pytest.raises(SpaceError, match="environment 1 has the spaces"):
        PPO([lambda: gym.make("CartPole-v1"), lambda: gym.make("Acrobot-v1")])


def test_an_action_space_of_unsigned_integers_samples_like_any_other_discrete():
    class Unsigned(Shared):
        action_space = gym.spaces.Discrete(4, dtype=np.uint8)

    class Signed(Shared):
        action_space = gym.spaces.Discrete(4)

    acts = []
    for make in (Unsigned, Signed):
        with PPO(lambda make=make: make(lambda env: 0.0), seed=3, **SIZES) as ppo:
            acts.append(ppo.collect().act.numpy().copy())
    assert len(set(acts[0].ravel().tolist())) > 1
    np.testing.assert_array_equal(*acts)


@pytest.mark.parametrize("draw", [lambda env: None, lambda env: 1 / 0, lambda env: np.nan])
def test_a_fault_during_evaluation_is_one_error_that_names_the_episode(draw):
    with PPO(lambda: Shared(draw), seed=3, **SIZES) as ppo:
        place = r"evaluation, seed \d+, episode 0, step 0\) failed in step"
        with pytest.raises(EnvError, match=place):
            ppo.evaluate(2)
        with pytest.raises(ConfigError, match="episodes is 0"):
            ppo.evaluate(0)


def test_a_rate_is_full_again_after_a_learn_that_was_interrupted():
    def stop(ppo, stats):
        raise KeyboardInterrupt

    with PPO(lambda: Shared(lambda env: 0.0), total_steps=1600, **SIZES) as ppo:
        with pytest.raises(KeyboardInterrupt):
            ppo.learn(16, callbacks=[stop])
        ppo.collect()
        assert ppo.lr == pytest.approx(ppo.config.lr * 0.99)


def test_a_device_that_is_not_supported_is_refused():
    with pytest.raises(ConfigError, match="one of auto, cpu, cuda"):
        PPO("CartPole-v1", device="meta")


TRAINER = """
from fastppo import PPO
with PPO("CartPole-v1", num_envs=2, num_steps=8, num_minibatches=1, epochs=1, num_workers=2) as ppo:
    ppo.collect()
"""
VECTOR = """
from fastppo import make_vec
with make_vec("CartPole-v1", num_envs=2, num_workers=1) as vec:
    vec.reset()
"""


@pytest.mark.some(1)
@pytest.mark.parametrize(("script", "closed"), [
    (VECTOR, "<&-"), (VECTOR, ">&-"), (VECTOR, "2>&-"), (TRAINER, "<&- >&- 2>&-")])
def test_workers_start_where_the_standard_streams_are_closed(tmp_path, script, closed):
    (tmp_path / "quiet.py").write_text(script)
    command = f"exec '{sys.executable}' '{tmp_path / 'quiet.py'}' {closed}"
    assert subprocess.run(["sh", "-c", command], timeout=60).returncode == 0
