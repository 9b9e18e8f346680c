"""Wrappers whose work a Serial does itself are passed by; nothing else can be told apart."""

import contextlib
import functools

import gymnasium as gym
import pytest
from envs_for_tests import Counting
from fault_envs import guard
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from gymnasium.wrappers.common import OrderEnforcing

from fastppo import PPO
from fastppo.envs.make import make_factory
from fastppo.envs.wrappers import UNLIMITED, make_deterministic, unchecked_step

QUICK = dict(preset="none", seed=3, num_envs=3, num_steps=40, num_minibatches=1, epochs=1,
             hidden_sizes=(4,), num_workers=0)


class Kept(gym.Wrapper):
    """A user's wrapper."""


class KeptLimit(TimeLimit):
    """Another class than Gymnasium's own: never passed by."""


def test_the_wrappers_gymnasium_adds_are_passed_by():
    for make in (make_factory("CartPole-v1"), lambda: gym.make("CartPole-v1")):
        env = make()
        assert unchecked_step(env) == (env.unwrapped.step, 500)
        assert env.get_wrapper_attr("_max_episode_steps") == 500


def test_a_users_wrapper_and_all_inside_it_stay():
    env = TimeLimit(RecordEpisodeStatistics(Kept(gym.make("CartPole-v1"))), 70)
    assert unchecked_step(env) == (env.env.env.step, 70)
    for env in (KeptLimit(Counting(), 3), Kept(Counting())):
        assert unchecked_step(env) == (env.step, UNLIMITED)


def test_the_nearest_of_several_time_limits_counts():
    for limits in ((9, 4), (4, 9)):
        inner = TimeLimit(Counting(), limits[0])
        assert unchecked_step(TimeLimit(OrderEnforcing(inner), limits[1]))[1] == 4


def test_a_step_put_on_an_instance_is_called():
    env = gym.make("CartPole-v1")
    env.step = lambda action: None
    assert unchecked_step(env) == (env.step, UNLIMITED)


def test_bipedal_walkers_fresh_world_is_passed_by():
    pytest.importorskip("Box2D")
    env = make_deterministic(gym.make("BipedalWalker-v3"))
    assert unchecked_step(env) == (env.unwrapped.step, 1600)


def record(make, **settings):
    """The bytes of three rollouts and what they say of their episodes."""
    with guard(60), PPO(make, **QUICK, **settings) as ppo:
        found = [[array.numpy().tobytes() for array in ppo.collect()]
                 + [ppo.arena[name].tobytes() for name in ("total", "length")] for _ in range(3)]
        both = bool((ppo.rollout.term & ppo.rollout.trunc).any())
    return found, both


@pytest.mark.parametrize("acting", ["local", "central"])
def test_a_time_limit_of_our_own_counting_cuts_as_the_wrapper_does(acting):
    made = [record(lambda limit=limit: limit(gym.make("CartPole-v1").unwrapped, 11), acting=acting)
            for limit in (TimeLimit, KeptLimit)]
    assert made[0] == made[1]


def test_an_episode_may_terminate_at_its_time_limit():
    made = [record(lambda limit=limit: limit(Counting(5, truncated=False), 5))
            for limit in (TimeLimit, KeptLimit)]
    assert made[0] == made[1] and made[0][1]


def test_a_step_that_changes_between_episodes_is_the_new_one():
    class Changing(Counting):
        def reset(self, **kwargs):
            self.paid = paid = getattr(self, "paid", 0.0) + 1

            def step(action):
                obs, _, *rest = Counting.step(self, action)
                return obs, paid, *rest
            self.step = step
            return super().reset(**kwargs)
    with PPO(lambda: OrderEnforcing(Changing()), norm_obs=False, **QUICK) as ppo:
        assert ppo.collect().raw[::5, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_after_an_interrupt_too_the_step_is_the_new_one():
    class Closed(Counting):
        """Its step counts for itself; Ctrl-C is pressed in the third of the second episode."""

        def __init__(self, strike):
            super().__init__()
            self.episodes, self.strike = 0, strike

        def reset(self, **kwargs):
            self.episodes, taken = self.episodes + 1, []

            def step(action):
                taken.append(action)
                if len(taken) == 3 and self.episodes == self.strike:
                    raise KeyboardInterrupt
                obs, _, *rest = Counting.step(self, action)
                return obs, len(taken), *rest
            self.step = step
            return super().reset(**kwargs)
    paid = []
    for strike in (-1, 2):
        with PPO(functools.partial(Closed, strike), norm_obs=False, **QUICK) as ppo:
            while ppo.rollout is None:
                with contextlib.suppress(KeyboardInterrupt):
                    ppo.collect()
            paid.append(ppo.rollout.raw.tolist())
    assert paid[0] == paid[1]
