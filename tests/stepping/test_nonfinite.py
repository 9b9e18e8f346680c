"""nan_policy=reset_env: a step with a number that is not finite is none, and ends its episode."""

import functools

import gymnasium as gym
import numpy as np
import pytest
import torch
from fault_envs import Calm, observing, paying
from gymnasium.spaces import Box, Discrete

from fastppo import PPO, reference
from fastppo.errors import ConfigError, EnvError

SETTINGS = dict(preset="none", seed=7, num_envs=2, num_steps=16, num_minibatches=2, epochs=2,
                hidden_sizes=(4,), norm_obs=False, norm_rewards=False, nan_policy="reset_env")
NAN = float("nan")
FAULTS = {"observation": observing(np.array([0, NAN], np.float32)),
          "infinity": observing(np.array([np.inf, 0], np.float64)), "reward": paying(NAN),
          "final": lambda env: (np.array([NAN, 0], np.float32), 0.0, True, False, {})}
WORKERS = pytest.mark.parametrize("settings", [
    dict(num_workers=0), dict(num_workers=2), dict(num_workers=2, acting="central"),
    dict(num_workers=1, rnn="gru", rnn_size=4)], ids=["main", "workers", "central", "memory"])


class Now(Calm):
    """Episodes of 6 steps; has a fault in some steps of its life."""

    def __init__(self, fault, *at):
        super().__init__(6)
        self.fault, self.at, self.life = fault, at, 0

    def step(self, action):
        self.life += 1
        reply = super().step(action)
        return self.fault(self) if self.life - 1 in self.at else reply


@pytest.mark.full
@WORKERS
@pytest.mark.parametrize("name", FAULTS)
def test_the_step_is_discarded_and_the_episode_truncated_before_it(name, settings):
    env = [lambda: Calm(6), functools.partial(Now, FAULTS[name], 3, 8)]
    with PPO(env, **SETTINGS, **settings) as ppo:
        rollout = ppo.collect()
        assert rollout.valid[:, 0].all()
        assert (~rollout.valid[:, 1]).nonzero().flatten().tolist() == [
            3, 8]
        assert rollout.trunc[[2, 7], 1].all() and rollout.obs[[4, 9], 1, 0].tolist() == [0, 0]
        assert rollout.nxt[[2, 7], 1].tolist() == rollout.val[[3, 8], 1].tolist()
        assert ppo.step == 30 and rollout.adv[rollout.valid].isfinite().all()
        mask = rollout.valid[:3, 1:]
        parts = (getattr(rollout, part)[:3, 1:].numpy()
                 for part in ("rew", "val", "nxt", "term", "trunc"))
        assert mask.all()
        np.testing.assert_allclose(rollout.adv[:3, 1:].numpy(), reference.gae(
            *parts, True, ppo.config.gamma, ppo.config.gae_lambda), rtol=1e-5, atol=1e-5)
        stats = ppo.update(rollout)
        assert all(np.isfinite(value) for value in stats.values())
        assert all(x.isfinite().all() for x in ppo.policy.parameters())


def test_a_fault_in_the_first_step_of_a_rollout_and_of_an_episode_is_discarded_too():
    env = functools.partial(Now, FAULTS["reward"], 0, 16, 17, 18)
    with PPO(env, **SETTINGS, num_workers=0) as ppo:
        first = ppo.collect()
        assert not first.valid[0].any() and first.valid[1:].all() and not first.trunc[0, 0] < 1
        ppo.update(first)
        second = ppo.collect()
        assert (~second.valid[:, 0]).nonzero().flatten().tolist() == [0, 1, 2]
        ppo.update(second)


def test_a_discarded_step_is_in_no_length():
    env = functools.partial(Now, FAULTS["reward"], 4, 5)
    with PPO(env, **SETTINGS | {"num_envs": 1}, num_workers=0) as ppo:
        ppo.collect()
        ppo.episodes.add(ppo.arena, 0)
        assert [length for _, _, length in ppo.episodes.ended] == [4, 6]


def test_discarded_steps_are_counted(tmp_path):
    seen = []
    env = functools.partial(Now, FAULTS["reward"], 3, 10, 40)
    with PPO(env, **SETTINGS, num_workers=0) as ppo:
        ppo.learn(3 * 32, lambda ppo, stats: seen.append(stats.get("faults/discarded_steps")))
    assert seen[:3] == [4.0, 4.0, 6.0]


@pytest.mark.full
def test_the_number_of_workers_changes_no_bit_with_discarded_steps():
    runs = []
    for workers in (0, 1, 2):
        with PPO(functools.partial(Now, FAULTS["observation"], 3, 10, 25), **SETTINGS,
                 num_workers=workers) as ppo:
            ppo.learn(4 * 32)
            runs.append(torch.cat([x.detach().flatten() for x in ppo.policy.parameters()]))
    assert torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2])


def test_without_a_fault_the_policy_changes_no_bit():
    runs = []
    for policy in ("raise", "reset_env"):
        with PPO("CartPole-v1", **SETTINGS | dict(nan_policy=policy), num_workers=0) as ppo:
            ppo.learn(4 * 32)
            runs.append(torch.cat([x.detach().flatten() for x in ppo.policy.parameters()]))
    assert torch.equal(*runs)


@pytest.mark.parametrize("fault", [observing(np.zeros(3, np.float32)), paying(None),
                                   lambda env: None])
def test_other_faults_are_errors_as_ever(fault):
    with PPO(functools.partial(Now, fault, 3), **SETTINGS, num_workers=0) as ppo:
        with pytest.raises(EnvError, match="step 3"):
            ppo.collect()


def test_a_vector_environment_cannot_reset_one_of_its_own():
    import gymnasium as gym
    env = gym.make_vec("CartPole-v1", 2, vectorization_mode="vector_entry_point")
    with pytest.raises(ConfigError, match="nan_policy=reset_env"):
        PPO(env, nan_policy="reset_env")
    env.close()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("after", [0, 40])
def test_an_environment_that_gives_only_nan_ends_the_run_with_an_error(trainer, workers, after):
    class Hopeless(gym.Env):
        observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)
        steps = 0

        def reset(self, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            self.steps += 1
            reward = 1.0 if self.steps <= after else float("nan")
            return np.zeros(2, np.float32), reward, False, False, {}

    ppo = trainer(Hopeless, nan_policy="reset_env", num_envs=2, num_steps=32, num_workers=workers)
    with pytest.raises(EnvError, match="like those of 99 steps before it"):
        ppo.learn(10_000)
    assert ppo.progress.iteration <= (after + 100) // 32 + 1
