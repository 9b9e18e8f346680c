"""Presets in files: what they decide, what is refused, and the text that --show_config prints."""

import json
import tomllib
from pathlib import Path

import pytest

from fastppo import PPO, Config
from fastppo.cli import command_line
from fastppo.cli.main import main
from fastppo.errors import ConfigError
from fastppo.trainer.setting_texts import preset_settings, settings_text

TOML = 'num_envs = 4\nlr = 1e-3\nhidden_sizes = [8, 8]\nenv_kwargs = {"level" = 3}\n'


@pytest.fixture
def preset(tmp_path):
    def write(text, name="own.toml"):
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)
    return write


def test_a_file_of_settings_is_a_preset(preset):
    wanted = {"num_envs": 4, "lr": 1e-3, "hidden_sizes": (8, 8), "env_kwargs": {"level": 3}}
    assert preset_settings("CartPole-v1", preset(TOML)) == wanted
    assert preset_settings("CartPole-v1", preset(json.dumps(wanted), "own.json")) == wanted


def test_a_mark_of_the_byte_order_is_no_part_of_a_file(preset):
    assert preset_settings("", preset("\ufeffnum_envs = 4")) == {"num_envs": 4}
    assert preset_settings("", preset('\ufeff{"num_envs": 4}', "a.json")) == {"num_envs": 4}


@pytest.mark.parametrize("text, given, decides, fix", [
    ("resize = 84", {}, True, "--preset=none"),
    ("std = 0.5\nnum_envs = 4", {}, True, "--preset=none"),
    ("vec = 'native'", {"frame_stack": 4}, False, "leave --frame_stack out"),
    ("num_envs = 4", {"std": 0.5}, False, "leave --std out"),
    ("carracing", {}, True, "--preset=none"),
    ("atari", {}, True, "give such a game; or --preprocessing=none"),
    ("carracing", {"grayscale": True, "resize": None}, False, "leave --grayscale out")])
def test_an_error_of_a_setting_that_a_preset_decides_is_mended_there(preset, text, given, decides,
                                                                     fix):
    name = preset(text) if "=" in text else text
    with pytest.raises(ConfigError) as refused:
        PPO("CartPole-v1", preset=name, num_workers=0, **given)
    assert refused.value.shell.partition("fix: ")[2] == fix
    assert refused.value.what.startswith(f"with preset={name}: ") is decides


def test_the_command_names_the_file_of_a_preset_too(preset, capsys):
    name = preset("resize = 84")
    with pytest.raises(SystemExit):
        main(["--env_name=CartPole-v1", f"--preset={name}"])
    assert f"error: with preset={name}: " in (said := capsys.readouterr().err)
    assert said.endswith("fix: --preset=none\n")


def test_a_file_may_have_the_aliases_of_the_command_line(preset):
    found = preset_settings("", preset('env = "Acrobot-v1"\nlam = 0.9\nepsilon = 0.3'))
    assert found == {"env_name": "Acrobot-v1", "gae_lambda": 0.9, "clip_range": 0.3}


def test_settings_that_are_given_win_over_those_of_the_file(preset):
    request = command_line.read([f"--preset={preset(TOML)}", "--num_envs=2"])
    assert (request.config.num_envs, request.config.lr) == (2, 1e-3)
    assert request.changes == {"lr": 1e-3, "hidden_sizes": (8, 8), "env_kwargs": {"level": 3}}


def test_python_takes_a_file_too(preset):
    with PPO("CartPole-v1", preset=preset("num_envs = 4\nnum_steps = 8\nnum_minibatches = 1"),
             num_workers=0, num_steps=16) as ppo:
        assert (ppo.config.num_envs, ppo.config.num_steps) == (4, 16)


@pytest.mark.parametrize("value", [None, 3, 0.5, True, ["a"], Path("mine")])
def test_a_preset_that_is_no_text_is_refused_in_python(value):
    with pytest.raises(ConfigError, match="^there is no preset .*auto"):
        PPO("CartPole-v1", preset=value)


@pytest.mark.parametrize("text, name, words", [
    ("num_envs = ", "a.toml", "no TOML"), ("{", "a.json", "no JSON"),
    ("[1]", "a.json", "no object"), ("num_env = 3", "a.toml", "no setting num_env"),
    ("num_envs = -1", "a.toml", "num_envs is -1"),
    ('device = "cuda"', "a.toml", "device is a setting of one run"),
    ('{"run_dir": "x"}', "a.json", "run_dir is a setting of one run"),
    (None, "a.toml", "cannot be read")])
def test_a_file_that_is_no_preset_is_one_error(preset, tmp_path, text, name, words):
    path = str(tmp_path / "missing.toml") if text is None else preset(text, name)
    with pytest.raises(ConfigError, match=f"(?s){words}"):
        command_line.read([f"--preset={path}"])


def test_an_error_of_a_file_names_it_and_all_its_unknown_names(preset):
    path = preset("num_env = 3\nn_steps = 4\ngamma = 0.9", "a.toml")
    with pytest.raises(ConfigError) as refused:
        command_line.read([f"--preset={path}"])
    assert refused.value.shell == (
        f"in {path}: there is no setting num_env, n_steps\n"
        "  fix: did you mean num_envs, num_steps?")


def test_an_error_of_a_value_names_the_file_unless_another_value_is_wrong(preset):
    path = preset('num_envs = "many"\nnum_steps = 4')
    for read in (lambda *flags: command_line.read([f"--preset={path}", *flags]),
                 lambda *flags: PPO("CartPole-v1", preset=path, **(
                     {"gamma": 2.0} if flags else {}))):
        with pytest.raises(ConfigError, match=f"^with preset={path}: num_envs is 'many', but must"):
            read()
        with pytest.raises(ConfigError, match="^gamma is 2.0"):
            read("--gamma=2")
    assert command_line.read([f"--preset={path}", "--num_envs=8"]).config.num_steps == 4


def test_the_text_of_a_config_is_a_file_that_gives_it_again(preset):
    config = Config(env_name="CartPole-v1", lr="linear:1e-3", hidden_sizes=(3, 4), seed=5,
                    env_kwargs={"a b": [1, "x"]}, target_kl=0.1, norm_rewards=True)
    text = settings_text(config, {"lr": "given"})
    assert 'lr = "linear:1e-3"  # given' in text and "# clip_range_vf = none" in text
    assert tomllib.loads(text)["hidden_sizes"] == [3, 4] and "\n# device = " in text
    again = Config(**preset_settings("", preset(text)))
    assert again == config


def test_the_config_of_a_run_is_a_preset(tmp_path):
    with PPO("CartPole-v1", num_workers=0, gamma=0.5, run_dir=str(tmp_path), seed=3) as ppo:
        wanted = ppo.config
    found = command_line.read([f"--preset={tmp_path / 'config.json'}"]).config
    assert (found.env_name, found.gamma, found.seed) == ("CartPole-v1", 0.5, 3)
    assert found.run_dir is None and found.num_envs == wanted.num_envs
