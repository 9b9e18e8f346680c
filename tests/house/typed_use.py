"""What a type checker knows of the public names; `make check` reads it, nothing runs it."""

from typing import Any, assert_type

import fastppo
from fastppo import PPO, Config, Error, Evaluation, Policy, Rollout, export, load, make_vec
from fastppo.runs.policy_file import LoadedPolicy


def use() -> None:
    """Every public name once, as README uses it."""
    with PPO("CartPole-v1", seed=1) as ppo:
        assert_type(ppo, PPO)
        assert_type(ppo.learn(1000), PPO)
        assert_type(ppo.collect(), Rollout)
        assert_type(ppo.update(ppo.collect()), dict[str, float])
        assert_type(ppo.evaluate(episodes=10), Evaluation)
        assert_type(ppo.config, Config)
        assert_type(ppo.policy, Policy)
        assert_type(ppo.step, int)
        ppo.save("policy.safetensors")
    policy = load("policy.safetensors")
    assert_type(policy, LoadedPolicy)
    assert_type(policy.evaluate(episodes=10), Evaluation)
    assert_type(policy.predict([0.0]), Any)
    export(policy, "policy.onnx")
    assert_type(make_vec("CartPole-v1", num_envs=2).num_envs, int)
    assert_type(Config().gamma, float)
    assert_type(Error("what").what, str)
    assert_type(fastppo.__version__, str)
