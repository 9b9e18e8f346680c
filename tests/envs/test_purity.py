"""An episode is a function of its seed and its actions, in every environment that is installed.

Replay rests on this: of an interrupted step, of a resumed run, after a restart, and of a bundle.
"""

import importlib.util

import gymnasium as gym
import numpy as np
import pytest

from fastppo.envs.atari import AtariOptions
from fastppo.envs.make import make_envs, make_factory
from fastppo.errors import Error

if importlib.util.find_spec("ale_py"):
    import ale_py
    gym.register_envs(ale_py)

KINDS = ("classic_control", "toy_text", "box2d", "mujoco", "ale")
GAMES = [name for name in gym.registry if name.startswith("ALE/") and "ram" not in name]
IDS = [name for name, spec in gym.registry.items() if any(
    f".{kind}" in str(spec.entry_point) for kind in KINDS[:-1])]


def is_supported(name):
    """True if an id of Gymnasium can be made here: old versions need old packages."""
    try:
        make_envs([make_factory(name)])[0].close()
        return True
    except (Error, gym.error.Error):
        return False


def trace(env, seed, actions):
    """The bytes of everything that an episode returns."""
    found = [np.asarray(env.reset(seed=seed)[0]).tobytes()]
    for action in actions:
        obs, rew, term, trunc, _ = env.step(action)
        found.append((np.asarray(obs).tobytes(), float(rew), term, trunc))
        if term or trunc:
            break
    return found


def assert_pure(name, steps, **options):
    used, *fresh = make_envs([make_factory(name, **options)] * 3)
    used.action_space.seed(1)
    for seed, env in enumerate(fresh):
        actions = [used.action_space.sample() for _ in range(steps)]
        assert trace(used, seed, actions) == trace(env, seed, actions)
    for env in (used, *fresh):
        env.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [
    name if name in ("Acrobot-v1", "Blackjack-v1", "LunarLanderContinuous-v3", "CliffWalking-v1")
    else pytest.param(name, marks=pytest.mark.slow) for name in IDS])
def test_an_environment_of_gymnasium_is_a_function_of_seed_and_actions(name):
    if not is_supported(name):
        pytest.skip("it cannot be made here")
    assert_pure(name, 120)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_a_game_of_atari_is_a_function_of_seed_and_actions(name):
    pytest.importorskip("cv2")
    assert_pure(name, 60, games=AtariOptions(lives=False))


class Drifting(gym.Wrapper):
    """CartPole whose noise belongs to the process, so a new process continues it otherwise."""

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))
        self.noise = np.random.default_rng()

    def step(self, action):
        obs, *rest = self.env.step(action)
        return obs + np.float32(1e-3 * self.noise.random()), *rest


def test_an_environment_that_is_none_is_found_at_its_first_replay_and_goes_on(tmp_path, caplog):
    from fastppo import PPO
    settings = dict(preset="none", seed=1, num_envs=2, num_steps=16, num_minibatches=2, epochs=1,
                    hidden_sizes=(4,), num_workers=0)
    with PPO(Drifting, **settings) as ppo:
        ppo.learn(64)
        ppo.checkpoint(tmp_path / "c.safetensors")
    with PPO.resume(tmp_path / "c.safetensors", Drifting) as ppo:
        ppo.learn(128)
        assert ppo.step == 128
    assert caplog.text.count("could not be replayed, so new ones begin there") == 1
