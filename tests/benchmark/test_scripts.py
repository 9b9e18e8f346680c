"""The scripts of bench/ run; what they measure is not asserted."""

import importlib
import json
import re
import sys

import pytest
import torch
from optional_packages import NEEDS_BOX2D
from source_tree import ROOT

from fastppo.arguments import command_line
from fastppo.benchmark.options import Bench
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


def test_the_update_is_timed_with_both_learners(script, monkeypatch, capsys):
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # it stays for other tests
    monkeypatch.setattr(sys, "argv", ["update.py", "--sizes", "32", "--hidden", "8", "--rounds",
                                      "1", "--rows", "64", "--passes", "1"])
    script("update").main()
    assert re.search(r"^ +32( +[\d.]+ \([\d.]+-[\d.]+\)){2}( +[\d.]+){3}", capsys.readouterr().out,
                     re.MULTILINE)


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


def test_a_step_on_a_gpu_machine_that_fails_or_hangs_costs_only_itself(script, monkeypatch, capsys,
                                                                       tmp_path):
    gpu = script("gpu")
    one = 'import json; json.dump({"figures": [{"part": "loop", "processes": 2, "median": 1e4}]},' \
        f' open("{tmp_path}/figures.json", "w"))'
    commands = {"absent": ["no-such-program"], "hangs": ["-c", "import time; time.sleep(60)"],
                "fails": ["-c", "print('as it was'); 1 / 0"], "figures": ["-c", one]}
    monkeypatch.setattr(gpu, "steps", lambda folder: [
        gpu.Step(name, 2 if name == "hangs" else 60, words if name == "absent" else
                 [sys.executable, *words]) for name, words in commands.items()])
    monkeypatch.setattr(sys, "argv", ["gpu.py", str(tmp_path)])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(SystemExit, match="1"):
        gpu.main()
    out, found = capsys.readouterr().out, json.loads((tmp_path / "results.json").read_text())
    assert [found[name]["code"] for name in ("hangs", "fails", "figures")] == [
        "stopped after 2 s", 1, 0]
    assert "No such file" in found["absent"]["code"] and "as it was" in out
    assert re.search(r"loop +2 processes +10,000 steps/s", out)
    assert (tmp_path / "report.txt").read_text() in out


def test_an_update_and_an_upload_are_timed(script, monkeypatch, tmp_path):
    pytest.importorskip("ale_py")
    path = tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["gpu_parts.py", "--device=cpu", "--num_envs=4", "--rounds=1",
                                      f"--json={path}"])
    script("gpu_parts").main()
    found = json.loads(path.read_text())
    assert found["samples"] == 128
    assert all(found[name] > 0 for name in ("update", "upload_pageable", "upload_pinned"))


def test_the_steps_for_a_gpu_machine_are_commands_that_there_are(script, tmp_path):
    for step in script("gpu").steps(tmp_path):
        if "main.py" in step.command and "doctor" not in step.command:
            words = step.command[step.command.index("main.py") + 1:]
            command_line.read(words[1:] if words[0] == "bench" else words,
                              Bench if words[0] == "bench" else command_line.Train)
        assert "-n" not in step.command  # pytest-xdist may be missing there
    assert sum(step.seconds for step in script("gpu").steps(tmp_path)) < 500


def test_a_machine_without_a_gpu_is_told_so_at_once(script, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="sees no GPU here"):
        script("gpu").main()
    assert not [*tmp_path.iterdir()]
