"""Ids that are not registered, and families whose package is missing."""

import gymnasium as gym
import pytest
from optional_packages import NEEDS_ALE

from fastppo.envs.make import make_factory
from fastppo.errors import ConfigError
from fastppo.settings.presets import GAMES, full_game_id


@pytest.mark.parametrize("name, why", [
    ("LunaLander-v3", "Did you mean: `LunarLander`"), ("CartPole-v2", r"\[ `v0`, `v1` \]"),
    ("xyz", "Environment `xyz` doesn't exist"), ("cartpole", "Did you mean: `CartPole`"),
    ("no/CartPole-v1", "Namespace no not found")])
def test_an_id_that_is_not_registered_is_answered_by_gymnasium(name, why):
    with pytest.raises(ConfigError, match=f"no environment '{name}': .*{why}.*\n  fix: .* lists"):
        make_factory(name)




@NEEDS_ALE
def test_the_short_id_of_a_game_is_that_of_ale_py():
    assert make_factory("Pong-v5").constructor.id == "ALE/Pong-v5"
    registered = {name for name in gym.registry if name.startswith("ALE/")}
    assert {full_game_id(f"{game}-v5") for game in GAMES} == registered
