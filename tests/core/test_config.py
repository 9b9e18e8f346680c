"""Config: what it refuses and with which words, and that its documents say what it is."""

import dataclasses
import re
import runpy
from pathlib import Path

import pytest

from fastppo import PPO, Config
from fastppo.cli import command_line
from fastppo.cli.bench import Bench
from fastppo.config import having, setting
from fastppo.errors import ConfigError, EnvError, Install, Omit, Set, fix_text, format_value
from fastppo.settings.presets import FAMILIES, PRESETS, preset_of
from fastppo.terminal.banner import preset_line
from fastppo.trainer.given_settings import config_for
from fastppo.trainer.setting_texts import ALIASES, BARE_VALUES, SECTIONS, settings

DOCS = Path(__file__).parents[2] / "docs"
NAMES = [field.name for field in dataclasses.fields(Config)]


def test_the_defaults_are_valid_and_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().lr = 1.0


@pytest.mark.parametrize("name, bad", [
    ("num_envs", 0), ("num_envs", 1.0), ("num_envs", True), ("num_envs", None), ("num_steps", -1),
    ("epochs", 0), ("num_minibatches", 0), ("total_steps", 0), ("torch_threads", 0),
    ("max_episode_steps", 0), ("num_workers", -1), ("eval_episodes", -1), ("seed", -1),
    ("seed", 2**63), ("seed", 1.5), ("lr", 0.0), ("lr", -1e-3), ("lr", float("nan")),
    ("lr", float("inf")), ("lr", "fast"), ("lr", None), ("adam_eps", 0.0), ("clip_range", 0.0),
    ("clip_range_vf", 0.0), ("max_grad_norm", 0.0), ("target_kl", 0.0), ("reward_limit", 0.0),
    ("entropy_coef", -0.1), ("value_coef", -0.1), ("step_timeout", -1.0), ("reset_timeout", -1.0),
    ("gamma", 1.01), ("gamma", -0.01), ("gamma", float("nan")), ("gae_lambda", 2),
    ("reward_scale", float("inf")), ("log_std_init", float("nan")), ("norm_obs", "yes"),
    ("norm_obs", None), ("clip_rewards", 2), ("norm_advantages", "batch"), ("acting", "remote"),
    ("activation", "mish"), ("logger", ("tensorbord",)), ("logger", 3),
    ("wandb_tags", (1,)), ("wandb_tags", 3), ("wandb_entity", 3), ("wandb_group", 3),
    ("progress", "bar"), ("model", "vit"),
    ("lr", "linear"), ("lr", "linear:x"), ("lr", "linear:0"), ("lr", "linear:1:-1"),
    ("lr", "constant:1:2"), ("lr", "sine:1"), ("critic_lr", 0), ("clip_range", "cosine:nan"),
    ("clip_range", ""), ("clip_range_vf", "linear:1:2:3"), ("entropy_coef", "linear:-1"),
    ("entropy_coef", None), ("dual_clip", 1.0), ("adaptive_kl", 0.0), ("rpo_alpha", -0.1),
    ("obs_limit", 0.0), ("num_microbatches", 0), ("norm_values", "yes"), ("optimizer", "sgd"),
    ("recompute_advantages", 2), ("grad_clipping", "all"), ("loss", "mse"), ("loss", None),
    ("model", 3), ("hidden_sizes", (64.0,)), ("hidden_sizes", (64, 0)), ("hidden_sizes", 64),
])
def test_a_value_that_cannot_be_is_refused_by_name_with_a_fix(name, bad):
    with pytest.raises(ConfigError) as caught:
        Config(**{name: bad})
    assert caught.value.what.startswith(f"{name} is {bad!r}, but must be ")
    assert fix_text(caught.value.fix, shell=True).startswith(f"--{name}=")


@pytest.mark.parametrize("name, good", [
    ("gamma", 0), ("gamma", 1), ("gae_lambda", 0.0), ("gae_lambda", 1.0), ("seed", 0),
    ("seed", 2**63 - 1), ("num_workers", 0), ("eval_episodes", 0), ("entropy_coef", 0),
    ("step_timeout", 0), ("hidden_sizes", ()), ("hidden_sizes", (1,)), ("target_kl", None),
    ("lr", "linear:3e-4"), ("lr", "cosine:3e-4:1e-5"), ("critic_lr", "constant:1"), ("lr", abs),
    ("entropy_coef", "linear:0:0.1"), ("entropy_coef", "linear:0.1"), ("dual_clip", 1.5),
    ("rpo_alpha", 0), ("optimizer", dict), ("loss", max), ("clip_range_vf", 0.2),
    ("model", dict), ("reward_scale", -1.0),
])
def test_the_edge_of_what_can_be_is_taken(name, good):
    assert getattr(Config(**{name: good}), name) == good


@pytest.mark.parametrize("given, held", [
    ("wandb", ("wandb",)), ("none", None), (None, None), ((), None), (["wandb"], ("wandb",)),
    ("tensorboard, wandb,wandb", ("tensorboard", "wandb"))])
def test_loggers_are_one_or_several_names_or_none(given, held):
    assert Config(logger=given).logger == held


def test_a_name_alone_is_a_tuple_of_names():
    assert Config(worker_env="MY_TOKEN").worker_env == ("MY_TOKEN",)
    with pytest.raises(ConfigError, match="worker_env is 3, but must be names"):
        Config(worker_env=3)


def test_a_fact_of_a_setting_is_asked_of_its_field():
    assert "num_workers" in having("resumable") and "lr" not in having("resumable")
    assert having("alias")["gae_lambda"] == "lam"
    words = re.findall(r"^        (\w+)  ", setting.__doc__, re.MULTILINE)
    known = {fact for field in dataclasses.fields(Config) for fact in field.metadata}
    assert known == {*words}


def test_more_minibatches_than_rows_are_refused_with_the_arithmetic():
    few = {"num_envs": 2, "num_steps": 3, "preset": "none", "num_workers": 0}
    PPO("CartPole-v1", num_minibatches=6, **few).close()
    with pytest.raises(ConfigError, match=r"7 is more than the 6 rows .*num_envs 2 x num_steps 3"
                                          r"\n  fix: num_minibatches=6"):
        PPO("CartPole-v1", num_minibatches=7, **few)


def test_all_unknown_names_are_refused_at_once_each_with_the_nearest():
    with pytest.raises(ConfigError) as caught:
        Config(**{"n_stepz": 5, "lr": 1e-3, "foo": 3, "n_epochs": 4})
    assert str(caught.value).splitlines() == [
        "there is no setting n_stepz, foo, n_epochs",
        "  fix: did you mean num_steps, epochs?"]
    with pytest.raises(ConfigError, match=r"no setting foo\n  fix: help\(fastppo.PPO\) lists them"):
        Config(**{"foo": 3})
    for wrong in (lambda: Config().replace(num_env=3), lambda: Config(num_env=3)):
        with pytest.raises(ConfigError, match=r"no setting num_env\n  fix: did you mean num_envs"):
            wrong()


def test_replace_checks_what_changes_and_leaves_the_rest():
    config = Config(num_envs=3)
    assert config.replace(gamma=0.5) == Config(num_envs=3, gamma=0.5) != config
    assert config.replace(num_envs=Config.num_envs) == Config()
    assert config.replace(hidden_sizes=[8]).hidden_sizes == (8,)
    with pytest.raises(ConfigError, match="gamma is 2, but must be a number from 0 to 1"):
        config.replace(gamma=2)


def test_a_preset_holds_valid_settings_and_every_family_has_one():
    for values in PRESETS.values():
        assert set(values) <= set(NAMES)
        Config(**values)
    assert set(FAMILIES.values()) <= set(PRESETS)


@pytest.mark.parametrize("env_name, preset, wanted", [
    ("LunarLander-v3", "auto", "lunarlander"), ("Pendulum-v1", "auto", "pendulum"),
    ("package:CartPole-v7", "auto", "cartpole"), ("Blackjack-v1", "cartpole", "cartpole"),
    ("Blackjack-v1", "auto", "general"), ("CartPole", "auto", "general"),
    ("my:CartPole", "auto", "general")])
def test_a_preset_is_looked_up_by_the_id_without_its_version(env_name, preset, wanted):
    assert preset_of(env_name, preset) == PRESETS[wanted]


def test_the_preset_none_has_no_settings():
    assert preset_of("CartPole-v1", "none") == {}


def test_what_is_given_wins_over_the_preset():
    config = config_for("CartPole-v1", {"lr": Config.lr})
    assert config.lr == Config.lr != PRESETS["cartpole"]["lr"]
    assert config.gamma == PRESETS["cartpole"]["gamma"]
    assert config_for("CartPole-v1", {"preset": "none"}).gamma == Config.gamma


def test_an_unknown_preset_is_refused():
    with pytest.raises(ConfigError, match="there is no preset 'pong'"):
        config_for("CartPole-v1", {"preset": "pong"})


def test_every_field_says_what_it_means_in_a_known_section():
    for name, one in settings().items():
        assert one.text and one.text[0].isupper() and one.section, name
        assert not one.text.endswith("."), name
    assert list(settings()) == NAMES


def test_tables_about_settings_name_only_settings():
    for table in (SECTIONS, ALIASES.values()):
        assert set(table) <= set(NAMES)
    assert {*BARE_VALUES} <= {*NAMES, *settings(Bench)}
    assert not {*NAMES} & {*ALIASES, "num_iterations"}


def test_a_value_is_shown_as_it_is_typed():
    assert [format_value(value) for value in (1_000_000, 3e-4, 1e-5, 2.0, True, None, "mlp",
                                              (64, 64), {"a": 1})] == [
        "1_000_000", "0.0003", "1e-05", "2", "True", "none", "mlp", "64,64", '{"a": 1}']


@pytest.mark.parametrize("fix, shell, python", [
    (Set(num_envs=16), "--num_envs=16", "num_envs=16"),
    (Set(lr=3e-4), "--lr=0.0003", "lr=0.0003"),
    (Set(target_kl=None), "--target_kl=none", "target_kl=None"),
    (Set(rnn="none"), "--rnn=none", 'rnn="none"'),
    (Set(hidden_sizes=(64, 64)), "--hidden_sizes=64,64", "hidden_sizes=(64, 64)"),
    (Set(norm_obs=False, lr=1.0), "--norm_obs=False --lr=1", "norm_obs=False, lr=1.0"),
    (Set(env_name="a:B"), "--env_name=a:B", 'env="a:B"'),
    (Set(wandb_group="my runs"), "--wandb_group='my runs'", 'wandb_group="my runs"'),
    (Set(env_kwargs={"a": "it's"}), "--env_kwargs='{\"a\": \"it'\"'\"'s\"}'",
     """env_kwargs={'a': "it's"}"""),
    (Omit("seed", "lr"), "leave --seed and --lr out", "leave seed and lr out"),
    (Install("atari"), 'pip install "fastppo[atari]"', 'pip install "fastppo[atari]"'),
    ((Set(lr=1.0), Omit("critic_lr"), "train longer"),
     "--lr=1; or leave --critic_lr out; or train longer",
     "lr=1.0; or leave critic_lr out; or train longer"),
    ('load("a--b")',) * 3, ("python main.py --help-all lists them",) * 3])
def test_a_fix_is_told_to_the_command_as_flags_and_in_python_as_keyword_arguments(
        fix, shell, python):
    error = ConfigError("what", fix)
    assert (error.shell, str(error)) == (f"what\n  fix: {shell}", f"what\n  fix: {python}")


def test_the_words_of_an_environment_are_left_as_they_are():
    assert str(EnvError("it raised: --lr=3", Set(lr=1))) == "it raised: --lr=3\n  fix: lr=1"


@pytest.mark.parametrize("name", PRESETS)
def test_the_page_the_banner_and_help_have_the_same_settings_of_a_preset(name):
    row = re.search(rf"^\| `{name}` .*", (DOCS / "config.md").read_text(), re.MULTILINE)[0]
    request = command_line.read([f"--preset={name}"])
    assert row.count("=") == len(request.changes)
    assert preset_line(request, request.config).count("=") == row.count("=")


def test_the_page_of_settings_is_what_config_says():
    script = runpy.run_path(str(DOCS / "make_config.py"))
    assert script["PAGE"].read_text(encoding="utf-8") == script["page"](), \
        "run: python docs/make_config.py"
