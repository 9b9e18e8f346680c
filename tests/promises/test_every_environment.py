"""Every environment that is installed trains without a setting; sizes are given to be quick."""

from fnmatch import fnmatchcase

import pytest
import torch

from fastppo import PPO
from fastppo.envs.families import is_installed, newest, registered_families
from fastppo.errors import Error

SIZES = dict(seed=1, num_envs=2, num_steps=8, num_minibatches=2, epochs=1, num_workers=0)
# Ids that cannot be made although their package is there, and the text of the error.
REFUSED = {
    "Pusher-v4": "is only supported on `mujoco<3`",
    "MiniGrid-WFC-*": "FileNotFoundError",  # MiniGrid's wheels lack the pictures that these read
}
# Of a game's names one is enough.
IDS = [(family, spec.id) for family, specs in registered_families().items()
       for spec in (newest(specs) if family.name == "Atari" else specs)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family, name", IDS, ids=[name for _, name in IDS])
def test_an_id_trains_without_a_setting_or_says_what_is_missing(family, name):
    expected = next((text for form, text in REFUSED.items() if fnmatchcase(name, form)), "")
    try:
        with PPO(name, **SIZES) as ppo:
            ppo.learn(32)
            assert ppo.progress.iteration == 2
            assert all(torch.isfinite(part).all() for part in ppo.policy.state_dict().values())
    except Error as error:
        assert expected in str(error) and (expected or not is_installed(family)), error
    else:
        assert not expected
