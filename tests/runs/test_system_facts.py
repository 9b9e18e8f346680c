"""The facts on machine and packages that a report of a problem has."""

import json
import os

import gymnasium
import numpy
import pytest
import torch

from fastppo import __version__
from fastppo.machine import kernels, limits
from fastppo.runs import facts as facts_of
from fastppo.runs.facts import finite, system_facts, vector_level


def test_the_facts_are_those_of_this_process_and_plain_json():
    facts = facts_of.system_facts(torch_threads=3)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["fastppo"]["version"] == __version__
    assert facts["torch"]["version"] == torch.__version__
    assert facts["packages"]["numpy"] == numpy.__version__
    assert facts["packages"]["gymnasium"] == gymnasium.__version__
    assert 1 <= facts["machine"]["usable"] <= facts["machine"]["cores"]
    assert facts["kernels"]["workers"] is (kernels.COMPILED and os.name != "nt")
    assert facts["fingerprint"]["torch_threads"] == 3
    assert facts["environments"]["classic control"] is True
    assert "wandb" in facts["extras"] and "" not in facts["extras"]


def test_no_environment_variable_is_among_the_facts(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "very-secret-4711")
    monkeypatch.setenv("MY_SETTING", "harmless-0815")
    text = json.dumps(facts_of.system_facts(1))
    assert "very-secret-4711" not in text and "harmless-0815" not in text


@pytest.mark.parametrize("flags, level", [
    ("avx512f avx512vl avx512bw avx512dq avx2 fma", "avx512"), ("avx512f avx2 fma", "avx2"),
    ("avx2", "plain C"), ("asimd", "neon"), ("", "plain C")])
def test_the_vector_level_is_the_widest_that_the_kernels_have(flags, level):
    assert vector_level({*flags.split()}) == level


def test_without_the_extension_there_is_no_level_and_no_file(monkeypatch):
    monkeypatch.setattr(facts_of.installation, "extension_file", lambda: None)
    monkeypatch.setattr(kernels, "COMPILED", False)
    assert system_facts(1)["kernels"] == {
        "backend": "numba", "file": None, "simd": None, "workers": False}


@pytest.mark.parametrize("build, driver, said", [
    (None, True, "without CUDA"), ("12.8", False, "there is no NVIDIA driver"),
    ("12.8", True, "shows this process no GPU")])
def test_why_there_is_no_device_is_said(monkeypatch, tmp_path, build, driver, said):
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(limits, "DRIVER", tmp_path if driver else tmp_path / "none")
    found = system_facts(1)["torch"]
    assert (found["cuda"], found["devices"]) == (build, 0) and said in found["no_device"]


def test_with_a_device_there_is_no_reason(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = system_facts(1)["torch"]
    assert found["devices"] == 2 and found["no_device"] is None


def test_sizes_without_a_limit_are_none():
    assert finite(9223372036854771712) is None and finite(2**63) is None and finite(5) == 5
