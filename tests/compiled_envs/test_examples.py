"""The compiled environments in examples/compiled: short, right, and two of them Gymnasium's own."""

import importlib.util

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from source_tree import ROOT

from fastppo.compiled_envs.definition import CompiledEnv

EXAMPLES = sorted((ROOT / "examples" / "compiled").glob("*.py"))


def example(name):
    """The class of environments in an example."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / "compiled"
                                                  / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return next(x for x in vars(module).values() if isinstance(x, type)
                and issubclass(x, CompiledEnv))


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_its_machine_code_is_its_python_code(path):
    kind = example(path.stem)
    kind.check(200)
    check_env(kind(), skip_render_check=True)
    env = kind(render_mode="rgb_array")
    env.reset(seed=1)
    picture = env.render()
    assert picture.dtype == np.uint8 and picture.shape[2] == 3 and min(picture.shape[:2]) >= 96
    assert len(path.read_text().splitlines()) < 80


@pytest.mark.parametrize(("name", "env_id", "fields"), [
    ("cartpole", "CartPole-v1", ["x", "x_dot", "theta", "theta_dot"]),
    ("pendulum", "Pendulum-v1", ["theta", "speed"])])
def test_an_example_equals_gymnasiums_environment(name, env_id, fields):
    ours, theirs, rng = example(name)(), gym.make(env_id).unwrapped, np.random.default_rng(1)
    assert ours.action_space == theirs.action_space
    assert ours.observation_space == theirs.observation_space
    for episode in range(20):
        ours.reset(seed=episode)
        theirs.reset(seed=episode)
        over = False
        for _ in range(100):
            theirs.state = np.array([getattr(ours.row.state, field) for field in fields])
            action = rng.integers(2) if name == "cartpole" else \
                rng.uniform(-2, 2, 1).astype(np.float32)
            obs, rew, term, _, _ = ours.step(action)
            wanted, their_rew, their_term, _, _ = theirs.step(action)
            np.testing.assert_allclose(obs, wanted, 1e-6, 1e-6)
            assert abs(rew - their_rew) < 1e-6 and term == their_term
            if over := term:
                break
        assert over or name == "pendulum"
