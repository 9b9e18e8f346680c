"""Networks that no memory is there for."""

import numpy as np
import pytest
from envs_for_tests import Chance
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Tuple

from fastppo.errors import ConfigError
from fastppo.machine import limits


@pytest.mark.parametrize("settings", [
    {"hidden_sizes": (100_000, 100_000)}, {"hidden_sizes": (3_000_000_000,)},
    {"rnn": "lstm", "rnn_size": 100_000}, {"critic_hidden_sizes": (100_000, 100_000)}])
def test_a_network_that_cannot_fit_is_refused_before_it_is_made(trainer, monkeypatch, settings):
    monkeypatch.setattr(limits, "free_memory", lambda: 4 << 30)
    with pytest.raises(ConfigError, match="(?s)parameters and needs .* are free.*smaller layers"):
        trainer("CartPole-v1", num_workers=0, **settings)


def test_a_network_of_large_images_is_refused_before_it_is_built(trainer, monkeypatch):
    monkeypatch.setattr(limits, "free_memory", lambda: 1 << 30)
    with pytest.raises(ConfigError, match=r"(?s)at least 1\d\d,\d{3},\d{3} parameters.*resize"):
        trainer(lambda: Chance(Box(0, 255, (480, 640, 3), np.uint8)), model="cnn")


@pytest.mark.parametrize("act_space", [
    Discrete(10**7), MultiBinary(10**7), Box(-1.0, 1.0, (10**7,), np.float32)], ids=str)
def test_a_network_of_too_many_actions_is_refused_before_it_is_built(trainer, monkeypatch,
                                                                     act_space):
    monkeypatch.setattr(limits, "free_memory", lambda: 1 << 30)
    with pytest.raises(ConfigError, match=r"at least 80,000,\d{3} parameters") as caught:
        trainer(lambda: Chance(act_space=act_space))
    assert "fewer actions" in caught.value.fix


@pytest.mark.parametrize("act_space", [
    Discrete(10**12), MultiDiscrete([10**12, 2]), Tuple([Discrete(10**12)])], ids=str)
def test_more_actions_than_memory_has_bytes_for_are_refused_before_anything_is_made(trainer,
                                                                                    act_space):
    with pytest.raises(ConfigError, match=r"at least \d+(,\d{3}){4} parameters"):
        trainer(lambda: Chance(act_space=act_space), learner="auto", precision="auto")
