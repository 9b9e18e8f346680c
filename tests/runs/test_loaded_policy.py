"""A policy from a file evaluates itself, in the environment of its file or in another one."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_tests import Chance, Counting, Fenced
from gymnasium.spaces import Box, Dict, Discrete
from optional_packages import NEEDS_BOX2D

from fastppo import Policy, load
from fastppo.errors import ConfigError, EnvError
from fastppo.evaluation import evaluate
from fastppo.runs.policy_file import factories_for, stored_arguments

MIXED = Dict(a=Box(-np.inf, np.inf, (3,), np.float32), b=Discrete(4))


def saved(ppo, path):
    """The policy of `ppo`, from a file."""
    ppo.save(path / "policy.safetensors")
    return load(path / "policy.safetensors")


def same(one, other):
    """True if two evaluations have the same returns and lengths, bit for bit."""
    return all(np.array_equal(getattr(one, name), getattr(other, name))
               for name in ("returns", "lengths"))


@pytest.mark.parametrize("settings", [
    {}, dict(rnn="gru"), dict(frame_stack=2), dict(max_episode_steps=30)], ids=str)
@pytest.mark.parametrize("deterministic", [True, False])
def test_it_plays_what_its_trainer_plays_bit_for_bit(trainer, tmp_path, settings, deterministic):
    ppo = trainer("CartPole-v1", **{"max_episode_steps": 60, **settings}).learn(64)
    policy = saved(ppo, tmp_path)
    assert isinstance(policy, Policy) and policy.config.env_name == "CartPole-v1"
    wanted = ppo.evaluate(5, deterministic)
    assert same(policy.evaluate(episodes=5, deterministic=deterministic), wanted)
    assert same(policy.evaluate(episodes=5, deterministic=deterministic), wanted)  # again the same


def test_its_repr_is_a_line_with_environment_model_and_steps(trainer, tmp_path):
    policy = saved(trainer("CartPole-v1", total_steps=2_000), tmp_path)
    assert repr(policy) == "<policy for CartPole-v1: mlp, of a run of 2,000 steps>"


def test_another_seed_gives_other_episodes(trainer, tmp_path):
    policy = saved(trainer("CartPole-v1").learn(32), tmp_path)
    assert not same(policy.evaluate(episodes=5), policy.evaluate(episodes=5, seed=2))
    assert same(policy.evaluate(episodes=5), policy.evaluate(episodes=5, seed=policy.config.seed))


@pytest.mark.parametrize("make", [
    lambda: Chance(MIXED), lambda: Fenced("info"), lambda: Fenced("obs")],
    ids=["Dict", "mask in the info", "mask in the observation"])
def test_an_environment_of_ones_own_is_given(trainer, tmp_path, make):
    ppo = trainer(make).learn(32)
    assert same(saved(ppo, tmp_path).evaluate(make, 4), ppo.evaluate(4))


def test_it_predicts_and_moves_as_the_policy_that_was_saved(trainer, tmp_path):
    ppo = trainer("Pendulum-v1", norm_obs=True).learn(64)
    policy, obs = saved(ppo, tmp_path), np.ones(3, np.float32)
    assert np.array_equal(policy.predict(obs), ppo.policy.predict(obs))
    states = policy.state_dict(), ppo.policy.state_dict()
    assert list(states[0]) == list(states[1])
    assert all(torch.equal(x, states[1][name]) for name, x in states[0].items())
    assert policy.double().observer.mean.dtype == torch.float64  # still a module as others


@pytest.mark.parametrize("name", ["my_module:MyEnv", "NoSuchEnv-v7", "os:system"])
def test_code_that_a_file_names_is_never_imported(name, trainer, tmp_path):
    policy = saved(trainer("CartPole-v1"), tmp_path)
    assert factories_for(policy)[0].name == "CartPole-v1"
    policy.config = policy.config.replace(env_name=name)
    with pytest.raises(ConfigError, match="never imported"):
        factories_for(policy)
    policy.config = policy.config.replace(eval_env="CartPole-v1")
    assert factories_for(policy)[0].name == "CartPole-v1"


@pytest.mark.parametrize("kwargs, used", [
    (None, True), ({"gravity": -9.8, "wind": [1, True, None]}, True), ({"file": "a.xml"}, False),
    ({"a": {"b": ["c"]}}, False)])
def test_arguments_in_a_file_are_used_if_they_are_numbers(kwargs, used):
    if used:
        assert stored_arguments("MyEnv", kwargs) == kwargs
    else:
        with pytest.raises(ConfigError, match="never used"):
            stored_arguments("MyEnv", kwargs)


@NEEDS_BOX2D
def test_the_arguments_of_training_count_unless_others_are_given(trainer, tmp_path):
    ppo = trainer("LunarLander-v3", env_kwargs={"continuous": True}, max_episode_steps=20)
    policy = saved(ppo, tmp_path)
    assert same(policy.evaluate(episodes=2), ppo.evaluate(2))
    with pytest.raises(ConfigError, match=r"actions are of the space Discrete\(4\)"):
        policy.evaluate(episodes=2, env_kwargs={"continuous": False})


@pytest.mark.parametrize("words, match", [
    (dict(env="Pendulum-v1"), r"^Pendulum-v1 does not fit: its observations are of the space"
     r" Box\(3,\) float32 from -8.0 to 8.0, but the policy is trained for Box\(4,\) float32 from"),
    (dict(env="NoSuchEnv-v7"), "there is no environment"), (dict(episodes=0), "episodes is 0"),
    (dict(seed=-1), "seed is -1"), (dict(max_episode_steps=0), "max_episode_steps is 0"),
    (dict(env=3.5), "env is 3.5")], ids=str)
def test_wrong_arguments_are_refused(trainer, tmp_path, words, match):
    policy = saved(trainer("CartPole-v1"), tmp_path)
    with pytest.raises(ConfigError, match=match):
        policy.evaluate(**words)


def test_an_episode_that_does_not_end_is_an_error_if_there_is_no_time_limit(
        trainer, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluate, "MAX_STEPS", 50)
    ppo = trainer(lambda: Counting(60))
    policy = saved(ppo, tmp_path)
    for one in (ppo.evaluate, lambda count: policy.evaluate(lambda: Counting(60), count)):
        with pytest.raises(EnvError, match="episode 0 has not ended after 50 steps"):
            one(2)
    assert policy.evaluate(episodes=2, env=lambda: Counting(50)).lengths.tolist() == [50, 50]
    limited = policy.evaluate(episodes=2, env=lambda: gym.wrappers.TimeLimit(Counting(99), 70))
    assert limited.lengths.tolist() == [70, 70]
    short = policy.evaluate(episodes=2, env=lambda: Counting(60), max_episode_steps=7)
    assert short.lengths.tolist() == [7, 7]


def test_progress_is_reported_after_every_step(trainer, tmp_path):
    policy, seen = saved(trainer(Counting), tmp_path), []
    found = evaluate.evaluate(policy, factories_for(policy, Counting), 1, 6,
                              report=lambda returns: seen.append(returns.tolist()))
    counts = [0, 0, 0, 0, 4, 4, 4, 4, 4, 6]  # episodes of 5 steps, in 4 environments
    assert seen == [found.returns[:count].tolist() for count in counts]
