"""Training a run again, and the comparison of the two."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from run_folders import write_run

from fastppo.cli import reproduce
from fastppo.cli.reproduce import likely_causes, metrics_text, model_text

CARTPOLE = ["--env_name=CartPole-v1", "--preset=none", "--num_workers=0", "--num_envs=4",
            "--num_steps=8", "--epochs=1", "--num_minibatches=1", "--hidden_sizes=8",
            "--total_steps=96", "--eval_episodes=1", "--lr=linear:1e-3", "--seed=5"]


@pytest.fixture
def trained(command):
    """The folder of a run."""
    assert command(*CARTPOLE, "--run_dir=old")[0] == 0
    return Path("old")


def change(file: Path, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_run_has_the_same_bits_again(command, trained):
    code, out, err = command("reproduce", "old")
    assert (code, err) == (0, "")
    assert re.fullmatch(r"equal     metrics: 3 rows; model: \d+ tensors, all bits",
                        out.splitlines()[-1])
    assert "seed 5" in out and len([*Path("runs").glob("CartPole-v1__reproduce__5__*")]) == 1


def test_a_run_can_be_reproduced_in_part(command, trained):
    code, out, _ = command("reproduce", "old", "--total_steps=40")
    assert code == 0 and out.splitlines()[-1].startswith(
        "equal     metrics: 2 rows; model: not compared")


def test_a_link_to_a_run_is_followed_and_a_reproduction_is_reproduced(command):
    assert command(*CARTPOLE)[0] == 0
    assert command("reproduce", "runs/latest")[0] == 0
    again, = Path("runs").glob("*__reproduce__*")
    assert command("reproduce", str(again))[0] == 0


def test_what_differs_is_named_with_likely_causes(command, trained):
    change(trained / "config.json", gamma=0.5)
    facts = json.loads((trained / "system.json").read_text())
    facts["fingerprint"]["torch"] = facts["torch"]["version"] = "1.0"
    (trained / "system.json").write_text(json.dumps(facts))
    change(trained / "summary.json", resumed_at=32)
    code, out, _ = command("reproduce", "old")
    *_, metrics, cause, resumed = out.splitlines()
    assert code == 1
    assert re.fullmatch(r"differs   metrics: 3 of 3 rows, from step 32 on; there losses/\w+ was"
                        r" \S+, is \S+, and \d+ more; model: \d+ of \d+ tensors, such as \S+",
                        metrics)
    assert cause == f"cause     torch: 1.0 and {torch.__version__}"
    assert resumed.startswith("cause     the run was resumed at step 32")


def test_a_difference_without_a_cause_suspects_the_environment(command, trained):
    text = (trained / "metrics.csv").read_text().replace("\n96,", "\n97,")
    (trained / "metrics.csv").write_text(text)
    code, out, _ = command("reproduce", "old", "--total_steps=96")
    assert code == 1 and "cause     not known" in out and "1 of 3 rows, from step 9" in out


@pytest.mark.parametrize("changes, argv, says", [
    ({"env_name": "kiosk:Env"}, [], "fix: --env_name=kiosk:Env"),
    ({"model": "nets:Mine"}, [], "fix: --model=nets:Mine"),
    ({"env_kwargs": {"api_key": "***"}}, [], """--env_kwargs='{"api_key": "***"}'"""),
    ({"loss": "<function mine at 0x7f>"}, [], "loss of old can be given only in Python"),
    ({"lr": "<function mine at 0x7f>"}, [], "lr of old can be given only in Python"),
    ({"xyzzy": 1}, [], "xyzzy"), ({"env_name": None}, [], "had env_name of its own"),
    ({}, ["--total_step=96"], "did you mean --total_steps?"),
])
def test_what_cannot_be_reproduced_is_an_error(command, changes, argv, says):
    write_run(Path("old"), [1.0], steps=[96])
    change(Path("old/config.json"), **changes)
    code, out, err = command("reproduce", "old", *argv)
    assert (code, out) == (2, "") and says in err and "Traceback" not in err
    assert not Path("runs").exists()


@pytest.mark.parametrize("argv, says", [
    ([], "fix: python main.py reproduce --help"),
    (["gone"], "gone is not the folder of a run"),
    (["empty"], "has no complete row"),
])
def test_a_folder_without_a_run_is_an_error(command, argv, says):
    write_run(Path("empty"), [])
    code, _, err = command("reproduce", *argv)
    assert code == 2 and says in err


def test_a_policy_that_a_run_started_with_is_asked_for(command, trained):
    assert command(*CARTPOLE, "--init_from=old/model.safetensors", "--run_dir=next")[0] == 0
    assert command(*CARTPOLE, "--init_from=old", "--run_dir=same")[0] == 0
    code, _, err = command("reproduce", "next")
    assert code == 2 and "fix: --init_from=old/model.safetensors" in err
    assert command("reproduce", "next", "--init_from=old/model.safetensors")[0] == 0


def test_code_that_is_given_again_is_trained(command, monkeypatch):
    Path("kiosk.py").write_text("import gymnasium\ndef Env(token):\n"
                               "    return gymnasium.make('CartPole-v1')\n")
    own = ["--env_name=kiosk:Env", '--env_kwargs={"token": "abc"}']
    monkeypatch.syspath_prepend(".")
    assert command(*CARTPOLE, *own, "--run_dir=old")[0] == 0
    assert "abc" not in Path("old/command.txt").read_text()
    assert command("reproduce", "old", own[0])[0] == 2
    assert command("reproduce", "old", *own)[0] == 0


def test_the_help_is_an_example_and_a_page(command):
    code, out, _ = command("reproduce", "--help")
    assert code == 0 and "python main.py reproduce runs/latest --total_steps=20k" in out
    assert max(map(len, out.splitlines())) <= 80


# comparisons

def test_times_are_not_compared_and_steps_beyond_the_last_are_not_read(tmp_path):
    one = write_run(tmp_path / "a", [1.0, 2.0, 3.0], **{"time/collect": [1, 2, 3]})
    two = write_run(tmp_path / "b", [1.0, 2.0], **{"time/collect": [7, 8]})
    assert metrics_text(one, two, 200) == ("2 rows", True)
    assert metrics_text(one, two, 300)[0].startswith(
        "1 of 3 rows, from step 300 on; there global_step was 300, is absent, and ")


def test_a_metric_that_one_run_has_not_is_a_difference(tmp_path):
    one = write_run(tmp_path / "a", [1.0, 2.0], **{"env/x": [None, 4.0]})
    two = write_run(tmp_path / "b", [1.0, 2.0])
    assert metrics_text(one, two, 200) == (
        "1 of 2 rows, from step 200 on; there env/x was 4.0, is absent", False)


def test_policies_are_compared_bit_by_bit():
    one = {"a": torch.tensor([0.0, 1.0, torch.nan]), "b": torch.zeros((), dtype=torch.bfloat16)}
    assert model_text(one, {name: x.clone() for name, x in one.items()}) == (
        "2 tensors, all bits", True)
    for two in (one | {"a": torch.tensor([-0.0, 1.0, torch.nan])},
                one | {"a": torch.tensor([0.0, 1.25, torch.nan])}, {"b": one["b"]}):
        assert model_text(one, two) == ("1 of 2 tensors, such as a", False)


def test_causes_are_the_versions_and_flags_that_differ():
    one = {"packages": {"torch": "2.1"}, "fingerprint": {"torch": "2.1", "cpu_flags": "a b"},
           "machine": {"memory_free": 1}, "extras": {"only": {"x": "1"}}}
    two = {"packages": {"torch": "2.2"}, "fingerprint": {"torch": "2.2", "cpu_flags": "a"},
           "machine": {"memory_free": 2}}
    assert likely_causes(one, two) == ["cpu_flags: a b and a", "torch: 2.1 and 2.2"]
    assert likely_causes(one, one) == likely_causes({}, one) == []


def test_the_command_leaves_outputs_out(tmp_path):
    settings = {"device": "cpu", "num_workers": 500, "eval_interval": 10, "logger": ("wandb",)}
    words = reproduce.command_again(Path("old"), settings, reproduce.Reproduce(
        env_kwargs={"text": "it's"}))
    assert words[0] == "--preset=old/config.json" and words[-2:] == [
        "--video_interval=none", "--logger=none"]
    assert '--env_kwargs={"text": "it\'s"}' in words and "--eval_episodes=0" not in words
    assert "--num_workers=500" not in words


def test_a_run_that_was_stopped_is_reproduced_up_to_its_last_step(command, trained):
    shutil.copytree(trained, "part")
    lines = Path("part/metrics.csv").read_text().splitlines(keepends=True)
    Path("part/metrics.csv").write_text("".join(lines[:3]))
    change(Path("part/summary.json"), steps=64, ended="signal")
    code, out, _ = command("reproduce", "part")
    assert code == 1 and "metrics: 2 rows; model: " in out  # the policy is that of step 96
