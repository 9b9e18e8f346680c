"""The command: what argv may look like, what is said and written, and how it ends."""

import io
import itertools
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
import zipfile
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from gymnasium.envs.registration import EnvSpec
from optional_packages import NEEDS_EXTENSION
from safetensors import safe_open

from fastppo import PPO, Config, __version__, config, load
from fastppo.cli import command_line, interrupts, main, play, run_folder, train
from fastppo.cli.command_line import VERBS
from fastppo.collect import Collector
from fastppo.errors import CheckpointError, ConfigError, EnvError, fix_text, format_value, program
from fastppo.evaluation import evaluate
from fastppo.learner import Learner
from fastppo.loggers import background
from fastppo.machine import child_process, kernels
from fastppo.runs import tensor_file
from fastppo.runs.crash_bundle import BUNDLE_FORMAT
from fastppo.settings.known_names import unknown_names
from fastppo.settings.presets import PRESETS
from fastppo.settings.values import LOGGERS, Rule, return_text
from fastppo.terminal import banner
from fastppo.trainer import resolve
from fastppo.trainer.setting_texts import settings
from fastppo.workers import team

MAIN = Path(__file__).parents[2] / "main.py"
ROOT = MAIN.parent
TINY = ["--preset=none", "--num_workers=0", "--num_envs=4", "--num_steps=8", "--epochs=1",
        "--num_minibatches=1", "--hidden_sizes=8", "--total_steps=96", "--eval_episodes=2"]
UNSEEDED = ["--env_name=CartPole-v1", *TINY]
CARTPOLE = [*UNSEEDED, "--seed=1"]  # with this seed an episode ends, so there is a curve

ENVS = '''
import os
import signal
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Sequence, Text

class Plain(gym.Env):
    """Fails, or sends itself a signal, at a step of its life."""
    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def __init__(self, fails=-1, signum=0, at=-1):
        self.fails, self.signum, self.at, self.steps = fails, signum, at, 0

    def reset(self, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.fails:
            raise RuntimeError("a bug in the environment")
        if self.steps == self.at:
            os.kill(os.getpid(), self.signum)
        return np.zeros(2, np.float32), 1.0, self.steps % 5 == 0, False, {}

class TextObs(Plain):
    observation_space = Dict({"a": Box(-1, 1, (2,)), "b": Text(3)})

class Needy(Plain):
    def __init__(self, level):
        raise RuntimeError("never called as it should be")

class Clumsy(Plain):
    def __init__(self, level=1):
        super().__init__(levels=level)

class EverMoreActions(Plain):
    action_space = Sequence(Discrete(3))

def pole():
    return gym.make("CartPole-v1")

class Hall:
    class Room(Plain):
        pass

made, several, ready = Plain(), [], pole()
'''


# Modules of the user's that cannot be imported.
BROKEN = {"broken": "def f(:\n", "raising": "x = 0\ny = 1 / x\n",
          "needing": "import no_such_package\n"}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Every test has an empty working directory, modules `shop` with environments and BROKEN."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "shop.py").write_text(ENVS)
    for name, text in BROKEN.items():
        (tmp_path / "lib" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def only_run() -> Path:
    folder, = (path for path in Path("runs").iterdir() if not path.is_symlink())
    assert not Path("runs/latest").exists() or Path("runs/latest").samefile(folder)
    return folder


def asked(*argv):
    return command_line.read(argv).given


# argv

@pytest.mark.parametrize("argv, wanted", [
    (["--num_envs=8"], {"num_envs": 8}),
    (["--num-envs", "8"], {"num_envs": 8}),
    (["--total_steps=1e6"], {"total_steps": 1_000_000}),
    (["--total_steps=10M"], {"total_steps": 10_000_000}),
    (["--total-steps", "500k"], {"total_steps": 500_000}),
    (["--total_steps=1_000"], {"total_steps": 1000}),
    (["--total_steps=1.5e3"], {"total_steps": 1500}),
    (["--lr=1e6"], {"lr": 1e6}),
    (["--log_std_init", "-1.5"], {"log_std_init": -1.5}),
    (["--norm-rewards"], {"norm_rewards": True}),
    (["--norm_rewards=True"], {"norm_rewards": True}),
    (["--norm_rewards", "false"], {"norm_rewards": False}),
    (["--no-norm-obs"], {"norm_obs": False}),
    (["--no_norm_obs"], {"norm_obs": False}),
    (["--norm_obs", "--no-norm-obs"], {"norm_obs": False}),
    (["--hidden_sizes=64,32"], {"hidden_sizes": (64, 32)}),
    (["--hidden_sizes", "64", "32"], {"hidden_sizes": (64, 32)}),
    (["--hidden_sizes=(64, 32)"], {"hidden_sizes": (64, 32)}),
    (["--env_kwargs", '{"a": [1, "x"]}'], {"env_kwargs": {"a": [1, "x"]}}),
    (["--logger=tensorboard,wandb"], {"logger": ("tensorboard", "wandb")}),
    (["--logger", "wandb", "--wandb_tags", "first", "try", "--wandb-entity=us"],
     {"logger": ("wandb",), "wandb_tags": ("first", "try"), "wandb_entity": "us"}),
    (["--logger=none"], {"logger": None}),
    (["--target_kl=none"], {"target_kl": None}),
    (["--seed=1", "--seed=2"], {"seed": 2}),
    (["--env=CartPole-v1", "--lam=0.9", "--epsilon=0.3"],
     {"env_name": "CartPole-v1", "gae_lambda": 0.9, "clip_range": 0.3}),
    (["--ppo_epochs=3", "--num-batches=2", "--value_loss_coef=1"],
     {"epochs": 3, "num_minibatches": 2, "value_coef": 1.0}),
])
def test_settings_are_read_as_people_type_them(argv, wanted):
    found = asked(*argv)
    assert found == wanted
    assert [type(value) for value in found.values()] == [type(value) for value in wanted.values()]


def test_every_setting_can_be_given_as_it_is_shown():
    defaults = {name: setting.default for name, setting in settings().items()}
    shown = [f"--{name}={format_value(value)}" for name, value in defaults.items()]
    assert asked(*shown) == defaults


def test_what_is_given_wins_over_the_preset_also_where_it_is_the_default():
    request = command_line.read(["--env_name=CartPole-v1", f"--lr={Config.lr}"])
    assert request.given["lr"] == request.config.lr == Config.lr != PRESETS["cartpole"]["lr"]
    assert request.config.gamma == PRESETS["cartpole"]["gamma"]
    assert "lr" not in request.changes and request.preset == "cartpole"


def test_a_preset_that_is_named_holds_for_any_environment():
    assert command_line.read(["--env_name=Acrobot-v1", "--preset=cartpole"]).preset == "cartpole"
    assert command_line.read(["--env_name=CartPole-v1", "--preset=none"]).config == Config(
        env_name="CartPole-v1", preset="none")


def test_iterations_are_counted_in_the_presets_rollouts():
    steps = PRESETS["acrobot"]["num_steps"]
    found = asked("--num_iterations=10", "--env=Acrobot-v1", "--num_envs=3")
    assert found["total_steps"] == 10 * 3 * steps


@pytest.mark.parametrize("argv, what, fix", [
    (["--num_env=3"], "no setting --num_env", "did you mean --num_envs?"),
    (["--xyzzy"], "no setting --xyzzy", "python main.py --help"),
    (["-seed=1"], "no setting -seed", "did you mean --seed?"),
    (["--trak=True"], "no setting --trak", "python main.py --help-all lists them"),
    (["--no-norm_obs=True"], "no setting --no_norm_obs", "did you mean --norm_obs?"),
    (["--seed=3", "CartPole-v1"], '"CartPole-v1" is neither a command nor a setting', "--help"),
    (["--seed", "1", "2"], '"2" is neither a command nor a setting', "--help"),
    (["--num_iterations=1", "--total_steps=9"], "both set total_steps",
     "leave --num_iterations out"),
    (["--total-timesteps", "1000"], "--total_timesteps", "did you mean --total_steps?"),
    (["--learning-rate=1e-3"], "--learning_rate", "docs/coming_from.md those of other libraries"),
    (["--no-norm-ob"], "--norm_ob", "did you mean --norm_obs?"),
    (["--batch_size=64"], "--batch_size", "docs/coming_from.md those of other libraries"),
    (["--clip_reward=True"], "--clip_reward", "did you mean --clip_rewards?"),
    (["--num_env=3", "--n_steps=1"], "no setting --num_env, --n_steps",
     "did you mean --num_envs, --num_steps?"),
])
def test_a_name_that_is_no_setting_is_refused_with_the_one_that_is_meant(argv, what, fix):
    with pytest.raises(ConfigError) as caught:
        command_line.read(argv)
    assert what in caught.value.what
    assert fix in fix_text(caught.value.fix, shell=True)


@pytest.mark.parametrize("argv, what", [
    (["--lr=0,001"], 'lr is "0,001", but must be a number'), (["--lr=cos:3e-4"], "or a schedule"),
    (["--total_steps=1,000,000"], "whole number"), (["--seed"], "argument --seed: expected one"),
    (["--hidden_sizes="], "--hidden_sizes has no value"), (["--lr==1e-3"], 'lr is "=1e-3"'),
    (["--num_envs=1.5"], 'num_envs is "1.5", but must be a whole number'),
    (["--num_envs=1e99999999"], "whole number"), (["--num_envs=nan"], "whole number"),
    (["--norm_obs=maybe"], "must be True or False"), (["--activation=mish"], "one of tanh, relu"),
    (["--hidden_sizes=64,x"], "whole numbers, such as 64,64"), (["--rnn=GRU"], 'rnn is "GRU"'),
    (["--env_kwargs={level:3}"], """a JSON object, such as '{"name": 1}'"""),
    (["--env_kwargs=[1]"], "must be a JSON object"), (["--num_iterations=1.5"], "num_iterations"),
    (["--logger=wandb,tensorbord"], f"must be one of {', '.join(LOGGERS)}")])
def test_a_value_that_cannot_be_meant_is_refused_with_those_that_can(argv, what):
    with pytest.raises(ConfigError) as caught:
        command_line.read(argv)
    assert what in caught.value.what


@pytest.mark.parametrize("words, same", [
    (["version"], ["--version"]), (["help"], ["--help"]), (["help", "eval"], ["eval", "--help"]),
    (["help", "lr"], ["--help", "lr"]), (["--help=lr"], ["--help", "lr"]),
    (["--help", "plot"], ["plot", "--help"])])
def test_the_words_help_and_version_stand_for_the_flags(command, words, same):
    assert command(*words) == command(*same) and command(*words)[0] == 0


@pytest.mark.parametrize("started, named", [
    ("main.py", "python main.py"), ("/a/fastppo/__main__.py", "python -m fastppo"),
    ("/a/bin/fastppo", "fastppo"), ("my_script.py", "fastppo")])
def test_help_and_errors_name_the_command_as_it_was_started(command, monkeypatch, started, named):
    monkeypatch.setattr(sys, "argv", [started])
    assert program() == named
    assert command("--help")[1].startswith(f"usage: {named} ")
    assert f"fix: {named} --help-all lists them" in command("--xyzzy")[2]
    assert command("export", "--help")[1].startswith(f"usage: {named} export MODEL")
    assert f"fix: {named} --help" in command("bensh")[2]


@NEEDS_EXTENSION
def test_a_warning_says_that_it_is_one_and_the_logger_is_as_before(command):
    log = logging.getLogger("fastppo")
    before = log.propagate, list(log.handlers)
    code, _, err = command(*CARTPOLE, "--rnn=mingru", "--num_minibatches=8", "--eval_episodes=0")
    assert code == 0 and err.splitlines() == [
        "warning: num_minibatches=8, but minibatches of a network with memory are whole"
        " environments, so there are 4 per epoch", "  fix: --num_minibatches=4"]
    assert (log.propagate, list(log.handlers)) == before


# what is refused, and how

@pytest.mark.parametrize("argv, what, fix", [
    (["--env_name=LunaLander-v3"], "no environment 'LunaLander-v3': ", "envs lists them"),
    (["--env_name=broken:Env"], "importing 'broken' failed: File ", ""),
    (["--env_name=raising:Env"], 'raising.py", line 2, in', ""),
    (["--env_name=needing:Env"], "cannot import 'needing' (No module named 'no_such_package')", ""),
    (["--env_name=shop:ready"], "no 'ready' in shop that is a class", "name of another one"),
    (["--env_name=nowhere:Env"], "cannot import 'nowhere'", ""),
    (["--env_name=shop"], "no environment 'shop'", "give its module, too: module:MyEnv"),
    (["--env_name=shop:plane"], "no 'plane' in shop", "define it there"),
    (["--env_name=shop:Plain.Inner"], "no 'Plain.Inner' in shop", "define it there"),
    (["--env_name=shop:Plain:x"], "no environment 'shop:Plain:x'", ""),
    (["--env_name=CartPole-v1", "--vec=native", "--num_workers=3"], "but vec=native", ""),
    (["--env_name=shop:Nothing"], "shop", ""),
    (["--env_name=shop.py:Plain"], "'shop' is not a package", ""),
    (["--env_name=../a/b.py:C-v0"], "importing '../a/b.py' failed", ""),
    (["--env_name=CartPole-v1", '--env_kwargs={"nonsense": 1}'],
     "unexpected keyword argument 'nonsense'", "leave --env_kwargs out"),
    (["--env_name=shop:Plain", '--env_kwargs={"fail": 1, "at": 2}'],
     "with the env_kwargs {'fail': 1, 'at': 2}: Plain.__init__() got an unexpected",
     "give what it takes by env_kwargs"),
    (["--env_name=shop:made"], "no 'made' in shop that is a class or a function", "another one"),
    (["--env_name=shop:Needy"],
     "shop:Needy cannot be made with the env_kwargs {}: Needy.__init__() missing 1 required",
     "or a function without arguments"),
    (["--env_name=Gone-v2"], "Gone-v2 cannot be made: ", ""),
    (["--env_name=HalfCheetah-v2"], "v2 cannot be made: The mujoco v2 and v3", ""),
    (["--env_name=shop:Hal.Room"], "no 'Hal.Room' in shop", "fix: define it there, or give"),
    (["--env_name=shop:TextObs"], "Text(1, 3", "TransformObservation"),
    (["--env_name=shop:EverMoreActions"], "Sequence(Discrete(3)", "TransformAction"),
    (["--env_name=CartPole-v1", "--model=cnn"], "cnn", "--model=mlp"),
    (["--env_name=CartPole-v1", "--device=cuda:99"], "cuda", "--device=cpu"),
    (["--env_name=CartPole-v1", "--device=gpu"],
     "device is 'gpu', but must be one of auto, cpu, cuda", "--device=cpu"),
    (["--env_name=CartPole-v1", "--device=mps"], "one of auto, cpu, cuda", "--device=cpu"),
    (["--env_name=Acrobot-v1", "--num_envs=0"], "num_envs is 0", "--num_envs=16"),
    (["--env_name=CartPole-v1", "--lr=0"], "lr is 0.0", "--lr=auto"),
    (["--env_name=Acrobot-v1", "--num_minibatches=9999"], "more than", "--num_minibatches=10"),
    (["--num_envs=2", "--num_steps=2", "--num_minibatches=5"], "more than the 4 rows",
     "--num_minibatches=4"),
    (["--gamma=1.5"], "gamma is 1.5", "--gamma=auto"),
    (["--lr=0", "--preset=none"], "lr is 0.0", "--lr=0.0003"),
    (["--lr=nan"], "lr is nan", "--lr=auto"),
    (["--preset=cartpol"], "no preset 'cartpol', only files (.toml, .json), auto, none,", ""),
])
def test_bad_input_is_one_error_with_a_fix_before_any_worker_starts(command, monkeypatch, argv,
                                                                    what, fix):
    monkeypatch.setattr(team, "WorkerProcess", None)
    for name in ("Moved-v2", "Moved-v9", "Moved-v10", "Gone-v2", "Gone-v3"):
        entry = "shop:Plain" if name == "Moved-v9" else "gone_from_here:Env"
        monkeypatch.setitem(gym.registry, name, EnvSpec(name, entry))
    code, out, err = command(*argv, "--num_workers=2")
    assert (code, out) == (2, "")  # nothing is announced that will not come
    assert err.startswith("error: ") and ("Traceback" in err) == ("' failed: " in err), err
    assert what in err and fix in err.partition("\n")[2]
    assert list(Path().iterdir()) == []  # it leaves nothing behind


def test_a_file_in_place_of_an_environment_is_answered_in_words(command):
    Path("grid_env.py").write_text("class Grid(")
    for name in ("grid_env", "grid_env.py"):
        assert "give its module, too: module:MyEnv" in command(f"--env_name={name}")[2]


def test_a_mistake_inside_of_a_constructor_keeps_its_own_traceback(command):
    code, _, err = command("--env_name=shop:Clumsy", '--env_kwargs={"level": 2}')
    assert code == 1 and "Traceback" in err and "super().__init__(levels=level)" in err
    assert "unexpected keyword argument 'levels'" in err


def test_a_typing_error_ends_the_process_with_exit_code_2_and_no_traceback():
    done = subprocess.run([sys.executable, MAIN, "--num_env=3"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: there is no setting --num_env\n  fix: did you mean --num_envs?\n"


def test_an_error_is_printed_with_its_traceback_if_that_is_asked_for(command):
    for words, said in ((["--debug", "--foo"], "there is no setting --foo"),
                        (["eval", "nowhere", "--debug"], "there is no file nowhere")):
        code, _, err = command(*words)
        assert code == 2 and err.startswith("Traceback") and f"\nerror: {said}" in err
        assert "help(fastppo.PPO)" not in err.rpartition("\nerror: ")[2]


def test_a_policy_of_another_environment_is_refused_with_exit_code_2(command):
    command(*CARTPOLE, "--run_dir=first", "--eval_episodes=0")
    model = "--init_from=first/model.safetensors"
    assert command(*TINY, "--env_name=Acrobot-v1", model)[0] == 2
    code, _, err = command(*CARTPOLE, "--hidden_sizes=16", model)
    assert code == 2 and "has another network than this run\n  fix: --hidden_sizes=8" in err
    Path("zip.safetensors").write_text("hi")
    assert "fix: give the file of a policy" in command(*CARTPOLE, "--init_from=zip.safetensors")[2]


@pytest.mark.parametrize("words, fix", [
    (["--help", "num_env"], "did you mean --num_envs?"),
    (["evl", "runs/latest"], "python main.py --help"), (["--device=cuda"], "--device=cpu")])
def test_a_fix_is_what_was_meant(command, monkeypatch, words, fix):
    monkeypatch.setattr(sys, "argv", ["main.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, _, err = command(*words)
    assert code == 2 and f"\n  fix: {fix}" in err


def test_a_run_that_is_interrupted_before_its_first_iteration_leaves_no_folder(
        command, monkeypatch):
    def interrupted(*_):
        os.kill(os.getpid(), signal.SIGINT)
    assert command(*CARTPOLE, "--name=whole")[0] == 0
    latest = os.readlink("runs/latest")
    monkeypatch.setattr(Collector, "collect", interrupted)
    code, out, _ = command(*CARTPOLE, "--name=cut")
    assert code == 130 and "before the first iteration was complete" in out
    assert not [*Path("runs").glob("*cut*")] and os.readlink("runs/latest") == latest


@pytest.mark.parametrize("words", [["--help"], ["--help-all"], *(
    [verb, "--help"] for verb in VERBS if verb != "train")])
def test_the_pages_of_help_fit_a_terminal_of_80_columns(command, monkeypatch, words):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = command(*words)
    assert code == 0 and max(map(len, out.splitlines())) <= 80


def test_an_unexpected_exception_keeps_its_traceback(command, monkeypatch):
    def broken(*args):
        raise ZeroDivisionError("our own bug")
    monkeypatch.setattr(Learner, "update", broken)
    with pytest.raises(ZeroDivisionError, match="our own bug"):
        command(*CARTPOLE)


@pytest.mark.full
def test_what_the_header_of_a_file_refuses_is_said_before_torch_is_imported(command, tmp_path):
    command("--env_name=shop:Plain", "--num_envs=2", "--num_steps=16", "--num_minibatches=1",
            "--epochs=1", "--total_steps=32", "--num_workers=0", "--eval_episodes=0",
            "--checkpoint_interval=0", f"--run_dir={tmp_path / 'run'}", "--progress=none")
    model = tmp_path / "run/model.safetensors"
    checkpoint, = (tmp_path / "run").glob("checkpoint-*")
    for words, text in {
            ("eval", model, "--env_name=shop:Plain", "--episodes=0"): "episodes is 0, but must",
            ("--env_name=CartPole-v1", '--env_kwargs={"render_mode": "human"}'):
                "env_kwargs has a render_mode",
            ("eval", checkpoint): "is a checkpoint, not a policy", ("export", checkpoint): "policy",
            ("replay", model): "is a policy, not a bundle", (f"--resume={model}",): "checkpoint",
            (f"--init_from={checkpoint}",): "is a checkpoint, not a policy"}.items():
        code = ("import sys; from fastppo.cli import main\n"
                f"try: main.main({[*map(str, words)]})\nexcept SystemExit as end: print(end.code)\n"
                "print('torch' in sys.modules)")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              check=True)
        assert (done.stdout, text in done.stderr) == ("2\nFalse\n", True), (words, done)
    code, _, err = command("eval", f"{model}", "--env_name=CartPol-v1")  # it may be EnvPool's
    assert code == 2 and "there is no environment 'CartPol-v1'" in err


# --help

def test_the_help_of_a_verb_imports_neither_torch_nor_gymnasium_nor_numpy():
    code = ("import sys; from fastppo.cli import main\n"
            "for verb in main.VERBS:\n"
            "    try: main.main([verb, '--help'])\n"
            "    except SystemExit: pass\n"
            "print([m for m in ('torch', 'gymnasium', 'numpy') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_lists_every_setting_with_type_default_and_meaning(command):
    code, out, err = command("--help-all", "--preset=none")
    assert (code, err) == (0, "")
    text = re.sub(r"[\s│]+", " ", out)
    for setting in settings().values():
        assert f"--{setting.name} {setting.type}" in text
        assert f"{setting.text} (default: {format_value(setting.default)})" in text


def test_help_shows_the_preset_of_the_environment_that_is_named(command):
    _, out, _ = command("--help_all", "--env_name=Acrobot-v1")
    steps = PRESETS["acrobot"]["num_steps"]
    assert f"(default: {steps} by preset acrobot, else {Config.num_steps})" in \
        re.sub(r"[\s│]+", " ", out)


def test_help_is_a_page_with_the_verbs_and_the_settings_people_change_first(command):
    _, out, _ = command("--help")
    assert len(out.splitlines()) <= 85 and max(map(len, out.splitlines())) <= 110
    assert "--env_name TEXT" in out and "--sde_sample_freq" not in out and "--help-all" in out
    assert all(f"main.py {verb} " in out for verb in VERBS if verb != "train")


def test_help_on_a_section_or_a_setting_shows_that_alone(command):
    _, out, _ = command("--help", "network")
    assert "--hidden_sizes INT,..." in out and "--lr " not in out
    page = command("--help", "clip_range")[1]
    assert "\n\nupdate:\n  --clip_range FLOAT|SCHEDULE" in page and "BOOL" not in page
    assert "\n\n  SCHEDULE  linear:" in page
    assert "\n\nupdate:\n  --epochs INT" in command("--help", "epochs")[1]
    assert "--clip_range" not in command("--help", "--seed=1")[1]  # a flag is no topic
    code, _, err = command("--help", "netwrk")
    assert code == 2 and "no setting --netwrk" in err and "no section (environment, network" in err


def test_a_setting_and_the_rules_are_checked_once_on_the_way_of_a_command(command, monkeypatch):
    asked, ask = [], resolve.check_settings
    monkeypatch.setattr(resolve, "check_settings",
                        lambda *given: asked.append(given) or ask(*given))
    values, (is_valid, wanted) = [], config.RULES["clip_range"]
    monkeypatch.setitem(config.RULES, "clip_range", Rule(
        lambda value: values.append(value) or is_valid(value), wanted))
    assert command(*CARTPOLE, "--total_steps=32", "--eval_episodes=0", "--clip_range=0.3")[0] == 0
    assert len(asked) == 1 and values == [0.3]


def test_all_unknown_flags_are_said_at_once(command):
    code, _, err = command("--num_env=3", "--n_steps=4", "--seed=1", "--xyzzy")
    assert code == 2 and err.splitlines()[0] == (
        "error: there is no setting --num_env, --n_steps, --xyzzy")
    assert err.splitlines()[1] == "  fix: did you mean --num_envs, --num_steps?"


@pytest.mark.parametrize("name", ["plot", "conf_file", "verbose_eval", "v"])
def test_what_is_near_no_setting_is_not_guessed(command, name):
    _, _, err = command(f"--{name}=1")
    assert "did you mean" not in err and "--help-all" in err


def test_only_names_that_are_known_are_proposed():
    for name, said in (("--minibatches", "did you mean --num_minibatches?"),
                       ("minibatches", "did you mean num_minibatches?"),
                       ("--learning_rate", f"{program()} plot --help lists them")):
        assert unknown_names("there is no", [name], ["num_minibatches", "lr"], "plot") == (
            f"there is no {name}", said)


def test_the_version_is_printed(command):
    assert command("--version") == (0, f"fastppo {__version__}\n", "")


def test_the_working_directory_is_before_installed_packages_and_after_pythons_own(monkeypatch):
    path = ["/clone", "/usr/lib/python3.11", "/venv/lib/python3.11/site-packages", "/other"]
    monkeypatch.setattr(child_process, "FOLDERS", ["/here"])
    for _ in range(2):
        child_process.add_folders(path)
        assert path[2] == "/here" and len(path) == 5


def test_the_folder_of_python_m_is_left_unless_the_package_is_there():
    for path, left in ((["", "/lib"], ["/lib"]), (["/here", "/lib"], ["/lib"]), (["/bin"],) * 2):
        child_process.leave_folder("/here", "/clone", path)
        assert path == left
    child_process.leave_folder("/here", "/here", path := ["/here"])
    assert path == ["/here"]


KNOWN = ("ale_py", "minigrid", "envpool", "mujoco", "imageio", "Box2D", "jax", "flax", "shimmy",
         "cv2", "scipy", "wandb", "trackio", "onnx", "tensorboard", "anything", "stuck_at_home")
VERBS_ON_A_RUN = """
import sys
from fastppo.cli.main import main
for argv in (["eval", "run", "--episodes=1"], ["play", "run", "--episodes=1"], ["export", "run"],
             ["reproduce", "run"], ["--resume=run", "--total_steps=64"], ["plot", "run"],
             ["eval", "run/model.safetensors", "--episodes=1"], ["replay", "run"],
             ["compare", "run", "run"], ["--init_from=run", "--total_steps=8"]):
    try:
        main(argv)
    except SystemExit:
        pass
from fastppo import load
try:
    load("run").evaluate(episodes=1)
except Exception:
    pass
"""


@pytest.mark.parametrize("env_name", [
    "anything:X-ram-v0", pytest.param("ALE/Pong-v5", marks=pytest.mark.full),
    pytest.param("MiniGrid-Empty-5x5-v0", marks=pytest.mark.full),
    pytest.param("LunarLander-v3", marks=pytest.mark.full),
    pytest.param("Ant-v5", marks=pytest.mark.full)])
def test_no_file_beside_a_run_is_imported_because_of_a_file_of_the_run(command, env_name):
    assert command(*CARTPOLE, "--run_dir=run", "--eval_episodes=0")[0] == 0
    for path in Path("run").glob("*.safetensors"):
        forge_name(path, env_name)
    config = json.loads(Path("run/config.json").read_text())
    Path("run/config.json").write_text(json.dumps(config | {"env_name": env_name}))
    for name in KNOWN:
        Path(f"{name}.py").write_text(f"open('imported-{name}', 'w').close()\n")
    for words in (["-c", VERBS_ON_A_RUN], ["-m", "fastppo", "eval", "run", "--episodes=1"]):
        subprocess.run([sys.executable, *words], capture_output=True, timeout=120,
                       env=os.environ | {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(ROOT)}
                       if words[0] == "-c" else os.environ | {"PYTHONPATH": str(ROOT)})
    assert [*Path().glob("imported-*")] == []


def forge_name(path: Path, env_name: str) -> None:
    """Gives a file of a run another environment, and a checksum that fits."""
    with safe_open(path, "pt") as file:
        form = file.metadata()["format"]
    tensors, texts = tensor_file.read_tensor_file(path, form)
    texts["config"]["env_name"] = env_name
    tensor_file.write_tensor_file(path, form, tensors, texts)


def test_a_reader_that_has_left_is_no_error():
    with subprocess.Popen([sys.executable, MAIN, "--help"], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 141)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no disk that is always full")
@pytest.mark.parametrize(("words", "code"), [("--help", 1), ("eval --help", 1), ("--x=1", 2)])
def test_a_disk_too_full_for_a_page_of_help_is_an_error(words, code):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, MAIN, *words.split()], stdout=full,
                              stderr=subprocess.PIPE, text=True)
    assert done.returncode == code and "error: " in done.stderr


@pytest.mark.full
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no disk that is always full")
def test_a_disk_too_full_for_the_output_costs_a_run_nothing_else(tmp_path):
    argv = [*CARTPOLE, "--total_steps=64", "--eval_episodes=1", f"--run_dir={tmp_path / 'run'}"]
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, MAIN, *argv], stdout=full, stderr=subprocess.PIPE,
                              text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "output cannot be written: No space left" in done.stderr
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["steps"] == 64 and summary["evaluation"]["episodes"] == 1
    assert (tmp_path / "run/model.safetensors").exists()


# a whole run

def test_a_run_folder_that_was_removed_meanwhile_costs_no_model(command, monkeypatch):
    def tidying(learner, *args):
        shutil.rmtree("runs")
        return update(learner, *args)
    update = Learner.update
    monkeypatch.setattr(Learner, "update", tidying)
    code, out, _ = command(*CARTPOLE, "--total_steps=32", "--learner=torch", "--eval_episodes=0")
    assert code == 0 and load(only_run() / "model.safetensors")


def test_the_last_lines_are_training_evaluation_curve_and_what_to_do_next(command):
    code, out, err = command(*CARTPOLE)
    assert (code, err) == (0, "")
    *_, trained, model, evaluated, curve, following = out.splitlines()
    assert re.fullmatch(r"evaluation return -?\d+\.\d+ ± \d+\.\d+ \(2 episodes\)", evaluated)
    assert curve == f"curve     {only_run()}/curve.png"
    assert following == f"next      {program()} play {only_run()}"
    assert re.fullmatch(r"trained   96 steps in \d+\.\d s after \d+\.\d s of start-up,"
                        r" [\d,]+ steps/s", trained)
    assert model == f"saved     {only_run()}/model.safetensors"


def test_the_best_evaluation_is_named_with_its_file(command):
    code, out, _ = command(*CARTPOLE, "--eval_interval=32", "--eval_episodes=2")
    best = json.loads((only_run() / "summary.json").read_text())["best"]
    text = f"best      evaluation {return_text(best['mean'])} at step {best['step']}"
    assert code == 0 and text in out
    assert f"{only_run()}/best.safetensors" in out.split()


def test_without_progress_the_result_is_all_that_is_printed(command):
    code, out, err = command(*CARTPOLE, "--seed=1", "--progress=none", "--video",
                             "--eval_interval=64")
    assert (code, err, out.count("steps")) == (0, "", 2)  # 96 steps, 7,000 steps/s
    trained, *_, evaluated = out.splitlines()
    assert trained.startswith("trained   96 steps in ")
    assert evaluated.startswith("evaluation return ") and "curve" not in out
    assert {"curve.png", "video.mp4", "video.webp"} & {path.name for path in only_run().iterdir()}
    assert command(f"--resume={only_run()}", "--progress=none")[1].startswith("complete  96 of 96")


def test_without_progress_an_error_is_still_said(command):
    code, out, err = command("--env_name=CartPole-v7", "--progress=none")
    assert (code, out) == (2, "") and err.startswith("error: ")


def test_a_run_leaves_model_metrics_settings_and_summary_in_its_own_folder(command):
    before = os.umask(0o027)
    command(*CARTPOLE, "--seed=7")
    os.umask(before)
    folder = only_run()
    assert re.fullmatch(r"CartPole-v1__ppo__7__\d{8}-\d{6}", folder.name)
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint-000000000096.safetensors", "command.txt", "config.json", "curve.png",
        "episodes.csv", "metrics.csv", "model.safetensors", "summary.json", "system.json"]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}
    assert (folder / "command.txt").read_text().startswith("python main.py --env_name=CartPole-v1 ")
    assert load(folder / "model.safetensors").predict([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["fingerprint"]["torch"]
    assert (summary["seed"], summary["steps"], summary["ended"]) == (7, 96, "done")
    assert summary["evaluation"]["episodes"] == 2 and summary["seconds"] > 0
    assert summary["warmup_steps"] == 32  # 8 random steps of each environment
    settings_of_it = json.loads((folder / "config.json").read_text())
    assert settings_of_it["seed"] == 7 and settings_of_it["acting"] in ("local", "central")


def test_without_a_setting_lunarlander_is_trained_with_its_preset():
    request = command_line.read([])
    assert (request.config.env_name, request.preset) == ("LunarLander-v3", "lunarlander")


def test_a_seed_that_is_not_given_is_drawn_printed_and_stored(command):
    _, out, _ = command(*UNSEEDED, "--eval_episodes=0")
    seed = int(re.search(r"seed (\d+)", out)[1])
    assert json.loads((only_run() / "summary.json").read_text())["seed"] == seed
    assert f"__{seed}__" in only_run().name
    assert "\ntrained" in out and "evaluation" not in out  # none was asked for


def test_the_banner_says_what_was_chosen(command):
    _, out, _ = command("--env_name=CartPole-v1", *TINY[1:], "--seed=1", "--lr=1e-3")
    for text in ("observations Box(4,) float32, actions Discrete(2)", "mlp 4-8-{2,1} tanh, 107 ",
                 "preset    cartpole: gamma=0.99 log_std_init=auto",
                 "4 environments x 8 steps in the", "cpu, torch_threads=1", "kernels   "):
        assert text in out
    assert "lr=" not in out


def test_the_first_line_says_what_is_trained_and_where_the_files_go(command):
    _, out, _ = command("--env_name=CartPole-v1", *TINY[1:], "--seed=5")
    first = r"fastppo \S+   CartPole-v1   96 steps   seed 5"
    line = rf"{first}\nrun       {only_run()}\n"  # after a warning that there is no extension
    assert re.match(line if kernels.COMPILED else rf"kernels (.*\n)+{line}", out)


def test_without_the_extension_the_first_line_says_so_and_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastppo._kernels", None)
    with PPO("CartPole-v1", num_workers=0) as ppo:
        lines = banner.banner(ppo, command_line.read([]), Path("runs/x"), False)
    line = " ".join(lines[0].split())
    assert line.startswith("kernels numba") and "one process" in line
    assert "install a C compiler" in line


def test_a_terminal_without_plus_minus_gets_a_question_mark(monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", terminal)
    main.main([*CARTPOLE, "--seed=1"])
    terminal.seek(0)
    assert re.search(r"evaluation return \S+ \? \S+ \(2 episodes\)\n", terminal.read())


def test_wandb_that_hangs_costs_neither_the_last_line_nor_the_exit_code(command, monkeypatch):
    free, codes, before = threading.Event(), [], set(threading.enumerate())
    fake = types.ModuleType("wandb")
    fake.setup = fake.Settings = lambda *_, **settings: free.wait()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.setattr(background, "FINISH_SECONDS", 0.05)
    monkeypatch.setattr(train.os, "_exit", codes.append)
    code, out, err = command(*CARTPOLE, "--logger=wandb")
    free.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)  # else its last words are the next test's
    assert out.splitlines()[-3].startswith("evaluation return")
    assert (codes, err.count("note: ")) == ([0], 1)


def test_wandb_that_is_missing_is_said_before_anything_else(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    code, out, err = command(*CARTPOLE, "--logger=wandb")
    assert (code, out) == (2, "")
    assert err.splitlines()[1] == '  fix: pip install "fastppo[wandb]"'


def test_a_python_without_our_dependencies_is_told_which_one_to_take(command, monkeypatch):
    def missing(*_):
        raise ModuleNotFoundError("No module named 'torch'", name="torch")
    monkeypatch.setattr(train, "train_verb", missing)
    code, out, err = command(*CARTPOLE)
    assert (code, out) == (2, "") and "Traceback" not in err
    assert re.search(r"error: torch is not installed for .*\n  fix: .*(fastppo|make train)", err)


# folders

def test_a_folder_that_holds_something_is_refused_with_a_free_name(command):
    Path("mine").mkdir()
    Path("mine/notes.txt").touch()
    Path("mine-2").mkdir()
    code, _, err = command(*CARTPOLE, "--run_dir=mine")
    assert code == 2 and "mine is not empty" in err and "fix: --run_dir=mine-3" in err
    assert os.listdir("mine") == ["notes.txt"]


@pytest.mark.parametrize("folder, free", [(".", "run-2"), ("./", "run-2"), ("..", "../run-2"),
                                          ("/", "/run-2")])
def test_a_folder_without_a_name_of_its_own_is_answered_with_one_in_it(command, folder, free):
    Path("notes.txt").touch()
    code, _, err = command(*CARTPOLE, f"--run_dir={folder}")
    assert code == 2 and err.endswith(f" is not empty: it may hold another run\n"
                                      f"  fix: --run_dir={free}\n")


LONG = 300 * "x"  # more than a name may have


@pytest.mark.parametrize("words", [
    ["eval", LONG], ["plot", LONG], ["compare", LONG, LONG], ["replay", LONG], ["reproduce", LONG],
    ["plot", "a", f"--output={LONG}.png"], ["play", "a", f"--output={LONG}.webp"],
    [f"--resume={LONG}"], [f"--preset={LONG}"],
    [f"--init_from={LONG}"], [f"--run_dir={LONG}"], [f"--run_dir={LONG}", "--seeds=1..2"]])
def test_a_path_that_is_too_long_is_an_error_without_a_traceback(command, monkeypatch, words):
    monkeypatch.setattr(play, "policy_file", lambda *_: None)
    code, out, err = command(*words)
    assert code == 2 and re.match(r"error: .*\n(  fix: .*\n)?$", err)


def test_an_empty_folder_is_used(command):
    Path("mine").mkdir()
    assert command(*CARTPOLE, "--run_dir=mine")[0] == 0
    assert Path("mine/model.safetensors").is_file()


def test_a_folder_that_cannot_be_made_is_refused(command):
    Path("file").touch()
    code, _, err = command(*CARTPOLE, "--run_dir=file/run")
    assert code == 2 and "cannot write file/run: Not a directory" in err


def test_two_runs_of_one_second_have_two_folders():
    new = run_folder.new_folder
    with new(None, "x__1") as one, new(None, "x__1") as two:
        assert one != two and one.is_dir() and two.is_dir()
    assert not Path("runs").exists()  # nothing was put into them


@NEEDS_EXTENSION
def test_a_run_that_cannot_start_leaves_no_folder_and_runs_latest_as_it_was(command):
    Path("licence.py").write_text(
        "import gymnasium, itertools\nmade = itertools.count()\n\n\ndef one():\n"
        "    assert next(made) < 1, 'there is one licence'\n"
        "    return gymnasium.make('CartPole-v1')\n")
    command(*CARTPOLE, "--total_steps=32", "--eval_episodes=0", "--name=good")
    code, out, err = command("--env_name=licence:one", "--num_envs=4", "--num_workers=2")
    assert code == 1 and "there is one licence" in err
    folder, latest = sorted(Path("runs").iterdir())
    assert "__good__" in folder.name and latest.samefile(folder)


def test_only_files_of_a_start_are_removed_with_it(tmp_path):
    for name, text in (("metrics.csv", "a\n1\n"), ("mine.txt", ""), ("episodes.csv", "a\n1\n")):
        with pytest.raises(EnvError), run_folder.new_folder(None, "x__1") as folder:
            (folder / "config.json").touch()
            (folder / name).write_text(text)
            raise EnvError("it cannot start")
        assert {path.name for path in folder.iterdir()} == {"config.json", name}
        shutil.rmtree(folder)
    with pytest.raises(EnvError), run_folder.new_folder(None, "x__1") as folder:
        (folder / "metrics.csv").write_text("a\n")
        (folder / "summary.json").write_text(json.dumps({"iterations": 0, "seconds": 0}, indent=2))
        raise EnvError("it cannot start")
    assert not folder.exists()
    there = tmp_path / "there"
    there.mkdir()
    for given in (tmp_path / "new", there):  # one that was there stays
        with pytest.raises(EnvError), run_folder.new_folder(given, "", True) as folder:
            (folder / "config.json").touch()
            raise EnvError("it cannot start")
    assert os.listdir(there) == [] and not (tmp_path / "new").exists()
    with pytest.raises(EnvError), run_folder.new_folder(there, "", True):
        (there / "output.txt").touch()  # of the command that started it as one of several seeds
        (there / "config.json").touch()
        raise EnvError("it cannot start")
    assert os.listdir(there) == ["output.txt"]
    with pytest.raises(EnvError), run_folder.new_folder(tmp_path / "one", "") as folder:
        (folder / "config.json").touch()
        raise EnvError("it cannot start")
    assert not (tmp_path / "one").exists()
    (there / "metrics.csv").touch()  # the user's own
    with pytest.raises(EnvError), run_folder.new_folder(there, "", True):
        (there / "config.json").touch()
        raise EnvError("it cannot start")
    assert {*os.listdir(there)} == {"output.txt", "metrics.csv"}


# how a run ends early

def test_a_fault_of_the_environment_is_exit_code_1_and_leaves_the_last_whole_iteration(command):
    code, out, err = command("--env_name=shop:Plain", *TINY, "--no-norm-obs",
                             '--env_kwargs={"fails": 12}')
    assert code == 1
    assert err.startswith("error: environment 0") and "a bug in the environment" in err
    ended, _, resume = out.splitlines()[-3:]
    assert ended.startswith("failed    at step 32: 32 steps in ")
    assert resume == f"resume    {program()} --resume={only_run()} --env_name=shop:Plain"
    load(only_run() / "model.safetensors")
    assert json.loads((only_run() / "summary.json").read_text())["ended"] == "error"


def test_the_line_that_resumes_has_what_a_checkpoint_does_not_hold(command):
    code, out, _ = command("--env_name=shop:Plain", *TINY, "--no-norm-obs", "--video",
                           "--worker_env=MY_TOKEN", "--gamma=0.5", '--env_kwargs={"fails": 12}')
    assert code == 1 and out.splitlines()[-1] == (
        f"resume    {program()} --resume={only_run()} --env_name=shop:Plain --worker_env=MY_TOKEN"
        " --video")


@pytest.mark.parametrize("at, steps", [(4, None), (12, 32)])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_collecting_at_once_and_keeps_the_last_whole_iteration(
        command, signum, at, steps):
    before = signal.getsignal(signum)
    code, out, err = command("--env_name=shop:Plain", *TINY, "--no-norm-obs",
                             f'--env_kwargs={{"signum": {int(signum)}, "at": {at}}}')
    assert (code, err) == (128 + signum, "")
    assert signal.getsignal(signum) == before
    last, *rest = out.splitlines()[-3 if steps else -1:]
    if not steps:
        assert last.startswith("stopped   before the first") and not Path("runs").exists()
        return
    assert rest[1:] == [f"resume    {program()} --resume={only_run()} --env_name=shop:Plain"]
    assert last.startswith(f"stopped   at step {steps}: {steps} steps in ")
    assert (only_run() / "model.safetensors").exists()
    assert json.loads((only_run() / "summary.json").read_text())["ended"] == "signal"


def test_a_signal_while_updating_lets_the_iteration_end(command, monkeypatch):
    update = Learner.update

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return update(*args)
    monkeypatch.setattr(Learner, "update", interrupted)
    code, out, _ = command(*CARTPOLE)
    assert code == 130
    assert out.splitlines()[-3].startswith("stopped   at step 32: 32 steps in ")
    assert json.loads((only_run() / "summary.json").read_text())["iterations"] == 1


def test_a_signal_while_evaluating_ends_it_and_names_the_model(command):
    code, out, _ = command("--env_name=shop:Plain", *TINY, "--no-norm-obs", "--total_steps=32",
                           f'--env_kwargs={{"signum": {int(signal.SIGINT)}, "at": 9}}',
                           "--eval_episodes=8")
    assert code == 130
    assert re.fullmatch(r"stopped   during the evaluation   runs/.*model.safetensors",
                        out.splitlines()[-1])


def table_of(folder):
    """The rows of a run's metrics.csv, without what depends on time."""
    rows = [row.split(",") for row in (folder / "metrics.csv").read_text().splitlines()]
    kept = [i for i, name in enumerate(rows[0]) if not re.match("time/|charts/SPS", name)]
    return [[row[i] for i in kept] for row in rows]


@NEEDS_EXTENSION
def test_an_interrupted_command_and_its_resumption_equal_one_that_ran_through(command, monkeypatch):
    settings = (*CARTPOLE, "--seed=3", "--total_steps=160", "--eval_episodes=3")
    update, count = Learner.update, itertools.count(1)

    def interrupting(*args):
        if next(count) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return update(*args)
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "update", interrupting)
        assert command(*settings, "--run_dir=parts")[0] == 130
    code, out, err = command("--resume=parts", "--num_workers=2")
    assert (code, err) == (0, "")
    assert "resumed at step 64   160 steps   seed 3\nrun       parts\n" in out
    command(*settings, "--run_dir=whole")
    parts, whole = Path("parts"), Path("whole")
    assert table_of(parts) == table_of(whole)
    one, two = (load(folder / "model.safetensors").state_dict() for folder in (parts, whole))
    assert all(torch.equal(one[name], two[name]) for name in one)
    one, two = (json.loads((folder / "summary.json").read_text()) for folder in (parts, whole))
    assert one["evaluation"] == two["evaluation"] and one["episodes"] == two["episodes"]


def test_the_same_command_goes_on_by_itself(command):
    settings = (*CARTPOLE, "--seed=3", "--name=mine", "--resume=auto")
    assert command(*settings)[0] == 0
    code, out, err = command(*settings, "--total_steps=128")
    assert code == 0 and "resumed at step 96" in out and "trained   to step 128: 32 steps in" in out
    assert len(table_of(only_run())) == 5
    code, out, err = command(*settings, "--total_steps=128")
    assert (code, err) == (0, "") and out.splitlines()[-1].startswith("complete  128 of 128 steps")


def test_a_run_whose_first_checkpoint_comes_while_torch_is_imported_is_resumed(
        command, monkeypatch):
    settings = (*CARTPOLE, "--seed=3", "--name=mine", "--resume=auto", "--eval_episodes=0")
    command(*settings)
    looks, look = [], train.choose_run
    monkeypatch.setattr(train, "choose_run", lambda *args: looks.append(1) or (
        look(*args) if len(looks) > 1 else look(*args)._replace(place=None)))
    code, out, err = command(*settings, "--total_steps=160")
    assert (code, len(looks)) == (0, 2) and "resumed at step 96" in out
    assert not [*only_run().glob("abandoned-*")] and "not continued" not in err


@pytest.mark.full
def test_a_run_that_was_stopped_in_its_last_evaluation_is_evaluated_when_it_is_started_again(
        command):
    settings = (*CARTPOLE, "--seed=3", "--name=mine", "--resume=auto")
    command(*settings)
    summary = only_run() / "summary.json"
    found = json.loads(summary.read_text())
    summary.write_text(json.dumps(found | {"evaluation": None}))
    code, out, _ = command(*settings)
    assert code == 0 and "evaluation return" in out and "complete" not in out
    assert json.loads(summary.read_text())["evaluation"] == found["evaluation"]
    assert "complete" in command(*settings)[1]


def test_no_error_shows_a_password(command):
    key = "SEKRIT"
    for value in (f'{{"api_key": "{key}"}}', f'{{"api_key": "{key}"', f'["{key}"]'):
        code, out, err = command("--env_name=CartPole-v1", f"--env_kwargs={value}")
        assert code == 2 and key not in out + err, err
    command(*CARTPOLE, "--run_dir=run")
    code, out, err = command("--resume=run", f'--env_kwargs={{"api_key": "{key}"}}')
    assert code == 2 and key not in out + err


def test_runs_latest_is_the_last_run_that_was_started(command):
    for name in ("one", "two", "one"):
        code, out, _ = command(*CARTPOLE, "--eval_episodes=0", f"--name={name}", "--resume=auto")
        assert code == 0 and f"__{name}__" in os.readlink("runs/latest")
    command(*CARTPOLE, "--eval_episodes=0", "--name=two", "--resume=auto")
    code, out, _ = command("--resume=runs/latest", "--total_steps=160", "--eval_episodes=0")
    assert code == 0 and "resumed at step 96" in out and "__two__" in out
    assert len([*Path("runs").iterdir()]) == 3  # two runs and latest


def test_a_place_that_is_not_there_leaves_runs_latest_as_it_is(command):
    command(*CARTPOLE, "--eval_episodes=0", "--name=one")
    for place in ("runs/typo", "runs/typo/checkpoint-000000000512.safetensors"):
        assert command(f"--resume={place}")[0] == 2
    assert "__one__" in os.readlink("runs/latest")


@pytest.mark.full
def test_a_name_is_used_for_many_runs_and_auto_goes_on_with_the_last_of_that_seed(command):
    for seed in (1, 2, 2):
        assert command(*CARTPOLE, "--eval_episodes=0", "--name=a b", f"--seed={seed}")[0] == 0
    assert len([*Path("runs").glob("CartPole-v1__a-b__*")]) == 3
    more = (*UNSEEDED, "--eval_episodes=0", "--name=a b", "--resume=auto", "--total_steps=160")
    assert "seed 2" in command(*more)[1]
    assert "seed 1" in command(*more, "--seed=1")[1]
    assert len([*Path("runs").glob("CartPole-v1__a-b__*")]) == 3
    assert "seed 3" in command(*more, "--seed=3")[1]  # none has it: a new run


def test_a_run_that_ended_before_its_first_checkpoint_keeps_its_folder_and_its_seed(command):
    folder = Path("runs/CartPole-v1__mine__77__20260101-000000")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"seed": 77}')
    code, out, _ = command(*UNSEEDED, "--eval_episodes=0", "--name=mine", "--resume=auto")
    assert code == 0 and "seed 77" in out and str(folder) in out and only_run() == folder


def test_a_folder_belongs_to_one_run_at_a_time(command):
    from fastppo import PPO
    with PPO("CartPole-v1", run_dir="run", num_workers=0) as ppo:
        ppo.collect()
        code, _, err = command(*CARTPOLE, "--run_dir=run", "--resume=auto")
        assert code == 2 and "another run is writing into run" in err
    assert command(*CARTPOLE, "--run_dir=run", "--resume=auto", "--eval_episodes=0")[0] == 0


def test_an_update_that_takes_long_is_undone_after_a_signal(command, monkeypatch):
    monkeypatch.setattr(interrupts, "PATIENCE", 0.1)
    update, count = Learner.update, itertools.count(1)

    def slow(self, *args):
        if next(count) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        return update(self, *args)
    monkeypatch.setattr(Learner, "update", slow)
    code, out, err = command(*CARTPOLE, "--run_dir=run")
    assert code == 143 and "stopped   at step 64: 64 steps" in out
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_an_environment_that_catches_everything_does_not_keep_a_run_from_stopping(
        command, monkeypatch):
    monkeypatch.setattr(interrupts, "PATIENCE", 0.1)

    class Deaf(gym.Wrapper):
        def __init__(self):
            super().__init__(gym.make("CartPole-v1"))
            self.steps = 0

        def step(self, action):
            self.steps += 1
            try:
                if self.steps == 20:
                    os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(1e-3)
            except BaseException:  # noqa: S110
                pass
            return self.env.step(action)
    module = types.ModuleType("deaf")
    module.Deaf = Deaf
    monkeypatch.setitem(sys.modules, "deaf", module)
    code, out, _ = command("--env_name=deaf:Deaf", *TINY, "--num_steps=4096", "--num_envs=1",
                           "--total_steps=100k")
    assert code == 143 and "stopped   " in out


# replay

@pytest.fixture
def bundle(command):
    """The bundle of a fault in a run of the command."""
    command("--env_name=shop:Plain", *TINY, "--no-norm-obs", '--env_kwargs={"fails": 12}')
    path, = only_run().glob("*.bundle")
    return path


def test_a_bundle_is_replayed_up_to_the_step_that_failed(command, bundle):
    assert bundle.name == "fault-env0-episode2-step1.bundle"
    code, out, err = command("replay", str(bundle))
    assert code == 2 and "code that a file names is never imported" in err
    code, out, _ = command("replay", str(bundle), "--env_name=shop:Plain",
                           '--env_kwargs={"fails": 2}')
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("fault     environment 0 (seed ")
    assert any(re.match(r"replay    environment 0, seed \d+, episode 2: 1 steps in", line)
               for line in lines)
    assert any(line.startswith("step      1, with the action ") for line in lines)
    assert "again     environment 0 (replay, seed" in out and "a bug in the environment" in out


def test_a_replay_repeats_an_action_as_often_as_training_did(command):
    command("--env_name=shop:Plain", *TINY, "--no-norm-obs", "--frame_skip=3",
            '--env_kwargs={"fails": 12}')
    path, = only_run().glob("*.bundle")
    assert path.name == "fault-env0-episode2-step0.bundle"
    code, out, _ = command("replay", str(path), "--env_name=shop:Plain",
                           '--env_kwargs={"fails": 2}')
    assert code == 0 and "a bug in the environment" in out.partition("\nagain ")[2]


def test_a_bundle_that_is_older_than_a_setting_has_its_default(command, bundle):
    tensors, texts = tensor_file.read_tensor_file(bundle, BUNDLE_FORMAT)
    for name in ("frame_skip", "grayscale", "resize"):
        assert texts["settings"].pop(name) == Config.__dataclass_fields__[name].default
    tensor_file.write_tensor_file(bundle, BUNDLE_FORMAT, tensors, texts)
    code, out, _ = command("replay", str(bundle), "--env_name=shop:Plain",
                           '--env_kwargs={"fails": 2}')
    assert code == 0 and "a bug in the environment" in out.partition("\nagain ")[2]


@pytest.mark.parametrize("kwargs", [[], ["--env_kwargs={}"]])
def test_a_replay_in_which_nothing_fails_says_so(command, bundle, kwargs):
    code, out, _ = command("replay", str(bundle), "--env_name=shop:Plain", *kwargs)
    assert code == 1 and "nothing has failed" in out.splitlines()[-1]


def test_a_replay_in_another_environment_says_so(command, bundle):
    _, _, err = command("replay", str(bundle), "--env_name=CartPole-v1", "--env_kwargs={}")
    assert "the fault was in shop:Plain, and CartPole-v1 is run in its place" in err


@pytest.mark.parametrize("at, wanted", [(3, 0), ("never", 2)])
def test_a_replay_takes_the_arguments_in_the_file_unless_there_is_a_text(command, at, wanted):
    kwargs = json.dumps({"fails": 1, "at": at})
    command("--env_name=shop:Plain", *TINY, "--no-norm-obs", f"--env_kwargs={kwargs}")
    path, = only_run().glob("*.bundle")
    code, out, err = command("replay", str(path), "--env_name=shop:Plain")
    assert code == wanted and ("again     environment" in out) == (wanted == 0)
    assert (f"fix: --env_kwargs='{kwargs}'" in err) == (wanted == 2)


@pytest.mark.parametrize("quits", [False, True])
def test_a_replay_under_a_debugger_begins_in_the_step_of_the_environment(
        command, bundle, monkeypatch, quits):
    asked = []
    from fastppo.cli import replay

    def runcall(step, action):
        asked.append(step.__qualname__)
        return None if quits else step(action)
    monkeypatch.setattr(replay.pdb, "runcall", runcall)
    monkeypatch.setattr(replay.pdb, "post_mortem", lambda trace: asked.append("after"))
    code, out, _ = command("replay", str(bundle), "--env_name=shop:Plain",
                           '--env_kwargs={"fails": 2}', "--debugger")
    assert asked == ["Plain.step"] if quits else asked == ["Plain.step", "after"]
    assert code == ("stopped in the debugger" if quits else 0) and "nothing has failed" not in out


def test_what_is_no_bundle_is_one_error(command, bundle):
    Path("text.bundle").write_text("x")
    for argv, text in ((["replay"], "takes BUNDLE beside its options"),
                       (["replay", "no.bundle"], "there is no"),
                       (["replay", "text.bundle"], "is not a safetensors file"),
                       (["replay", str(only_run() / "model.safetensors")], "is a policy, not")):
        code, _, err = command(*argv)
        assert code in (1, 2) and text in err and err.count("\n  fix: ") == 1


def test_numbers_that_are_not_finite_leave_the_weights_before(command, monkeypatch):
    update, count = Learner.update, itertools.count(1)

    def spoilt(self, rollout, *args):
        if next(count) == 3:
            rollout.adv[2, 1] = float("nan")
        return update(self, rollout, *args)
    monkeypatch.setattr(Learner, "update", spoilt)
    code, out, err = command(*CARTPOLE)
    assert code == 1 and "in an update the loss is not" in err
    saved = load(only_run() / "model.safetensors").state_dict()
    assert all(x.isfinite().all() for x in saved.values())
    assert "stopped" not in out and f"--resume={only_run()}" in out


@pytest.mark.parametrize(("argv", "text", "fix"), [
    (["--resume=nowhere"], "there is no file nowhere", "or the folder of its run"),
    (["--resume=auto"], "and there is none", "--name=my_run"),
    (["--resume=x", "--init_from=y"], "--init_from starts a new run", "leave --resume out"),
    (["--resume=stopped", "--name=x"], "--name is for a new run", "leave --name out"),
    (["--resume=stopped", "--run_dir=x"], "--run_dir is for a new run", "leave --run_dir out"),
    (["--resume=stopped", "--show_config"], "--resume continues the one in stopped",
     "leave --show_config out"),
    (["--resume=auto", "--run_dir=stopped", "--show_config"], "is for a new run",
     "leave --show_config out"),
    (["--init_from=nowhere.safetensors"], "there is no file nowhere",
     "give the file of a policy")])
def test_what_cannot_be_resumed_is_named_with_a_fix(command, argv, text, fix):
    Path("stopped").mkdir()
    Path("stopped/checkpoint-000000000064.safetensors").touch()
    code, _, err = command(*argv, "--env_name=CartPole-v1", "--eval_episodes=0")
    assert code in (1, 2) and text in err and fix in err.splitlines()[-1]


def test_a_disk_that_is_full_at_the_end_costs_no_run(command, monkeypatch):
    real = tensor_file.write_file

    def full(path, data, private):
        if "run" in path.parts:
            raise CheckpointError(f"cannot write {path}: No space left on device")
        real(path, data, private)
    monkeypatch.setattr(tensor_file, "write_file", full)
    code, out, err = command(*CARTPOLE, "--run_dir=run", "--eval_episodes=0")
    place = re.search(r"the policy is in (\S+)", err)[1]
    assert code == 0 and place in out and load(place)
    shutil.rmtree(Path(place).parent)


def test_a_signal_is_answered_at_once(capfd):
    with interrupts.Interrupts() as stopping:
        stopping.stop_now = lambda: False
        os.kill(os.getpid(), signal.SIGINT)
    assert capfd.readouterr().err == (
        "stopping; another signal ends the process at once\n")


def test_a_later_signal_ends_the_process_at_once_and_one_within_a_second_is_the_same_stop(
        monkeypatch):
    codes = []
    monkeypatch.setattr(interrupts.os, "_exit", codes.append)
    with interrupts.Interrupts() as stopping:
        stopping.stop_now = lambda: False
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stopping.signum, codes) == (2, [])
        stopping.since -= interrupts.SAME_STOP
        os.kill(os.getpid(), signal.SIGTERM)
    assert codes == [143]


def test_a_hangup_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.Interrupts():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_handlers_are_the_main_threads_business():
    before = signal.getsignal(signal.SIGINT)

    def elsewhere():
        with interrupts.Interrupts():
            seen.append(signal.getsignal(signal.SIGINT))
    seen = []
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_real_process_with_workers_stops_on_sigterm_and_leaves_nobody():
    command = [sys.executable, MAIN, "--env_name=CartPole-v1", "--num_workers=2", "--run_dir=run",
               "--total_steps=100M", "--num_envs=4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          process_group=0) as process:
        while not process.stdout.readline().startswith("step"):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 143 and "Traceback" not in err
    assert any(line.startswith("stopped") for line in out.splitlines()[-4:])
    assert out.splitlines()[-1] == "resume    python main.py --resume=run"
    load("run/model.safetensors")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_show_config_prints_what_would_be_and_does_nothing(command, tmp_path):
    code, out, err = command("--env_name=CartPole-v1", "--lr=1e-3", "--show_config")
    assert (code, err) == (0, "") and not Path("runs").exists()
    assert "lr = 0.001  # given" in out and "# preset cartpole" in out and "# seed = none" in out
    assert 'model = "mlp"  # resolved' in out
    learner = "kernel" if kernels.COMPILED else "torch"
    assert f'learner = "auto"  # {learner} on this machine' in out
    Path("own.toml").write_text(out)
    again = command("--preset=own.toml", "--show_config")[1]
    assert re.sub(" +#.*", "", again).replace("own.toml", "auto") == re.sub(" +#.*", "", out)


def test_a_run_with_a_preset_of_a_file_is_resumed_by_the_same_command_without_reading_it(command):
    Path("own.toml").write_text("gamma = 0.5\n")
    settings = (*CARTPOLE[:1], *CARTPOLE[2:], "--preset=own.toml", "--run_dir=run", "--resume=auto",
                "--eval_episodes=0")
    assert command(*settings)[0] == 0
    code, out, _ = command(*settings, "--total_steps=160")
    assert code == 0 and "resumed at step 96" in out
    Path("own.toml").unlink()
    assert command("--resume=run", "--total_steps=192", "--eval_episodes=0")[0] == 0
    assert json.loads(Path("run/config.json").read_text())["gamma"] == 0.5


@pytest.mark.full
def test_a_video_is_recorded_if_it_is_asked_for_of_the_network_if_nothing_is_drawn(command):
    code, out, _ = command(*CARTPOLE, "--video", "--eval_episodes=0", "--run_dir=a")
    video, = Path("a").glob("video.*")
    assert code == 0 and f"video     {video}" in out and video.stat().st_size > 1_000
    code, out, err = command("--env_name=shop:Plain", *TINY, "--video", "--eval_episodes=0",
                             "--run_dir=b")
    assert code == 0 and "note: " not in err and next(Path("b").glob("video.*")).stat().st_size
    assert f"next      {program()} play b --env_name=shop:Plain --view=network\n" in out
    code, out, _ = command(*CARTPOLE, "--eval_env=shop:pole", "--eval_episodes=0", "--run_dir=c")
    assert code == 0 and f"next      {program()} play c --env_name=shop:pole\n" in out
    kwargs = """--env_kwargs='{"fails": "no"}'"""  # texts of a file are never used
    code, out, _ = command("--env_name=shop:Plain", kwargs.replace("'", ""), *TINY,
                           "--eval_episodes=0", "--run_dir=d")
    assert code == 0 and f" --env_name=shop:Plain {kwargs} --view=network\n" in out


def test_an_evaluation_that_fails_is_a_note_and_the_curve_is_drawn(command, monkeypatch):
    monkeypatch.setattr(evaluate, "MAX_STEPS", 5)
    monkeypatch.setattr(evaluate, "step_limit", lambda env: None)
    code, out, err = command(*CARTPOLE)
    assert code == 0 and "evaluation return" not in out and "curve  " in out
    assert "note: the evaluation failed: episode 0 has not ended after 5 steps" in err
    assert json.loads((only_run() / "summary.json").read_text())["evaluation"] is None


WITHOUT_PACKAGES = """
import sys
for name in ("torch", "wandb", "tensorboard", "trackio", "envpool", "onnx"):
    sys.modules[name] = None
from fastppo.cli.main import main
main()
"""


@pytest.mark.some(5)
@pytest.mark.parametrize("words, text", [
    ("--env_name=Brekout-v5", "no environment 'Brekout-v5'"),
    ("--env_name=LunarLander-v1", "no environment 'LunarLander-v1'"),
    ("--env_name=no_module:Env", "cannot import 'no_module'"),
    ("--env_name=shop:Nothing", "no 'Nothing' in shop"),
    ("--env_name=shop:Needy", "missing 1 required positional argument: 'level'"),
    ('--env_name=CartPole-v1 --env_kwargs={"foo":1}', "unexpected keyword argument 'foo'"),
    ('bench --env_name=CartPole-v1 --env_kwargs={"foo":1}', "unexpected keyword argument 'foo'"),
    ("--env_name=CartPole-v1 --eval_env=Foo-v0", "no environment 'Foo-v0'"),
    ("--env_name=CartPole-v1 --resize=a", "HEIGHTxWIDTH such as 64x96"),
    ("--env_name=CartPole-v1 --end_on_life_loss", "fix: --end_on_life_loss=False"),
    ("--env_name=CartPole-v1 --noop_max=3", "fix: --noop_max=30"),
    ("--env_name=CartPole-v1 --vec=envpool", 'fix: pip install "fastppo[envpool]"'),
    ("--env_name=CartPole-v1 --logger=wandb", 'fix: pip install "fastppo[wandb]"'),
    ("--env_name=CartPole-v1 --logger=tensorboard", 'fix: pip install "fastppo[tensorboard]"'),
    ("--env_name=CartPole-v1 --logger=trackio", 'fix: pip install "fastppo[trackio]"'),
    ("--env_name=CartPole-v1 --preset=nothing", "no preset 'nothing'"),
    ("--env_name=CartPole-v1 --preset=nothing --show_config", "no preset 'nothing'"),
    ("--env_name=CartPole-v1 --device=foo", "device is 'foo'"),
    ("--env_name=CartPole-v1 --init_from=nothing", "there is no file nothing"),
    ("--resume=nothing", "there is no file nothing"),
    ("--resume=.", "there is no checkpoint in ."),
    ("export nothing --to=torchscript", "there is no file nothing"),
    ("export a.safetensors --to=onnx", 'fix: pip install "fastppo[export]"'),
    ("replay nothing", "there is no file nothing"), ("replay .", ". is a folder"),
    ("eval nothing", "no file nothing"), ("play nothing", "no file nothing"),
    ("plot --out x.png", "plot has no option --out"),
    ("plot . --xyzzy", "fix: fastppo plot --help lists them"),
    ("export . --format=pt", "fix: fastppo export --help lists them"),
    ("eval . --episode=3", "did you mean --episodes?"),
    ("bench --xyzzy", "fix: fastppo bench --help lists them"),
    ("eval . 5", "eval takes MODEL|RUN beside its options, not . 5"),
    ("eval --episodes=3", "fix: fastppo eval --help"),
    ("eval shop.py", "shop.py is not a safetensors file\n"),
    ("play --best=False shop.py", "shop.py is not a safetensors file\n"),
    ("export shop.py --to=torchscript", "shop.py is not a safetensors file\n"),
    ("export a.zip", "a.zip is not a safetensors file"),
    ("replay shop.py", "shop.py is not a safetensors file\n"),
    ("--resume=shop.py", "shop.py is not a safetensors file\n"),
    ("--env_name=CartPole-v1 --init_from=shop.py", "shop.py is not a safetensors file\n"),
    ("--env_name=CartPole-v1 --model=shop:nothing", "no 'nothing' in shop"),
    ("--env_name=CartPole-v1 --model=no_module:Net", "cannot import 'no_module'"),
    ("--env_name=CartPole-v1 --preset=a.json", "a.json: there is no setting xyzzy"),
    ("reproduce nothing", "nothing is not the folder of a run"),
    ("--run_di=x", "did you mean --run_dir?"),
    ("--env_name=CartPole-v1 --eval_interval=9 --eval_episodes=0", "fix: --eval_episodes=10"),
    ("--env_name=CartPole-v1 --rnn=gru --recompute_advantages",
     "fix: --recompute_advantages=False"),
    ("--env_name=CartPole-v1 --rnn_size=9", "fix: --rnn=mingru; or leave --rnn_size out"),
    ("--env_name=CartPole-v1 --clip_rewards --reward_limit=3", "fix: --norm_rewards=True; or"),
    ("--env_name=CartPole-v1 --name=x --run_dir=y", "fix: leave --name out; or"),
    ("--env_name=CartPole-v1 --model=cnn", "fix: --model=mlp"),
    ("--total_steps=1,000,000", "total_steps is"),
    ("--env_name=CartPole-v1 --sde", "fix: leave --sde out"),
    ("--env_name=CartPole-v1 --sde --vec=native", "fix: leave --sde out"),
    ("--env_name=CartPole-v1 --actor_keys=position", "fix: leave --actor_keys out"),
])
def test_an_error_that_needs_no_torch_comes_before_its_import(words, text, tmp_path):
    (tmp_path / "shop.py").write_text("class Needy:\n    def __init__(self, level): pass\n")
    (tmp_path / "fault-env0-reset.bundle").touch()
    (tmp_path / "a.json").write_text('{"xyzzy": 1}')
    (tmp_path / "a.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.writestr("data.pkl", "")
    ended = subprocess.run([sys.executable, "-c", WITHOUT_PACKAGES, *words.split()], check=False,
                           capture_output=True, text=True, cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "") and text in ended.stderr, ended.stderr
    assert re.fullmatch(r"error: .+\n(  fix: .+\n)?", ended.stderr)
    assert not list(tmp_path.glob("runs*"))


def test_a_file_of_another_kind_was_typed_wrong_and_a_damaged_one_has_failed(command, bundle):
    model = only_run() / "model.safetensors"
    for words in (["eval", str(bundle)], ["replay", str(model)], [f"--resume={model}"]):
        code, _, err = command(*words)
        assert code == 2 and "not " in err
    code, _, err = command("--resume=runs")
    assert code == 2 and "there is no checkpoint in runs" in err
    model.write_bytes(model.read_bytes()[:-1])
    code, _, err = command("eval", str(model), "--env_name=shop:Plain")
    assert code == 1 and "is damaged" in err
