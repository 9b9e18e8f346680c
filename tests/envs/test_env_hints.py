"""The id that a mistyped or retired one is probably meant to be."""

import gymnasium as gym
import pytest
from optional_packages import NEEDS_ALE

from fastppo.envs.env_hints import nearest_id
from fastppo.envs.make import make_factory
from fastppo.errors import ConfigError
from fastppo.settings.atari_games import GAMES, full_game_id


@pytest.mark.parametrize("name, ours", [
    ("LunaLander-v3", "LunarLander-v3"), ("cartpole-v1", "CartPole-v1"),
    ("cartpole", "CartPole-v1"),
    ("CliffWalking-v0", "CliffWalking-v1"), ("tabular/CliffWalking-v9", "tabular/CliffWalking-v0"),
    ("Blackjack-v0", "Blackjack-v1"), ("blackjack", "Blackjack-v1"),
    ("LunarLander-v9", "LunarLander-v3"), ("Robots-Empty-5x5-v0", None), ("xyz", None),
    *(pytest.param(name, "ALE/Pong-v5", marks=NEEDS_ALE) for name in (
        "Pong-v5", "Pong-v4", "ALE/Pong-v4", "PongDeterministic-v0", "Pong-ram-v4",
        "Pong-ramNoFrameskip-v0")),
    pytest.param("ALE/Brekout-v5", "ALE/Breakout-v5", marks=NEEDS_ALE),
    *(pytest.param(f"ALE/{name}-v5", None, marks=NEEDS_ALE) for name in ("Quake", "Mario", "Foo"))])
def test_the_same_name_is_nearest_then_one_that_differs_in_a_letter_or_two(name, ours):
    assert nearest_id(name) == ours


def test_an_old_id_of_a_game_without_ale_py_names_the_package(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("fastppo.envs.env_hints.nearest_id", lambda name: None)
    for name in ("Pong-v3", "pong"):
        with pytest.raises(ConfigError, match=r'a game, and ale-py.*\n.*fastppo\[atari\]"'):
            make_factory(name)


@NEEDS_ALE
def test_the_short_id_of_a_game_is_that_of_ale_py():
    assert make_factory("Pong-v5").constructor.id == "ALE/Pong-v5"
    registered = {name for name in gym.registry if name.startswith("ALE/")}
    assert {full_game_id(f"{game}-v5") for game in GAMES} == registered


@NEEDS_ALE
@pytest.mark.parametrize("name, fix", [
    ("PongDeterministic-v4", "--env_name=ALE/Pong-v5"), ("Pong", "--env_name=ALE/Pong-v5"),
    ("Pong-ram-v0", "--env_name=ALE/Pong-v5 --preset=none --model=mlp"
     " --env_kwargs='{\"obs_type\": \"ram\"}'")])
def test_a_retired_id_of_atari_is_answered_with_todays(name, fix):
    with pytest.raises(ConfigError, match=f"there is no environment '{name}'") as caught:
        make_factory(name)
    assert caught.value.shell.endswith(f"fix: {fix}")
