"""Tiny environments whose optimum is known; each fails under some mistake (test_mutants.py).

What is measured of a trained policy must lie between two bounds. A probe sees 2,560 steps.
"""

from functools import partial
from typing import Any, Callable, NamedTuple

import numpy as np
import pytest
import torch
from envs_for_tests import Above, Constant, OneStep, TwoStep
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from fastppo import PPO

SIZES = {
    "preset": "none", "seed": 1, "num_workers": 0, "num_envs": 8, "num_steps": 16,
    "total_steps": 2560, "epochs": 4, "num_minibatches": 2, "hidden_sizes": (16,), "lr": 0.03,
    "anneal_lr": False, "norm_rewards": False,
}


def values(*obs: float) -> Callable[[PPO], np.ndarray]:
    """The function from a trainer to its values of observations [1]."""
    return lambda ppo: ppo.policy.value(np.array(obs)[:, None])


def chances(*obs: float) -> Callable[[PPO], np.ndarray]:
    """The function from a trainer to the probabilities of action 1 at observations [1]."""
    def probabilities(ppo):
        rows, ones = torch.tensor(obs)[:, None], torch.ones(len(obs), dtype=torch.int64)
        with torch.no_grad():
            return ppo.policy.evaluate_actions(rows, ones)[0].exp().numpy()
    return probabilities


def nearest_action(ppo: PPO) -> np.ndarray:
    """The deterministic action at 0."""
    return ppo.policy.predict(np.zeros(1))


def biased(ppo: PPO) -> None:
    """Before training, action 1 has a probability of 0.9."""
    with torch.no_grad():
        ppo.policy.net.actor.bias.copy_(torch.tensor([0.0, np.log(9.0)]))


class Probe(NamedTuple):
    """An environment, and between which bounds lies what is measured after training on it."""

    make: Callable[[], Any]
    measure: Callable[[PPO], np.ndarray]
    low: tuple[float, ...]
    high: tuple[float, ...]
    settings: dict = {}
    start: Callable[[PPO], None] = lambda ppo: None


def same(obs, action):
    """1 if the action is that of the observation's sign."""
    return (action == 1) == (obs > 0)


PROBES = {
    "P1 constant reward": Probe(
        partial(OneStep, lambda obs, action: 1, sees=(0.0,)), values(0), (0.9,), (1.1,),
        {"gamma": 0.5}),
    "P2 reward by observation": Probe(
        partial(OneStep, lambda obs, action: obs), values(-1, 1), (-1.1, 0.9), (-0.9, 1.1),
        {"gamma": 0.5}),
    "P3 two steps": Probe(TwoStep, values(0, 1), (0.4, 0.9), (0.6, 1.1), {"gamma": 0.5}),
    "P4 reward by action": Probe(
        partial(OneStep, lambda obs, action: 2 * action - 1, sees=(0.0,)), chances(0),
        (0.95,), (1.0,)),
    "P5 action by observation": Probe(
        partial(OneStep, same), chances(-1, 1), (0.0, 0.95), (0.05, 1.0)),
    "P6 truncated": Probe(
        partial(Constant, 5, truncated=True), values(0), (9.0,), (11.0,),
        {"gamma": 0.9, "gae_lambda": 0.3}),
    "P7 terminated": Probe(
        partial(Constant, 5, truncated=False), values(0), (2.2,), (3.2,),
        {"gamma": 0.9, "gae_lambda": 0.7}),
    "P8 nothing leaks": Probe(
        partial(OneStep, lambda obs, action: 5 + 5 * obs), values(-1, 1), (-0.5, 9.5), (0.5, 10.5)),
    "P9 Box action": Probe(
        partial(OneStep, lambda obs, action: -(action[0] - 0.5) ** 2, Box(-1, 1, (1,)), (0.0,)),
        nearest_action, (0.35,), (0.65,)),
    "P10 entropy": Probe(
        partial(OneStep, lambda obs, action: 0, sees=(0.0,)), chances(0), (0.4,), (0.6,),
        {"entropy_coef": 0.1}, biased),
}


def measured(probe: Probe, **settings) -> np.ndarray:
    """What is measured of a policy that has been trained on the probe."""
    with PPO(probe.make, **{**SIZES, **probe.settings, **settings}) as ppo:
        probe.start(ppo)
        return probe.measure(ppo.learn())


def in_a_vector(probe: Probe, mode: AutoresetMode) -> Probe:
    """The probe in one of Gymnasium's own vector environments."""
    return probe._replace(make=SyncVectorEnv([probe.make] * SIZES["num_envs"], autoreset_mode=mode))


def inside(probe: Probe, numbers: np.ndarray) -> bool:
    """Whether all numbers are between their bounds."""
    return bool(np.all((probe.low <= numbers) & (numbers <= probe.high)))


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_is_learnt(name):
    numbers = measured(PROBES[name])
    assert inside(PROBES[name], numbers), numbers


ENDS = [pytest.param(title, mode, marks=[] if title.startswith("P6") else pytest.mark.slow)
        for title in list(PROBES)[:-1] for mode in AutoresetMode]


@pytest.mark.parametrize(("name", "mode"), ENDS)
def test_a_probe_is_learnt_in_a_vector_environment_of_any_autoreset_mode(name, mode):
    numbers = measured(in_a_vector(PROBES[name], mode))
    assert inside(PROBES[name], numbers), numbers


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
@pytest.mark.parametrize("name", PROBES)
def test_a_probe_is_learnt_with_any_seed(name, seed):
    numbers = measured(PROBES[name], seed=seed)
    assert inside(PROBES[name], numbers), numbers


SEEN_AS = {"x": (1.0, 0.0), "x + 1e4": (1.0, 1e4), "x * 1e-3": (1e-3, 0.0), "x * 1e3": (1e3, 0.0)}
NEVER = 15


def iterations_until_right(scale: float, offset: float, **settings) -> int:
    """Iterations until the policy is right about 95 % of 500 numbers; at most NEVER."""
    x = np.random.default_rng(0).normal(size=(500, 1))

    def wrong(ppo, _):
        return np.mean(ppo.policy.predict(scale * x + offset) == (x[:, 0] > 0.5)) < 0.95

    make = partial(Above, scale, offset)
    settings = {**SIZES, "lr": 0.002, "gamma": 0.0, **settings}
    with PPO(make, **settings) as ppo:
        return ppo.learn(NEVER * 128, callbacks=[wrong]).progress.iteration


@pytest.fixture(scope="module")
def plain():
    """Iterations that plain observations take."""
    return iterations_until_right(*SEEN_AS["x"])


@pytest.mark.parametrize("seen_as", list(SEEN_AS)[1:])
def test_observations_of_any_offset_and_scale_are_learnt_as_fast_as_plain_ones(plain, seen_as):
    assert 1 < plain < 10
    assert iterations_until_right(*SEEN_AS[seen_as]) <= plain + 1
