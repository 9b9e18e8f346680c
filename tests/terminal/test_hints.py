"""What the data say about learning: for each hint two planted faults, and a run without one."""

import logging

import gymnasium as gym
import numpy as np
import pytest
from envs_for_tests import Chance
from gymnasium.spaces import Box, Dict, Discrete

from fastppo.terminal.hints import ALIKE_STEPS, Hints

STEPS = 102_400
QUICK = dict(num_envs=16, num_steps=64, num_minibatches=4, norm_rewards=None)


class Guess(gym.Env):
    """Every step is worth `good` for one action and `bad` for others; `length` steps, or no end."""

    def __init__(self, good=1.0, bad=0.0, length=10, obs=None, act=None):
        self.observation_space, self.action_space = obs or Box(-1, 1, (1,)), act or Discrete(2)
        self.good, self.bad, self.length = good, bad, length
        self.seen = self.observation_space.sample()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.seen, {}

    def step(self, action):
        self.t += 1
        return self.seen, self.good if np.all(action == 0) else self.bad, self.t == self.length, \
            False, {}


def large(space):
    """A Guess that shows the highest values of its space."""
    def make():
        env = Guess(obs=space)
        env.seen = {name: part.high for name, part in space.items()} if isinstance(
            space, Dict) else space.high
        return env
    return make


class Noisy(Guess):
    """Its rewards differ little, beside what they are."""

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 100.0 + 0.1 * self.np_random.standard_normal(), *rest


# The words of a hint, two faults that it finds, each an environment and settings, and its setting.
FAULTS = {
    "each reward of 100,352 steps was 1, and no episode's length": ("--entropy_coef=0.01", [
        (lambda: Guess(bad=1.0), {}), (lambda: Guess(bad=1.0, length=0), {"num_steps": 128})]),
    "where a network learns best from numbers near 1, and norm_obs is off": ("norm_obs=True", [
        (large(Box(0, 640, (2,))), {"norm_obs": False}),
        (large(Dict(a=Box(-1, 1, (2,)), b=Box(-500, 500, (1,), np.int64))), {"norm_obs": False})]),
    "of the normalised rewards are at reward_limit=": ("fix: norm_rewards=False", [
        (lambda: Noisy(length=1), {}), (Chance, {"reward_limit": 0.01})]),
    "the entropy has fallen to": ("--entropy_coef=", [
        (Guess, {"lr": 0.05}),
        (lambda: Guess(act=Discrete(3), bad=-1.0),
         {"lr": 0.01, "epochs": 10, "norm_advantages": "none", "norm_rewards": False})])}
PLANTED = [pytest.param(words, setting, *fault, id=f"{setting}-{i}")
           for words, (setting, faults) in FAULTS.items() for i, fault in enumerate(faults)]


def said(ppo, caplog, steps, words=""):
    """The texts of the hints and warnings of a run, until one has these words."""
    hints, found = Hints(), []

    def look(ppo, stats):
        found.extend(hints.new(hints.of_learning(ppo, stats)))
        told = [*found, *(record.getMessage() for record in caplog.records)]
        return not any(words and words in text for text in told) and ppo.step < steps
    with caplog.at_level(logging.WARNING, "fastppo"):
        ppo.learn(10 * STEPS, callbacks=look)
    return [text.replace("\n          ", " ") for text in found] + [
        record.getMessage() for record in caplog.records]


@pytest.mark.full
@pytest.mark.parametrize("words, setting, env, settings", PLANTED)
def test_a_planted_fault_is_hinted_at_within_100_000_steps(
        trainer, caplog, words, setting, env, settings):
    with caplog.at_level(logging.WARNING, "fastppo"):
        ppo = trainer(env, **QUICK | settings)
    texts = [text for text in said(ppo, caplog, STEPS, words) if words in text]
    assert len(texts) == 1 and setting in texts[0], texts


@pytest.mark.parametrize("env, settings", [
    (Chance, {}), (Guess, {}), (lambda: Guess(act=Box(-1, 1, (2,))), {}),
    (lambda: Guess(act=Box(-np.inf, np.inf, (2,))), {}), (large(Box(0, 640, (2,))), {}),
    (large(Box(0, 99, (2,))), {"norm_obs": False}), (lambda: Guess(act=Discrete(1)), {})])
def test_without_the_fault_nothing_is_said(trainer, caplog, env, settings):
    with caplog.at_level(logging.WARNING, "fastppo"):
        ppo = trainer(env, **QUICK | settings)
    assert said(ppo, caplog, 20_000) == []


@pytest.mark.parametrize("env, differs", [
    (lambda: Guess(bad=1.0), False), (Guess, True), (lambda: Guess(bad=1.0, length=0), False)])
def test_rewards_are_alike_only_if_none_differed_since_the_run_began(trainer, env, differs):
    ppo, hints = trainer(env, **QUICK), Hints()
    ppo.learn(4_096, callbacks=lambda *given: [*hints.of_learning(*given)] and None)
    assert (len(hints.rewards) > 1) is differs and hints.steps == 4_096 < ALIKE_STEPS
