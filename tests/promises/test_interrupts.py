"""Ctrl-C at any point: the next call goes on with the same rollout, and not one bit differs."""

import random
import signal
import threading

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from fault_envs import guard
from interruption import (
    SETTINGS,
    Interruption,
    assert_interrupts_change_nothing,
    differing,
    interrupted,
    iteration,
    snapshot,
    undisturbed,
)

import fastppo
from fastppo import PPO

WAYS = [(0, "local"), (0, "central"), (2, "local"), (2, "central")]


ROLLOUT = ("vecenv collect workers/worker_vecenv workers/team workers/protocol stepping/actors"
           " stepping/environments stepping/rollout_recorder stepping/rewards stepping/replay"
           " envs/faults spaces/observations machine/global_rng")
UPDATE = "learner update/flat_parameters update/optimizers policy collect"


@pytest.mark.some(1)
@pytest.mark.parametrize("workers, acting", WAYS)
def test_an_interrupt_anywhere_in_a_rollout_changes_no_bit(workers, acting):
    assert_interrupts_change_nothing("CartPole-v1", workers, acting, ROLLOUT, 16)


def test_an_interrupt_anywhere_in_an_update_changes_no_bit():
    assert_interrupts_change_nothing("Pendulum-v1", 0, "local", UPDATE, 40)


def test_an_interrupt_between_the_parts_of_an_iteration_changes_nothing_learnt():
    _, total = undisturbed("CartPole-v1", 0, "local", 2, "ppo")
    wanted, _ = undisturbed("CartPole-v1", 0, "local", 2 * total)
    with guard(), PPO("CartPole-v1", num_workers=0, **SETTINGS) as ppo:
        for at in range(1, total + 1):
            made, place = interrupted(ppo, at, "ppo")
            # One after the update may cost a line of metrics, with the episodes in it.
            late = [name for name in differing(made, wanted[ppo.progress.iteration - 1])
                    if not name.startswith("charts/episod")]
            assert late == [], place


@pytest.mark.slow
@pytest.mark.parametrize("modules", [ROLLOUT, UPDATE])
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", Chance])
@pytest.mark.parametrize("workers, acting", WAYS)
def test_an_interrupt_at_any_of_many_places_changes_no_bit(workers, acting, env, modules):
    assert_interrupts_change_nothing(env, workers, acting, modules, 150)


@pytest.mark.some(1)
@pytest.mark.parametrize("workers, acting", [(0, "local"), (1, "local")])
def test_an_interrupt_in_the_warm_up_or_the_first_reset_changes_no_bit(workers, acting):
    modules = "collect workers/worker_vecenv workers/team" if workers else "vecenv collect policy"
    with PPO("CartPole-v1", num_workers=workers, acting=acting, **SETTINGS) as ppo:
        with Interruption(-1, modules) as counted:
            wanted = iteration(ppo)
    points = 16 if not workers else 3
    for i in range(points):
        with guard(), PPO("CartPole-v1", num_workers=workers, acting=acting, **SETTINGS) as ppo:
            made, place = interrupted(ppo, 1 + i * counted.lines // (2 * points), modules)
            assert differing(made, wanted) == [], place


@pytest.mark.parametrize("name", ["mean", "m2", "count", "shift", "scale"])
def test_an_interrupt_among_the_first_moments_changes_no_bit(name):
    (wanted,), _ = undisturbed("CartPole-v1", 0, "local", 1)
    with PPO("CartPole-v1", num_workers=0, **SETTINGS) as ppo:
        buffer = getattr(ppo.policy.observer, name)
        writes = "masked_scatter_" if name in ("shift", "scale") else "copy_"
        original = getattr(buffer, writes)

        def strike(*values):
            delattr(buffer, writes)
            original(*values)
            raise KeyboardInterrupt
        setattr(buffer, writes, strike)
        with pytest.raises(KeyboardInterrupt):
            iteration(ppo)
        assert differing(iteration(ppo), wanted) == []


class Struck(gym.Wrapper):
    """An environment in whose n-th call (of `step` or `reset`) Ctrl-C is pressed, once."""

    def __init__(self, call, at, before, env=None):
        super().__init__(env or gym.make("CartPole-v1", max_episode_steps=6))
        self.call, self.left, self.before = call, at, before

    def strike(self, call):
        """Press Ctrl-C if it is time."""
        self.left -= call == self.call
        if not self.left and call == self.call:
            raise KeyboardInterrupt

    def step(self, action):
        return self.around("step", lambda: self.env.step(action))

    def reset(self, **kwargs):
        return self.around("reset", lambda: self.env.reset(**kwargs))

    def around(self, name, call):
        """Strike before the world has moved, or after."""
        if self.before:
            self.strike(name)
        reply = call()
        if not self.before:
            self.strike(name)
        return reply


def struck_run(envs, acting, count, **settings):
    """(`count` iterations of a run that goes on after interrupts, the number of interrupts)."""
    seen, strikes = [], 0
    with guard(), PPO(envs, num_workers=0, acting=acting, **SETTINGS | settings) as ppo:
        while len(seen) < count:
            try:
                seen.append(iteration(ppo))
            except KeyboardInterrupt:
                strikes += 1
        return seen, strikes


def assert_interrupts_change_no_bit(run, ats):
    """A run interrupted once, in call `at`, equals the run that no interrupt strikes."""
    wanted, none = run(0)
    assert none == 0
    for at in ats:
        made, strikes = run(at)
        assert strikes == 1
        assert differing(made, wanted) == [], at


@pytest.mark.some(4)
@pytest.mark.parametrize("acting", ["local", "central"])
@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("call, ats", [
    ("step", (1, 9, 11, 16, 17, 25)), ("reset", (1, 2, 3, 4, 6))])
def test_an_interrupt_inside_an_environment_changes_no_bit(call, ats, before, acting):
    def run(at):
        makers = [lambda: Struck(call, 0, before), lambda: Struck(call, at, before),
                  lambda: Struck(call, 0, before)]
        return struck_run(makers, acting, 3)
    assert_interrupts_change_no_bit(run, ats)


class Halving(gym.Env):
    """Halves the action it is given, in place, and adds it to what it shows."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym.spaces.Box(-9, 9, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.zeros(1, np.float32)
        return self.place, {}

    def step(self, action):
        action *= 0.5
        self.place += action
        return self.place, 0.0, False, False, {}


@pytest.mark.parametrize("acting", ["local", "central"])
@pytest.mark.parametrize("before", [True, False])
def test_an_environment_that_changes_its_action_is_replayed_with_the_one_it_was_given(
        before, acting):
    def run(at):
        return struck_run(lambda: Struck("step", at, before, Halving()), acting, 2, num_envs=1)
    # In the warm-up, in the first rollout and in the second one.
    assert_interrupts_change_no_bit(run, (6, 16, 25))


def test_an_exception_in_a_callback_loses_nothing():
    (*_, wanted), _ = undisturbed("CartPole-v1", 0, "local", 3)
    for error in (KeyboardInterrupt, ValueError):
        def fail(ppo, stats, error=error):
            raise error
        with PPO("CartPole-v1", num_workers=0, **SETTINGS) as ppo:
            for _ in range(2):
                with pytest.raises(error):
                    ppo.learn(10**6, [fail])
            assert differing(iteration(ppo), wanted) == []


@pytest.mark.parametrize("workers, acting", [(0, "local"), (1, "central")])
def test_a_loop_of_your_own_goes_on_after_an_interrupt(workers, acting):
    def rollouts(at):
        made = []
        with guard(), PPO("CartPole-v1", num_workers=workers, acting=acting, **SETTINGS) as ppo:
            for i in range(3):
                try:
                    with Interruption(at * (i == 1) or -1, ROLLOUT):
                        rollout = ppo.collect()
                except KeyboardInterrupt:
                    rollout = ppo.collect()
                try:
                    with Interruption(at * (i == 2) or -1, UPDATE):
                        stats = ppo.update(rollout)
                except KeyboardInterrupt:
                    stats = ppo.update(rollout)
                made.append(snapshot(ppo, stats))
        return made
    wanted = rollouts(-1)
    for at in (9, 40) if not workers else (25,):
        assert differing(rollouts(at), wanted) == []


def test_an_error_inside_update_leaves_everything_as_it_was(monkeypatch):
    with PPO("CartPole-v1", num_workers=0, **SETTINGS) as ppo:
        iteration(ppo)
        rollout = ppo.collect()
        before = snapshot(ppo, {}), ppo.learner.optimizer.state[1].clone()
        broken = rollout._replace(adv=torch.full_like(rollout.adv, float("nan")))
        with pytest.raises(fastppo.Error, match="not finite; the weights are as they were"):
            ppo.update(broken)
        assert differing(snapshot(ppo, {}), before[0]) == []
        assert torch.equal(ppo.learner.optimizer.state[1], before[1])
        assert all(param.isfinite().all() for param in ppo.policy.parameters())
        assert ppo.update(rollout)["losses/policy_loss"] == pytest.approx(0, abs=1)


@pytest.mark.some(1)
@pytest.mark.parametrize("workers, acting", [(0, "central"), (2, "local")])
def test_a_real_ctrl_c_at_any_moment_changes_no_bit(workers, acting):
    count = 10
    wanted, _ = undisturbed("CartPole-v1", workers, acting, 2 * count)
    chance, strikes = random.Random(3), 0
    with guard(), PPO("CartPole-v1", num_workers=workers, acting=acting, **SETTINGS) as ppo:
        for _ in range(count):
            timer = threading.Timer(chance.random() * 0.015, signal.pthread_kill,
                                    [threading.main_thread().ident, signal.SIGINT])
            made = None
            try:
                timer.start()
                made = iteration(ppo)
                timer.join()
            except KeyboardInterrupt:
                strikes += 1
                timer.join()
            made = made or iteration(ppo)
            assert differing(made, wanted[ppo.progress.iteration - 1]) == []
    assert strikes
