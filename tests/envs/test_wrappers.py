"""Wrappers that a step skips, because Serial does their work; stacked frames; closing."""

import contextlib
import functools

import gymnasium as gym
import numpy as np
import pytest
from envs_for_tests import Counting
from fault_envs import guard
from gymnasium.spaces import Dict
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from gymnasium.wrappers.common import OrderEnforcing

from fastppo import PPO, make_vec
from fastppo.envs.make import make_envs, make_factory
from fastppo.envs.masks import ActionMaskWrapper
from fastppo.envs.wrappers import UNLIMITED, make_deterministic, unchecked_step
from fastppo.errors import Error, SpaceError

QUICK = dict(preset="none", seed=3, num_envs=3, num_steps=40, num_minibatches=1, epochs=1,
             hidden_sizes=(4,), num_workers=0)


class Kept(gym.Wrapper):
    """A user's wrapper."""


class KeptLimit(TimeLimit):
    """A subclass of Gymnasium's wrapper is never skipped."""


def test_the_wrappers_gymnasium_adds_are_skipped():
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


def test_bipedal_walkers_fresh_world_is_skipped():
    pytest.importorskip("Box2D")
    env = make_deterministic(gym.make("BipedalWalker-v3"))
    assert unchecked_step(env) == (env.unwrapped.step, 1600)


def record(make, **settings):
    """The bytes of three rollouts and their episode statistics; True if a step ended both ways."""
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
            while not ppo.step:
                with contextlib.suppress(KeyboardInterrupt):
                    ppo.collect()
            paid.append(ppo.rollout.raw.tolist())
    assert paid[0] == paid[1]


class OneBuffer(Counting):
    """Writes every observation into the same array."""

    def __init__(self, composite=False):
        super().__init__()
        self.buffer, self.composite = np.zeros(1, np.float32), composite
        if composite:
            self.observation_space = Dict(a=self.observation_space)

    def reset(self, *, seed=None, options=None):
        return self.written(super().reset(seed=seed)[0]), {}

    def step(self, action):
        obs, *rest = super().step(action)
        return self.written(obs), *rest

    def written(self, obs):
        """The buffer, with the observation in it."""
        self.buffer[:] = obs
        return {"a": self.buffer} if self.composite else self.buffer


@pytest.mark.parametrize("make", [
    lambda composite: make_factory(functools.partial(OneBuffer, composite), stack=3),
    lambda composite: lambda: gym.wrappers.FrameStackObservation(OneBuffer(composite), 3)],
    ids=["setting", "own"])
@pytest.mark.parametrize("composite", [False, True])
def test_stacked_frames_are_copies_of_a_buffer_that_the_environment_writes_again(composite, make):
    env, = make_envs([make(composite)])
    env.reset(seed=1)
    for _ in range(3):
        obs = env.step(0)[0]
    frames = obs["a"] if composite else obs
    assert frames.ravel().tolist() == [1, 2, 3]


@pytest.mark.parametrize("last", ["raises", "no spaces", "same object"])
def test_environments_made_before_one_that_fails_are_closed(last):
    closed = []

    class Closing(Counting):
        def close(self):
            closed.append(self)

    made = Closing()

    def failing():
        if last == "same object":
            return made
        if last == "no spaces":
            return gym.Env()
        raise RuntimeError("no more")

    with pytest.raises(Error):
        make_envs([lambda: made, Closing, failing])
    assert made in closed and len(set(closed)) == 2


def test_environments_made_to_read_their_spaces_are_closed_where_these_differ(trainer):
    closed = []

    class Closing(Counting):
        def close(self):
            closed.append(self)

    with pytest.raises(SpaceError, match="environment 1 has the spaces"):
        trainer([Closing, functools.partial(OneBuffer, True)], num_envs=2)
    assert len(closed) == 1


@pytest.mark.parametrize("wrap", [lambda env: env, Kept], ids=["bare", "wrapped"])
def test_metadata_that_are_none_are_empty(trainer, wrap):
    class Plain(Counting):
        metadata = None

    assert trainer(lambda: wrap(Plain())).learn(32).source.metadata == {}
    with make_vec(lambda: wrap(Plain()), num_envs=2, num_workers=0) as vec:
        assert [*vec.metadata] == ["autoreset_mode"]
    assert Plain.metadata is None


class OneInfo(Counting):
    """Keeps one info and updates it in every call."""

    def __init__(self, where):
        super().__init__(length=3)
        self.info, self.where = {}, where

    def reset(self, *, seed=None, options=None):
        obs, _ = super().reset(seed=seed)
        return obs, self.updated()

    def step(self, action):
        obs, rew, term, trunc, _ = super().step(action)
        return obs, rew, term, trunc, self.updated()

    def updated(self):
        """The info, with a mask that forbids what was legal before."""
        mask = np.arange(2) == self.steps % 2
        self.info.update({"steps": self.steps, "action_mask": mask} if self.where == "info" else
                         {"steps": self.steps})
        return self.info

    def __getattr__(self, name):
        if name == "action_masks" and self.where == "method":
            return lambda: np.arange(2) == self.steps % 2
        raise AttributeError(name)


@pytest.mark.parametrize("wrap", [gym.wrappers.NormalizeObservation, gym.wrappers.ClipAction])
def test_a_wrapper_that_does_what_training_does_is_kept(wrap, caplog):
    with PPO(lambda: wrap(gym.make("Pendulum-v1")), **QUICK) as ppo:
        assert type(ppo.collector.vec.envs[0]) is wrap
        ppo.collect()
    assert not caplog.records


@pytest.mark.parametrize("where", ["info", "method"])
def test_a_mask_wrapper_passes_the_environments_info_on_unchanged(where):
    env = ActionMaskWrapper(OneInfo(where))
    seen = [env.reset(seed=1)[0]["action_mask"]]
    for step in range(1, 4):
        obs, *_, info = env.step(0)
        seen.append(obs["action_mask"])
        assert info is env.unwrapped.info and info["steps"] == step
        assert set(info) <= {"steps", "action_mask"}
    assert [mask.tolist() for mask in seen] == [[True, False], [False, True], [True, False],
                                                [True, True]]
