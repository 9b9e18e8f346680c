"""The verb doctor: the report, the problems with their fixes, the self-test."""

import json
import os
import sys
from functools import partial

import pytest
from optional_packages import NEEDS_EXTENSION
from packaging.requirements import Requirement

from fastppo import __version__
from fastppo.cli import doctor
from fastppo.machine import installation

PASSED = {"workers": [0, 2], "same_bits": True, "error": None, "seconds": 0.5}


@pytest.fixture
def command(command, monkeypatch):
    """A function from the words after doctor to (exit code, stdout, stderr) of the command."""
    monkeypatch.setenv("COLUMNS", "80")
    return partial(command, "doctor")


@pytest.fixture
def quick(monkeypatch):
    """The self-test passes without training."""
    monkeypatch.setattr(doctor, "self_test", lambda workers: PASSED)


def test_the_report_has_every_subject_and_is_no_wider_than_80(command, quick):
    code, out, err = command()
    lines = out.splitlines()
    assert (code, err) == (0, "") and max(map(len, lines)) <= 80
    subjects = [line.split()[0] for line in lines if line[0] != " "]
    assert subjects[:7] == ["fastppo", "python", "torch", "machine", "kernels", "packages",
                            "environments"]
    assert subjects[-2] == "self-test" and subjects[-1] in ("problem", "problems")
    assert lines[0].startswith(f"fastppo        version {__version__}, ")
    assert "same bits for 0 and 2 workers: yes   (0.5 s)" in out


def test_json_has_the_facts_the_problems_and_the_test(command, quick):
    code, out, _ = command("--json")
    found = json.loads(out)
    assert code == 0 and found["self_test"] == PASSED and isinstance(found["problems"], list)
    assert found["fastppo"]["version"] == __version__ and found["torch"]["names"] == []


def test_no_environment_variable_is_printed(command, quick, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "very-secret-4711")
    monkeypatch.setenv("MY_SETTING", "harmless-0815")
    for argv in ([], ["--json"]):
        out = command(*argv)[1]
        assert "very-secret-4711" not in out and "harmless-0815" not in out


def test_facts_are_shown_with_sizes_in_gib_and_an_extra_in_brackets():
    facts = {"torch": {"cuda": None, "names": ["H200", "H200"], "devices": 1},
             "machine": {"memory": 3 * 2**34, "bf16": True},
             "extras": {"wandb": {"wandb": None}}, "fingerprint": {}, "problems": []}
    assert doctor.report(facts) == ["torch          cuda none, names H200, H200, devices 1",
                                    "machine        memory 48.0 GiB, bf16 yes",
                                    "[wandb]        wandb none"]


def test_packages_that_are_too_old_or_missing_are_problems_with_the_command_for_pip(monkeypatch):
    monkeypatch.setattr(installation, "extension_file", lambda: "_kernels.so")
    monkeypatch.setattr(installation, "needed_packages", lambda: {
        "": [(Requirement("torch>=2.6"), "2.5"), (Requirement("numba>=0.61"), None),
             (Requirement("numpy>=1"), "2"), (Requirement("pillow>=9"), "10.0.dev1+cpu"),
             (Requirement("scipy"), "0.1"), (Requirement("gymnasium<2,>=1.2"), "1.4")],
        "wandb": [(Requirement("wandb>=0.19"), "0.1")],
        "envpool": [(Requirement("envpool>=1"), None)]})
    assert doctor.problems() == [
        ("torch 2.5, but fastppo needs >=2.6", 'pip install "torch>=2.6"'),
        ("numba is not installed, but fastppo needs >=0.61", 'pip install "numba>=0.61"'),
        ("wandb 0.1, but the extra wandb needs >=0.19", 'pip install "wandb>=0.19"')]


def test_every_problem_is_a_line_with_its_fix(command, quick, monkeypatch):
    monkeypatch.setattr(installation, "extension_file", lambda: None)
    out = command()[1].splitlines()
    first = next(i for i, line in enumerate(out) if line.startswith("problem "))
    assert "extension" in out[first] and any(line.startswith("  fix  ") for line in out[first:])


# the self-test

def test_the_self_test_trains_with_and_without_workers_to_the_same_bits():
    from fastppo.machine import kernels
    possible = kernels.COMPILED and os.name != "nt"
    test = doctor.self_test(possible)
    assert (test["error"], test["same_bits"]) == (None, True if possible else None)
    assert doctor.self_test(False)["same_bits"] is None


@NEEDS_EXTENSION
def test_the_self_test_sees_bits_that_differ(command, monkeypatch):
    monkeypatch.setattr(doctor, "trained_bits", lambda workers: bytes([workers]))
    code, out, _ = command()
    assert code == 1 and "same bits for 0 and 2 workers: NO" in out


def test_training_that_fails_is_told_and_ends_with_1(command, monkeypatch):
    def failing(workers):
        raise RuntimeError("no memory")
    monkeypatch.setattr(doctor, "trained_bits", failing)
    code, out, _ = command()
    assert code == 1 and "self-test      failed: RuntimeError: no memory" in out


def test_an_extension_that_cannot_be_loaded_is_one_error(command, monkeypatch):
    broken = ImportError("undefined symbol: x")

    def find(name, *_):
        if name == "fastppo.runs.facts":
            raise broken
    monkeypatch.delitem(sys.modules, "fastppo.runs.facts", raising=False)
    monkeypatch.setattr(sys, "meta_path", [type("Finder", (), {"find_spec": staticmethod(find)}),
                                           *sys.meta_path])
    code, out, err = command()
    assert (code, out) == (1, "") and "cannot be loaded: undefined symbol: x" in err
    assert "fix: install a C compiler" in err


@pytest.mark.parametrize("argv, what, fix", [
    (["--jsn"], "doctor has no option --jsn", "did you mean --json?"),
    (["--json=maybe"], "must be True or False", ""),
    (["now"], "takes no word beside its options, not now", "doctor --help")])
def test_a_wrong_word_is_one_error_with_its_fix(command, argv, what, fix):
    code, out, err = command(*argv)
    assert (code, out) == (2, "") and what in err and fix in err.rpartition("error: ")[2]
