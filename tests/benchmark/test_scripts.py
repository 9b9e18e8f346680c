"""The scripts of bench/ run; what they measure is not asserted."""

import importlib
import json
import re
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from optional_packages import NEEDS_BOX2D
from source_tree import ROOT

from fastppo.cli import command_line
from fastppo.cli.bench import Bench
from fastppo.machine import kernels

pytestmark = pytest.mark.skipif(not kernels.COMPILED, reason="they measure the compiled extension")


@pytest.fixture
def script(monkeypatch):
    """A function: a script of bench/ as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))

    def load(name):
        sys.modules.pop(name, None)
        return importlib.import_module(name)
    return load


def test_runs_that_learn_are_given_no_hint(script, monkeypatch, tmp_path):
    module, kept = script("hints"), tmp_path / "hints.json"
    for preset, seed in (("auto", 1), ("general", 1), ("auto", 1)):
        monkeypatch.setattr(sys, "argv", ["hints.py", "--env", "CartPole-v1", "--seeds", str(seed),
                                          "--preset", preset, "--steps", "600", "--out", str(kept)])
        module.main()
    rows = json.loads(kept.read_text(encoding="utf-8"))
    assert [(row["preset"], row["hints"], row["warnings"]) for row in rows] == [
        ("general", [], []), ("auto", [], [])]
    assert all(0.1 < row["entropy"] < 0.7 and row["steps"] >= 600 for row in rows)


def test_the_stored_runs_of_the_table_of_results_were_given_no_hint(script):
    rows = json.loads((ROOT / "bench" / "hints.json").read_text(encoding="utf-8"))
    assert not any(row["hints"] for row in rows)
    stored = {(row["env"], row["preset"], row["seed"]) for row in rows}
    tasks = script("study_tasks").DEVELOPMENT
    assert len(tasks) == 13 and stored >= {(task, "auto", seed) for task in tasks
                                           for seed in (1, 2, 3)}


def test_the_update_is_timed_with_both_learners(script, monkeypatch, capsys):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # it stays for other tests
    monkeypatch.setattr(sys, "argv", ["update.py", "--sizes", "32", "--hidden", "8", "--rounds",
                                      "1", "--rows", "64", "--passes", "1"])
    script("update").main()
    assert re.search(r"^ +32( +[\d.]+ \([\d.]+-[\d.]+\)){2}( +[\d.]+){3}", capsys.readouterr().out,
                     re.MULTILINE)


@pytest.mark.full
@pytest.mark.parametrize("name", ["scaling", "stepping"])
def test_steps_are_timed_with_and_without_workers(name, script, monkeypatch, capsys):
    few = {"scaling": ["--workers", "0"], "stepping": ["--steps", "20"]}[name]
    module = script(name)
    for size in {"ENVS", "STEPS"} & {*vars(module)}:
        monkeypatch.setattr(module, size, 2)
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--rounds", "1", *few])
    module.main()
    assert "us" in capsys.readouterr().out or name == "scaling"


def test_rollouts_are_timed_without_their_updates(script, monkeypatch):
    spinning, workers = script("spinning"), script("workers")
    monkeypatch.setattr(spinning, "ENVS", 4)
    monkeypatch.setattr(spinning, "STEPS", 8)
    assert spinning.seconds("CartPole-v1", "local", 1, "as it is") > 0
    assert min(workers.measured("central", 2, 4, 0)) > 0


@NEEDS_BOX2D
def test_a_step_of_car_racing_is_timed_beside_gymnasiums_wrappers(script, monkeypatch, capsys):
    pytest.importorskip("cv2")
    monkeypatch.setattr(sys, "argv", ["pixels.py", "--car", "--steps", "2", "--rounds", "1"])
    script("pixels").main()
    assert re.findall(r"^(\w+) .* us .* of gymnasium$", capsys.readouterr().out, re.MULTILINE) == [
        "gymnasium", "fastppo"]


@pytest.fixture
def gpu(script, monkeypatch, tmp_path):
    """A function: runs the steps {name: words of Python} of bench/gpu.py; returns its results.

    They write into tmp_path, and the results are in its folder `given`.
    """
    module = script("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    def call(commands, limits=None, *flags):
        limits = limits or {}
        monkeypatch.setattr(module, "steps", lambda folder: [
            module.Step(name, limits.get(name, 60), words if name == "absent" else
                        [sys.executable, "-c", *words]) for name, words in commands.items()])
        monkeypatch.setattr(sys, "argv", [
            "gpu.py", str(tmp_path / "given"), f"--work={tmp_path}", *flags])
        try:
            module.main()
        except SystemExit as end:
            assert end.code == 1
        return json.loads((tmp_path / "given" / "results.json").read_text())
    return call


def writes(path, figures):
    """Python that writes a file of figures."""
    return [f"import json; json.dump({figures!r}, open({str(path)!r}, 'w'))"]


BENCH = {"figures": [{"part": "loop", "processes": 2, "median": 1e4}]}  # as `main.py bench --json`


def test_a_step_on_a_gpu_machine_that_fails_or_hangs_costs_only_itself(gpu, capsys, tmp_path):
    found = gpu({"absent": ["no-such-program"], "hangs": ["import time; time.sleep(60)"],
                 "fails": ["print('as it was'); 1 / 0"],
                 "simulator": writes(tmp_path / "simulator.json", BENCH),
                 "parts": writes(tmp_path / "parts.json", {"update": 2.5})}, {"hangs": 2})
    out = capsys.readouterr().out
    assert [found[name]["code"] for name in ("hangs", "fails", "simulator", "parts")] == [
        "stopped after 2 s", 1, 0, 0]
    assert "No such file" in found["absent"]["code"] and "as it was" in out
    assert found["simulator"]["figures"] == BENCH and found["parts"]["figures"] == {"update": 2.5}
    assert re.search(r"loop +2 processes +10,000 steps/s", out)
    given = tmp_path / "given"
    assert sorted(path.name for path in given.iterdir()) == [
        "logs.tar.gz", "report.txt", "results.json"]
    assert (given / "report.txt").read_text() in out
    with tarfile.open(given / "logs.tar.gz") as logs:
        assert sorted(logs.getnames()) == [f"{name}.txt" for name in sorted(found)]


def test_what_an_earlier_call_left_of_a_step_is_neither_reported_nor_in_its_way(gpu, capsys,
                                                                                tmp_path):
    (tmp_path / "simulator.json").write_text(json.dumps(BENCH))
    (tmp_path / "simulator_run" / "logs").mkdir(parents=True)
    found = gpu({"simulator": [f"import os; print(sorted(os.listdir({str(tmp_path)!r}))); 1 / 0"]})
    out = capsys.readouterr().out
    assert "figures" not in found["simulator"] and "10,000" not in out
    assert "ZeroDivisionError" in out and "['given', 'simulator.txt']" in out


def test_the_run_of_a_step_does_not_stay(gpu, tmp_path):
    gpu({"training": [f"import os; os.mkdir({str(tmp_path / 'training_run')!r})"]})
    assert not (tmp_path / "training_run").exists()


def test_a_step_that_is_stopped_has_its_output_in_the_report(gpu, capsys):
    gpu({"hangs": ["import time; print('so far'); time.sleep(60)"]}, {"hangs": 2})
    assert "  so far\n" in capsys.readouterr().out


def test_some_steps_are_for_a_second_call(gpu):
    both = {"lander": ["1"], "training": ["1"]}
    assert [*gpu(both)] == ["training"]
    assert [*gpu(both, {}, "--only=lander")] == ["lander"]


def test_figures_that_a_step_has_not_finished_are_not_read(gpu, tmp_path):
    found = gpu({"simulator": [f"open({str(tmp_path / 'pong.json')!r}, 'w').write('{{'); 1 / 0"]})
    assert found["simulator"]["code"] == 1 and "figures" not in found["simulator"]


def test_all_steps_together_have_a_limit(gpu):
    found = gpu({"hangs": ["import time; time.sleep(60)"], "late": ["import time; time.sleep(60)"]},
                {}, "--seconds=2")
    assert found["hangs"]["code"].startswith("stopped") and found["late"]["code"] == (
        "stopped after 0 s")


@pytest.mark.full
def test_an_update_and_an_upload_are_timed(script, monkeypatch, tmp_path):
    pytest.importorskip("ale_py")
    path = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["gpu_parts.py", "--device=cpu", "--num_envs=1", "--rounds=1",
                                      f"--json={path}"])
    module = script("gpu_parts")
    module.main()
    found = json.loads(path.read_text())
    for learner in ("graph", "torch"):
        assert found[learner]["samples"] == 32
        assert all(found[learner][name] > 0 for name in ("update", "steps_per_second"))
        assert not found[learner]["pinned"]
    assert all(found["frames"][name] > 0 for name in ("upload_pageable", "upload_pinned"))
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--profile"])
    module.main()
    assert json.loads(path.read_text())["profile"]["operations"] > 100


def test_the_steps_for_a_gpu_machine_are_commands_that_there_are(script, tmp_path):
    steps = script("gpu").steps(tmp_path)
    for step in steps:
        if "main.py" in step.command and "doctor" not in step.command:
            words = step.command[step.command.index("main.py") + 1:]
            command_line.read(words[1:] if words[0] == "bench" else words,
                              Bench if words[0] == "bench" else command_line.Train)
        assert "-n" not in step.command  # pytest-xdist may be missing there
        if "main.py" in step.command and "bench" not in step.command and step.name != "doctor":
            assert f"--run_dir={tmp_path / step.name}_run" in step.command  # is removed before
    later = script("gpu").OF_A_SECOND_CALL
    assert {*later} < {step.name for step in steps}
    for call in (True, False):
        assert sum(step.seconds for step in steps if (step.name in later) is call) <= 560


@pytest.mark.parametrize("flags, cores, workers", [
    ([], ["0-0", "0-1"], [0, 1]), (["--ranks=4", "--cores=16"], ["0-15", "0-63"], [16, 16])])
def test_ranks_have_cores_and_workers_of_their_own(script, monkeypatch, capsys, flags, cores,
                                                   workers):
    calls = []

    def run(words, check, cwd, stdout):
        calls.append(words)
        (Path(cwd) / "run").mkdir()
        (Path(cwd) / "run" / "summary.json").write_text('{"steps_per_second": 1000}')

    ranks = script("ranks")
    monkeypatch.setattr(ranks.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["ranks.py", "--rounds=1", *flags, "--device=cpu"])
    ranks.main()
    assert [words[2] for words in calls] == cores
    assert [words[-1] for words in calls] == [f"--num_workers={count}" for count in workers]
    for words in calls:
        command_line.read(words[words.index(str(ROOT / "main.py")) + 1:], command_line.Train)
    assert "1.00 of one" in capsys.readouterr().out


def test_a_machine_without_a_gpu_is_told_so_at_once(script, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", str(tmp_path), f"--work={tmp_path}"])
    with pytest.raises(SystemExit, match="sees no GPU here"):
        script("gpu").main()
    assert not [*tmp_path.iterdir()]
