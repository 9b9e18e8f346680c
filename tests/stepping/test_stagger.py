"""stagger: which first episodes are truncated and where, in every way of stepping."""

import gymnasium as gym
import numpy as np
import pytest
from asked_of_runs import weights
from compiled_for_tests import Push, in_python
from envs_for_tests import Constant
from games_for_tests import Scripted
from optional_packages import NEEDS_EXTENSION
from tiny_settings import TINY

from fastppo import PPO
from fastppo.errors import ConfigError

SETTINGS = TINY | dict(num_steps=6, stagger=12)


def endless():
    return Constant(10**9)


def lengths(ppo, iterations=5):
    """The lengths of the episodes of each row that end in some iterations."""
    found = []
    for _ in range(iterations):
        ppo.update(ppo.collect())
        found.append(ppo.arena["length"].copy())
    return [row[row > 0].tolist() for row in np.concatenate(found).T]


@pytest.mark.parametrize("changes", [
    dict(num_workers=0), pytest.param(dict(num_workers=2), marks=NEEDS_EXTENSION),
    pytest.param(dict(num_workers=3, acting="central"), marks=NEEDS_EXTENSION)])
def test_first_episodes_end_one_after_the_other_in_training(changes):
    with PPO(endless, **SETTINGS | changes, max_episode_steps=12) as ppo:
        assert lengths(ppo) == [[12, 12], [3, 12, 12], [6, 12, 12], [9, 12]]
        assert ppo.evaluate(5).lengths.tolist() == [12] * 5


@pytest.mark.parametrize(("env", "stagger", "wanted"), [
    (endless, 0, [[], [], [], []]), (endless, 60, [[], [15], [30], []]),
    (endless, 5, [[], [2], [3], [4]]), (lambda: Constant(10), 20, [
        [10] * 3, [5, 10, 10], [10] * 3, [10] * 3]),
    (Push, 8, [[7] * 4, [2, *[7] * 4], [4, *[7] * 3], [6, *[7] * 3]]),
    (in_python(Push), 8, [[7] * 4, [2, *[7] * 4], [4, *[7] * 3], [6, *[7] * 3]])])
def test_none_ends_later_than_otherwise(env, stagger, wanted):
    with PPO(env, **SETTINGS | dict(stagger=stagger)) as ppo:
        assert lengths(ppo) == wanted


def test_a_game_ends_for_all_its_agents():
    with PPO(lambda: Scripted(99), **SETTINGS | dict(num_envs=2, stagger=6)) as ppo:
        vec = ppo.collector.vec
        ppo.collect()
        assert vec.running[0].number >= 0 and vec.running[4].start in range(1, 4)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=NEEDS_EXTENSION)])
@pytest.mark.parametrize("env", [endless, Push])
def test_a_run_that_is_resumed_within_such_an_episode_is_the_same(env, workers, tmp_path):
    settings = SETTINGS | dict(stagger=60, norm_rewards=True, max_episode_steps=40)
    with PPO(env, **settings) as ppo:
        ppo.update(ppo.collect())
        ppo.checkpoint(tmp_path / "c.safetensors")
        wanted = lengths(ppo, 7), weights(ppo).tolist()
    with PPO.resume(tmp_path / "c.safetensors", env, num_workers=workers) as ppo:
        assert (lengths(ppo, 7), weights(ppo).tolist()) == wanted


def test_the_episodes_of_a_vector_environment_end_by_themselves():
    env = gym.make_vec("CartPole-v1", num_envs=2)
    with pytest.raises(ConfigError, match="stagger=9, but a vector environment"):
        PPO(env, preset="none", stagger=9)
    env.close()
