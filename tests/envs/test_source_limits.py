"""Limits on environments that the main process makes to read their spaces."""

import signal
import time

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from fastppo import PPO
from fastppo.envs import faults
from fastppo.errors import EnvError


class Slow(gym.Env):
    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def __init__(self, where):
        self.where = where
        if where == "constructor":
            time.sleep(60)

    def reset(self, seed=None, options=None):
        if self.where == "reset":
            while True:
                pass
        return np.zeros(2, np.float32), {}


@pytest.mark.parametrize("where", ["constructor", "reset"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_environment_that_hangs_before_training_is_one_error(where, workers):
    handler, begin = signal.getsignal(signal.SIGALRM), time.monotonic()
    with pytest.raises(EnvError, match=rf"environment .* failed in (its )?{where}"
                       r"[\s\S]*line \d+[\s\S]*reset_timeout=0.5[\s\S]*fix: mend what hangs"):
        PPO(lambda: Slow(where), num_workers=workers, reset_timeout=0.5)
    assert time.monotonic() - begin < 30  # a guard
    assert signal.getsignal(signal.SIGALRM) is handler


def test_a_limit_puts_the_handler_and_the_timer_of_the_host_back():
    rang = []
    before = signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with faults.time_limit(5.0, "Slow", "reset()"):
            pass
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 0.3
        time.sleep(0.5)
        assert rang == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def test_no_limit_is_no_timer():
    with faults.time_limit(0.0, "Slow", "reset()"):
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
