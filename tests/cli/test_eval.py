"""The verb eval: what it prints, which file it takes, and what it refuses."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from fastppo import load
from fastppo.cli import eval as eval_module
from fastppo.cli import main
from fastppo.envs.make import EnvFactory
from fastppo.evaluation import evaluate
from fastppo.networks.torch_state import torch_threads


@pytest.fixture
def run(trainer, tmp_path):
    """The folder of a run on CartPole-v1, with a last and a best policy, which differ."""
    ppo = trainer("CartPole-v1", max_episode_steps=40)
    ppo.save(tmp_path / "best.safetensors")
    (tmp_path / "config.json").write_text('{"seed": 1}')
    ppo.learn(256).save(tmp_path / "model.safetensors")
    return tmp_path


def refused(capsys, *argv):
    """What the command says to a wrong command line."""
    with pytest.raises(SystemExit) as ended:
        main.main(["eval", *map(str, argv)])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_it_prints_the_mean_its_spread_and_the_length(run, capsys):
    main.main(["eval", str(run), "--episodes=7"])
    found = load(run / "model.safetensors").evaluate(episodes=7)
    assert capsys.readouterr().out.splitlines() == [
        f"model     {run / 'model.safetensors'}",
        "env       CartPole-v1, seed 1, deterministic actions",
        f"return    {found}",
        f"spread    min {found.returns.min():.1f}   median {np.median(found.returns):.1f}"
        f"   max {found.returns.max():.1f}",
        f"length    {found.lengths.mean():.1f} steps on average"]
    assert re.search(r"^[\d.]+ ± [\d.]+ \(7 episodes\)$", str(found))


def test_one_episode_has_no_spread(run, capsys):
    main.main(["eval", str(run / "model.safetensors"), "--episodes=1", "--stochastic", "--seed=5"])
    found = load(run / "model.safetensors").evaluate(episodes=1, deterministic=False, seed=5)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "env       CartPole-v1, seed 5, stochastic actions", f"return    {found}",
        f"length    {found.lengths[0]}.0 steps"]


@pytest.mark.parametrize("episodes", [1, 4])
def test_json_has_every_episode(run, capsys, episodes):
    main.main(["eval", str(run), f"--episodes={episodes}", "--json", "--best"])
    told = json.loads(capsys.readouterr().out)
    found = load(run / "best.safetensors").evaluate(episodes=episodes)
    assert told["model"] == str(run / "best.safetensors") and told["env_name"] == "CartPole-v1"
    assert told["returns"] == found.returns.tolist() and told["mean"] == found.mean
    assert told["lengths"] == found.lengths.tolist() and told["length"] == found.lengths.mean()
    assert told["median"] == np.median(found.returns)
    assert (told["std"], told["ci95"]) == ((None, None) if episodes == 1 else
                                           (found.std, found.ci95))


def test_other_settings_of_the_environment_are_taken(run, capsys):
    main.main(["eval", str(run), "--env_name=CartPole-v0", "--max_episode_steps=3", "--json",
               "--episodes=2"])
    told = json.loads(capsys.readouterr().out)
    assert told["lengths"] == [3, 3] and told["env_name"] == "CartPole-v0"


def test_an_episode_that_does_not_end_names_the_flag(run, capsys, monkeypatch):
    monkeypatch.setattr(evaluate, "MAX_STEPS", 5)
    monkeypatch.setattr(evaluate, "step_limit", lambda env: None)
    with pytest.raises(SystemExit) as ended:
        main.main(["eval", str(run)])
    told = capsys.readouterr().err
    assert ended.value.code == 1
    assert "has not ended after 5 steps" in told and "fix: --max_episode_steps=1_000" in told


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_an_interrupt_leaves_the_mean_of_the_episodes_that_have_ended(
        run, capsys, monkeypatch, options):
    take_step, steps = evaluate.EvaluationEnvs.take_step, itertools.count(1)
    begun = []

    def interrupting(envs, e, action):
        if next(steps) == 30:
            begun.append(capsys.readouterr().out)
            os.kill(os.getpid(), signal.SIGINT)
        return take_step(envs, e, action)
    monkeypatch.setattr(evaluate.EvaluationEnvs, "take_step", interrupting)
    monkeypatch.setattr(evaluate, "MAX_ENVS", 2)
    with pytest.raises(SystemExit) as ended:
        main.main(["eval", str(run), "--episodes=100", "--max_episode_steps=6", *options])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (130, "")
    assert begun == ["" if options else f"model     {run / 'model.safetensors'}\n"
                     "env       CartPole-v1, seed 1, deterministic actions\n"]
    assert re.search(r"note: played 4 of 100 episodes in \d+ s, with a mean return of 6.00\n$", err)


def test_torch_has_as_many_threads_as_in_the_run(run, monkeypatch):
    play, threads = evaluate.EvaluationEnvs.play, []
    monkeypatch.setattr(evaluate.EvaluationEnvs, "play", lambda *args: threads.append(
        torch.get_num_threads()) or play(*args))
    with torch_threads(2):
        main.main(["eval", str(run), "--episodes=1"])
    assert threads == [1]


def test_wrong_words_are_refused_with_a_fix(run, capsys):
    assert "fix: python main.py eval" in refused(capsys).replace("fastppo eval",
                                                                 "python main.py eval")
    assert "there is no file" in refused(capsys, run / "missing")
    assert "config.json is not a safetensors file" in refused(capsys, run / "config.json")
    (run / "empty").mkdir()
    assert "empty is a folder" in refused(capsys, run / "empty")
    assert "there is no file" in refused(capsys, run / "model.safetensors", "--best")
    (run / "best.safetensors").unlink()
    assert "there is no file" in (said := refused(capsys, run, "--best")) and "best.safe" in said
    assert "--episodes=100" in refused(capsys, run, "--episodes=0")
    assert "did you mean --episodes?" in refused(capsys, run, "--episode=3")
    assert "python main.py eval --help lists them" in refused(capsys, run, "--num_envs=3")
    assert "takes MODEL|RUN beside its options, not " in refused(capsys, run, "5")
    assert "seed is -1" in refused(capsys, run, "--seed=-1")
    assert "does not fit" in refused(capsys, run, "--env_name=Pendulum-v1")


@pytest.mark.parametrize("kwargs, text", [
    ({}, "Maze"), ({"level": 3, "api_key": "sesame"}, 'Maze {"level": 3, "api_key": "***"}')])
def test_an_environment_is_printed_with_its_arguments_but_no_passwords(kwargs, text):
    assert eval_module.env_text(EnvFactory(object, "Maze", None, kwargs)) == text


@pytest.mark.parametrize("stored, played", [(3, 3), (0, 100)])
def test_a_run_is_evaluated_with_its_own_number_of_episodes(trainer, tmp_path, capsys, stored,
                                                            played):
    trainer("CartPole-v1", eval_episodes=stored, max_episode_steps=4).save(tmp_path / "a.st")
    main.main(["eval", str(tmp_path / "a.st")])
    assert f" ({played} episodes)" in capsys.readouterr().out


def test_help_and_wrong_words_import_no_library():
    for words in (["--help"], ["nowhere"]):
        code = ("import sys; from fastppo.cli import main\n"
                f"try: main.main(['eval', *{words}])\nexcept SystemExit: pass\n"
                "print([m for m in ('torch', 'numpy', 'gymnasium', 'PIL') if m in sys.modules])")
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                             check=True)
        assert out.stdout.splitlines()[-1] == "[]", words


def test_help_shows_an_example_and_every_option(capsys):
    with pytest.raises(SystemExit, match="0"):
        main.main(["eval", "--help"])
    told = capsys.readouterr().out
    assert "eval runs/latest --episodes=20" in told
    for name in vars(eval_module.Eval()):
        assert f"--{name} " in told
