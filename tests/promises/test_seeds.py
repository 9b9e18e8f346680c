"""Seeds: every episode of every environment has its own, and the run's seed alone decides it."""

import gymnasium as gym
import numpy as np
import pytest
from fault_envs import Calm, Seeded
from optional_packages import NEEDS_BOX2D

from fastppo import PPO
from fastppo.errors import ConfigError
from fastppo.machine import kernels
from fastppo.machine.kernels import Purpose

TINY = dict(preset="none", num_steps=12, num_minibatches=1, epochs=1, hidden_sizes=(4,),
            norm_obs=False)


def seeds_of(rollout):
    """The seed of the episode each row [t e] belongs to."""
    high, low = np.moveaxis(rollout.obs.numpy().astype(np.int64), -1, 0)
    return high << 16 | low


def played(seed, workers=0, envs=6, iterations=2, **settings):
    with PPO(Seeded, num_envs=envs, num_workers=workers, seed=seed, **TINY, **settings) as ppo:
        return [seeds_of(ppo.collect()) for _ in range(iterations)]


def test_no_two_episodes_of_a_run_share_a_seed():
    first, second = played(1)
    assert (first[0:4] == first[0]).all() and (first[4:8] == first[4]).all()
    starts = np.concatenate([first[::4], second[4::4]]).reshape(-1)
    assert len(set(starts)) == len(starts) == 7 * 6
    assert (starts >= 0).all() and (starts < 2**31).all()


def test_an_episodes_seed_is_a_function_of_run_environment_and_episode_alone():
    first, second = played(1)
    for e in range(6):
        wanted = [kernels.episode_seed(1, Purpose.ENV_SEED, e, k) for k in range(7)]
        assert [*first[::4, e], *second[4::4, e]] == wanted


def test_runs_with_other_seeds_share_no_episode():
    runs = [set(played(seed)[0].reshape(-1)) for seed in (0, 1, 2, 2**62)]
    for i, run in enumerate(runs):
        assert len(run) == 4 * 6
        assert all(run.isdisjoint(other) for other in runs[:i])


def test_workers_and_fewer_environments_leave_every_seed_as_it_is():
    alone, _ = played(1)
    assert np.array_equal(played(1, workers=2, iterations=1)[0], alone)
    assert np.array_equal(played(1, envs=3, iterations=1)[0], alone[:, :3])


def test_warm_up_and_evaluation_have_seeds_of_their_own():
    seen = []

    class Recorded(Seeded):
        def reset(self, *, seed=None, options=None):
            seen.append(seed)
            return super().reset(seed=seed)
    with PPO(Recorded, num_envs=2, num_workers=0, seed=1, **(TINY | dict(norm_obs=True))) as ppo:
        ppo.collect()
        assert len(seen) == len(set(seen)) == 1 + 2 * 4 + 2 * 4  # and one that looks for masks
        ppo.evaluate(5)
    assert len(seen) == len(set(seen)) == 1 + 2 * 4 + 2 * 4 + 5


@pytest.mark.parametrize(
    "name", ["CartPole-v1", pytest.param("LunarLander-v3", marks=NEEDS_BOX2D)])
def test_first_observations_differ_between_environments_and_episodes(name):
    with PPO(name, num_envs=5, num_workers=0, seed=1, max_episode_steps=6, **TINY) as ppo:
        rollout = ppo.collect()
    starts = rollout.obs[[0, 6, 12]].reshape(15, -1).numpy()
    assert len({row.tobytes() for row in starts}) == 15


def test_a_run_without_a_seed_draws_one_and_records_it():
    drawn = []
    for _ in range(2):
        with PPO(Seeded, num_envs=2, num_workers=0, **TINY) as ppo:
            drawn.append(ppo.config.seed)
            first = seeds_of(ppo.collect())
    assert drawn[0] != drawn[1] and isinstance(drawn[0], int)
    assert np.array_equal(played(drawn[1], envs=2)[0], first)


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    def weights(seed):
        with PPO("CartPole-v1", num_envs=2, num_workers=0, seed=seed, **TINY) as ppo:
            return ppo.learn(48).learner.flat.values.numpy().tobytes()
    assert weights(1) == weights(1) != weights(2)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, True, "1"])
def test_a_seed_is_a_whole_number_below_two_to_the_63(seed):
    with pytest.raises(ConfigError, match="seed is"):
        PPO(Seeded, seed=seed)


def test_the_action_space_is_seeded_once_from_the_run():
    class Sampling(Calm):
        def __init__(self):
            super().__init__()
            self.action_space = gym.spaces.Discrete(1000)

        def observed(self):
            return np.array([self.action_space.sample(), self.steps], np.float32)

    def sampled(seed):
        with PPO(Sampling, num_envs=2, num_workers=0, seed=seed, **TINY) as ppo:
            return ppo.collect().obs[..., 0].tolist()
    assert sampled(1) == sampled(1) != sampled(2)
