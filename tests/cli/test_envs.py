"""The verb envs: the environments that there are, their presets and spaces, and what is missing."""

import importlib.util
import subprocess
import sys
from functools import partial
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec

from fastppo.cli import envs
from fastppo.envs import families
from fastppo.envs.families import family_of, is_retired, newest, registered_families
from fastppo.settings.presets import PRESETS, preset_name, preset_of

MAIN = Path(__file__).parents[2] / "main.py"

OWN_ENV = '''
import gymnasium as gym
from gymnasium.spaces import Box, Dict, Discrete

class MyEnv(gym.Env):
    observation_space = Dict({"camera": Box(0, 1, (3, 4)), "speed": Discrete(3)})
    action_space = Discrete(7)

    def reset(self, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}

class Rewarding(MyEnv):
    def step(self, action):
        return self.observation_space.sample(), None, False, False, {}

class Broken(gym.Env):
    action_space = Discrete(7)
'''


@pytest.fixture
def command(command, monkeypatch):
    """A function from the words after envs to (exit code, stdout, stderr) of the command."""
    monkeypatch.setenv("COLUMNS", "80")
    return partial(command, "envs")


@pytest.fixture
def plugin():
    """An id of a package that fastppo does not know, in two versions."""
    specs = [EnvSpec(f"Plugged-v{version}", entry_point="plugged.inside:Env")
             for version in (2, 10)]
    for spec in specs:
        gym.registry[spec.id] = spec
    yield
    for spec in specs:
        del gym.registry[spec.id]


@pytest.fixture
def without(monkeypatch):
    """A function that makes packages look as if they were not installed."""
    real = importlib.util.find_spec

    def hide(*names):
        monkeypatch.setattr(families.importlib.util, "find_spec",
                            lambda name, *more: None if name in names else real(name, *more))
    return hide


def test_every_family_has_its_ids_once_and_in_their_newest_version():
    found = {family.name: [spec.id for spec in newest(specs)]
             for family, specs in registered_families().items()}
    assert found["classic control"] == ["Acrobot-v1", "CartPole-v1", "MountainCar-v0",
                                        "MountainCarContinuous-v0", "Pendulum-v1"]
    assert "LunarLander-v3" in found["Box2D"] and "Taxi-v4" in found["toy text"]
    assert "Hopper-v5" in found["MuJoCo"] and "Hopper-v4" not in found["MuJoCo"]
    ids = [name for names in found.values() for name in names]
    assert len(ids) == len(set(ids))


def test_versions_are_compared_as_numbers():
    specs = [EnvSpec(f"Some-v{version}", entry_point="a:B") for version in (9, 10, 2)]
    assert [spec.id for spec in newest(specs)] == ["Some-v10"]


def test_a_game_of_atari_is_there_once_under_its_newest_name():
    specs = [EnvSpec(name, entry_point="ale_py.env:AtariEnv")
             for name in ("ALE/Pong-v5", "Pong-v4", "PongNoFrameskip-v4", "ALE/Breakout-v5")]
    assert [spec.id for spec in newest(specs)] == ["ALE/Pong-v5", "ALE/Breakout-v5"]
    assert {family_of(spec).name for spec in specs} == {"Atari"}


def test_ids_that_gymnasium_has_retired_are_left_out():
    retired = gym.registry["Hopper-v2"]
    assert is_retired(retired) and not is_retired(gym.registry["Hopper-v5"])
    assert all(retired not in specs for specs in registered_families().values())


def test_an_id_of_another_package_is_in_a_family_named_after_it(plugin, command):
    code, out, _ = command()
    assert code == 0 and "\nplugged           registered by plugged\n" in out
    assert "Plugged-v10" in out and "Plugged-v2" not in out
    assert "Plugged-v2" in command("--all")[1]


def test_the_list_names_presets_and_is_no_wider_than_80(command):
    code, out, err = command()
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "  cartpole                CartPole-v1" in lines
    assert "  general                 BipedalWalkerHardcore-v3" in lines
    assert "  carracing               CarRacing-v3" in lines
    assert any("--env_name=my_module:MyEnv" in line for line in lines)


def test_the_name_of_a_preset_is_that_of_its_settings():
    assert preset_name("CartPole-v1") == "cartpole" and preset_name("Taxi-v4") == "general"
    assert preset_name("ale_py:ALE/Pong-v5") == "atari"
    assert preset_of("CartPole-v1") == PRESETS["cartpole"] == preset_of("Taxi-v4", "cartpole")
    assert preset_of("Taxi-v4") == PRESETS["general"] and preset_of("CartPole-v1", "none") == {}


@pytest.mark.parametrize("argv", [["LunarLander-v3"], ["lunarlander-V3"], ["Lunar*r-v3"]])
def test_an_environment_that_is_named_is_shown_with_its_spaces_and_limits(command, argv):
    pytest.importorskip("Box2D")
    code, out, _ = command(*argv)
    assert code == 0 and out.splitlines() == [
        "LunarLander-v3",
        "  observations    Box(8,) float32",
        "  actions         Discrete(4)",
        "  episodes        at most 1,000 steps; solved at a mean return of 200",
        "  preset          lunarlander",
        "  train           python main.py --env_name=LunarLander-v3"]


def test_without_limit_and_threshold_it_says_so(command):
    out = command("CliffWalking-v1")[1]
    assert "  episodes        no limit of steps\n" in out and "  preset          general" in out


def test_the_limit_of_a_game_is_told_in_frames(command):
    pytest.importorskip("ale_py")
    assert "  episodes        at most 108,000 frames\n" in command("ALE/Pong-v5")[1]


def test_a_pattern_that_fits_an_old_version_alone_finds_that(command):
    code, out, _ = command("CartPole-v0")
    assert code == 0 and "at most 200 steps; solved at a mean return of 195" in out


def test_many_matches_are_listed_and_not_made(command, monkeypatch):
    monkeypatch.setattr(envs, "description", None)
    code, out, _ = command("v5")
    assert code == 0 and "Hopper-v5" in out and "CartPole" not in out


@pytest.mark.parametrize("name", ["toy text", "Toy Text"])
def test_the_name_of_a_family_lists_it(command, monkeypatch, name):
    monkeypatch.setattr(envs, "description", None)  # none of the six is made
    code, out, _ = command(name)
    assert code == 0 and out.splitlines()[2].startswith("toy text   ")
    assert "Taxi-v4" in out and "CartPole-v1" not in out


def test_a_family_is_listed_with_what_it_lacks(command, without):
    without("mujoco")
    out = command("mujoco")[1]
    assert 'missing: pip install "fastppo[mujoco]"' in out and "Hopper-v5" in out
    assert "Hopper-v4" not in out and "Hopper-v4" in command("mujoco", "--all")[1]


def test_a_family_whose_package_is_missing_is_named_with_what_to_install(command, without):
    without("mujoco", "Box2D", "ale_py")
    out = command()[1]
    assert 'MuJoCo            missing: pip install "fastppo[mujoco]"\n' in out
    assert 'Box2D             missing: pip install Box2D; or pip install' in out
    assert 'Atari             missing: pip install "fastppo[atari]"\n' in out
    assert "  walker2d                Walker2d-v5" in out  # Gymnasium's own ids


def test_an_environment_that_cannot_be_made_is_shown_with_what_to_install(command):
    if importlib.util.find_spec("jax"):
        pytest.skip("jax is installed")
    code, out, _ = command("phys2d/Pendulum")
    assert code == 0 and "  not here        phys2d/Pendulum-v0 cannot be made" in out
    assert '  fix             pip install "gymnasium[jax]"\n' in out


def test_an_environment_of_ones_own_is_shown_too(command, tmp_path, monkeypatch):
    (tmp_path / "my_games.py").write_text(OWN_ENV)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = command("my_games:MyEnv")
    assert code == 0 and "  actions         Discrete(7)\n" in out
    assert "  observations    Dict('camera': Box(3, 4) float32, 'speed': Discrete(3))" in out
    assert max(map(len, out.splitlines())) <= 80
    code, _, err = command("my_games:Rewarding")
    assert code == 1 and "the reward is None, not a number\n  fix: step() must" in err
    code, _, err = command("my_games:Broken")
    assert code == 2 and "has no observation_space" in err
    code, _, err = command("my_games:Missing")
    assert code == 2 and "there is no 'Missing' in my_games" in err
    code, _, err = command("no_such_module:Env")
    assert code == 2 and "cannot import 'no_such_module'" in err


@pytest.mark.parametrize("argv, what, fix", [
    (["nosuch-v0"], 'matches "nosuch-v0"\n', "main.py envs lists all"),
    (["xyzzyq"], 'no environment matches "xyzzyq"\n', "main.py envs lists all"),
    (["CartPole", "Pendulum"], "takes [PATTERN] beside its options, not CartPole Pendulum",
     "main.py envs --help"),
    (["--al"], "envs has no option --al", "did you mean --all?")])
def test_a_wrong_word_is_one_error_with_a_fix(command, argv, what, fix):
    code, out, err = command(*argv)
    assert (code, out) == (2, "") and what in err and fix in err.splitlines()[1]


@pytest.mark.parametrize("pattern, family, fix", [
    ("MiniGrid-Nothing-v9", "MiniGrid", 'pip install "fastppo[minigrid]"'),
    ("ALE/Nothing-v9", "Atari", 'pip install "fastppo[atari]"'),
    ("jax phys", "JAX phys2d", 'pip install "gymnasium[jax]"')])
def test_a_pattern_of_a_family_that_is_missing_brings_its_package(command, without, pattern, family,
                                                                  fix):
    without("minigrid", "ale_py", "jax")
    code, out, err = command(pattern)
    assert (code, out) == (2, "") and err == (
        f'error: no environment matches "{pattern}": {family} is not installed\n  fix: {fix}\n')


def test_the_list_needs_no_torch_and_its_help_no_gymnasium():
    code = ("import sys; sys.argv = ['main.py']; from fastppo.cli.main import main\n"
            "try: main(['envs', {word!r}])\nexcept SystemExit: pass\n"
            "print([m for m in ('torch', 'numpy', 'gymnasium') if m in sys.modules])")
    loaded = [subprocess.run([sys.executable, "-c", code.format(word=word)], check=True, text=True,
                             capture_output=True, cwd=MAIN.parent).stdout.splitlines()[-1]
              for word in ("CartPole-v1", "--help")]
    assert loaded == ["['numpy', 'gymnasium']", "[]"]
