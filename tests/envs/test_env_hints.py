"""The id that a mistyped one is probably meant to be."""

import pytest
from optional_packages import NEEDS_ALE

from fastppo.envs.env_hints import nearest_id


@pytest.mark.parametrize("name, ours", [
    ("LunaLander-v3", "LunarLander-v3"), ("cartpole-v1", "CartPole-v1"),
    ("LunarLander-v9", "LunarLander-v3"), ("Robots-Empty-5x5-v0", None), ("xyz", None),
    pytest.param("Pong-v5", "ALE/Pong-v5", marks=NEEDS_ALE),
    pytest.param("ALE/Brekout-v5", "ALE/Breakout-v5", marks=NEEDS_ALE)])
def test_the_same_name_is_nearest_then_one_that_differs_in_a_letter_or_two(name, ours):
    assert nearest_id(name) == ours
