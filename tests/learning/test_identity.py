"""Every pair of spaces is learnt: the parts of an observation say what the parts of an action are.

Chance decides a bit for each leaf of the observation, which shows one of two elements of its space;
component k of the action is to be the first or the second of two places, as the bit of leaf k says.
"""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box
from spaces_for_tests import ACT, OBS

from fastppo.spaces.leaves import CHOICES, build_structure, choice_counts, choice_starts, leaves

LENGTH, STEPS = 16, 16_384
SETTINGS = dict(model="mlp", gamma=0.0, num_envs=32, num_steps=16, epochs=6, num_minibatches=4,
                lr=5e-3, hidden_sizes=(32,), norm_rewards=False)


class Echo(gym.Env):
    """Episodes of 16 steps, each with a reward from 0 to 1: the mean over components."""

    def __init__(self, obs_space, act_space, first=0):
        self.observation_space, self.action_space = obs_space, act_space
        self.shown = [apart(leaf.space) for leaf in leaves(obs_space)]
        self.wanted = [places(leaf.space) for leaf in leaves(act_space)]
        self.first = first  # leaf of the observation that the first component follows

    def reset(self, *, seed=None, options=None):
        """New bits."""
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action):
        """The reward, and other bits."""
        rew, self.steps = self._score(action), self.steps + 1
        return self._look(), rew, False, self.steps == LENGTH, {}

    def _look(self):
        self.bits = self.np_random.integers(0, 2, len(self.shown))
        values = [pair[bit] for pair, bit in zip(self.shown, self.bits)]
        return build_structure(self.observation_space, iter(values))

    def _score(self, action):
        found, k = [], self.first
        for leaf, (low, high, wide) in zip(leaves(self.action_space), self.wanted):
            given = np.reshape(leaf.of(action), -1).astype(float)
            bits = self.bits[(k + np.arange(len(given))) % len(self.bits)]
            off, k = np.abs(given - np.where(bits, high, low)), k + len(given)
            found.extend(off == 0 if isinstance(leaf.space, CHOICES) else 1 - off / wide)
        return float(np.mean(found))


def apart(space):
    """Two elements of a space, as far from each other as any of 32 random ones."""
    space.seed(7)
    some = [space.sample() for _ in range(32)]
    flat = np.array(some, float).reshape(32, -1)
    far = ((flat[:, None] - flat[None]) ** 2).sum(-1).argmax()
    return some[far // 32], some[far % 32]


def places(space):
    """(what a bit of 0 wants, what 1 wants, the range) of the components [k] of an action."""
    if isinstance(space, CHOICES):
        first = np.broadcast_to(choice_starts(space), space.shape).reshape(-1)
        return first, first + choice_counts(space) - 1, 1.0
    low, high = (np.where(np.isfinite(x), x, to).reshape(-1) for x, to in (
        (space.low.astype(float), -2.0), (space.high.astype(float), 2.0)))
    found = low + 0.2 * (high - low), low + 0.8 * (high - low), high - low
    return found if space.dtype.kind == "f" else (*np.rint(found[:2]), found[2])


def learnt(trainer, obs, act, steps=STEPS, **settings):
    """The mean reward a step, 0 to 1, of the likeliest actions after `steps` steps."""
    first = list(ACT).index(act)
    bounded = isinstance(ACT[act], Box) and act != "unbounded"
    env = partial(Echo, OBS[obs], ACT[act], first)
    ppo = trainer(env, **{"action_scaling": bounded, **SETTINGS, **settings})
    return ppo.learn(steps).evaluate(20).mean / LENGTH


@pytest.mark.slow
@pytest.mark.parametrize("act", ACT)
@pytest.mark.parametrize("obs", OBS)
def test_every_pair_of_spaces_is_learnt(trainer, obs, act):
    assert learnt(trainer, obs, act) > 0.93


@pytest.mark.some(2)
@pytest.mark.parametrize(("obs", "act"), list(zip(OBS, ACT)))
def test_every_space_is_learnt(trainer, obs, act):
    assert learnt(trainer, obs, act, 5_120) > 0.8  # the best blind action has 0.7 at most
