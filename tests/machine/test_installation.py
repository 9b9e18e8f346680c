"""What is installed: the clone and its commit, the compiled extension, packages and extras."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from fastppo.machine import installation
from fastppo.machine.installation import (
    Problem,
    clone_problems,
    commit_of,
    editable_folder,
    extension_problems,
    missing_packages_fix,
    source_folder,
    tilde,
)
from fastppo.machine.requirements import Package, needed_packages

ROOT = Path(__file__).parents[2]


class Installed:
    """A distribution, as importlib.metadata has it."""

    def __init__(self, origin: dict):
        self.origin = origin

    def read_text(self, name):
        return json.dumps(self.origin) if name == "direct_url.json" else None


@pytest.fixture
def clone(tmp_path):
    """A folder that looks like a clone of fastppo."""
    (tmp_path / "clone" / "csrc").mkdir(parents=True)
    (tmp_path / "clone" / "fastppo").mkdir()
    (tmp_path / "clone" / "pyproject.toml").write_text("")
    return tmp_path / "clone"


def test_a_clone_has_the_sources_beside_the_package(clone, tmp_path):
    assert source_folder(clone / "fastppo") == clone
    assert source_folder(tmp_path / "site-packages" / "fastppo") is None
    assert source_folder() == ROOT


def test_packages_that_make_has_installed_are_there_after_an_activation(clone, monkeypatch):
    assert missing_packages_fix(clone / "fastppo") == "make train, or pip install -e ."
    (clone / ".venv").mkdir()
    (clone / ".venv/installed-debug").touch()
    assert missing_packages_fix(clone / "fastppo") == f"source {clone}/.venv/bin/activate"
    monkeypatch.setattr(sys, "prefix", str(clone / ".venv"))
    assert missing_packages_fix(clone / "fastppo").startswith("make train")


def test_the_commit_is_gits_and_says_if_files_differ(clone):
    def git(*words):
        return subprocess.run(["git", "-C", clone, "-c", "user.name=a", "-c", "user.email=b@c",
                               *words], check=True, capture_output=True, text=True).stdout
    assert commit_of(clone) is commit_of(None) is None
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    git("tag", "v9")
    commit = git("rev-parse", "HEAD")[:12]
    assert commit_of(clone) == commit
    (clone / "pyproject.toml").write_text("changed")
    assert commit_of(clone) == f"{commit}-dirty"


def test_without_git_there_is_no_commit(clone, monkeypatch):
    (clone / ".git").mkdir()
    assert commit_of(clone) is None  # no repository

    def missing(*_, **__):
        raise FileNotFoundError("git")
    monkeypatch.setattr(installation.subprocess, "run", missing)
    assert commit_of(clone) is None


@pytest.mark.parametrize("origin, wanted", [
    ({"dir_info": {"editable": True}, "url": "file:///a/my%20clone"}, Path("/a/my clone")),
    ({"dir_info": {}, "url": "file:///a/clone"}, None), ({}, None)])
def test_an_editable_installation_is_known_by_its_folder(monkeypatch, origin, wanted):
    found = [Installed({}), Installed(origin)]  # the first is a folder fastppo.egg-info
    monkeypatch.setattr(metadata, "distributions", lambda name: found)
    assert editable_folder() == wanted


def test_a_clone_that_is_not_what_is_installed_is_a_problem(clone, monkeypatch):
    monkeypatch.setattr(installation, "editable_folder", lambda: clone)
    assert clone_problems(clone) == clone_problems(None) == []
    monkeypatch.setattr(installation, "editable_folder", lambda: clone.parent)
    problem, = clone_problems(clone)
    assert f"is the clone {clone.parent}" in problem.what and problem.fix.endswith("install -e .")
    monkeypatch.setattr(installation, "editable_folder", lambda: None)
    assert "not installed in editable mode" in clone_problems(clone)[0].what


def test_a_missing_extension_and_one_of_another_python_are_told_apart(clone, monkeypatch):
    package = clone / "fastppo"
    monkeypatch.setattr(installation, "extension_file", lambda: None)
    assert extension_problems(package) == [Problem(
        "there is no compiled extension: one process only, and slower", installation.BUILD)]
    (package / "_kernels.cpython-38-x86_64-linux-gnu.so").write_text("")
    problem, = extension_problems(package)
    assert problem.what.endswith("is of another Python: _kernels.cpython-38-x86_64-linux-gnu.so")
    monkeypatch.setattr(installation, "extension_file", lambda: package / "_kernels.so")
    assert extension_problems(package) == []


def test_the_home_folder_is_a_tilde(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    assert tilde("/home/me/x") == "~/x" and tilde("/home/me2/x") == "/home/me2/x"


# requirements

def test_the_packages_are_those_of_the_installed_distribution(monkeypatch):
    texts = ["torch>=2.6", "numpy>=1.26", 'wandb>=0.19; extra == "wandb"',
             'swig; extra == "far" and sys_platform == "nowhere"']
    monkeypatch.setattr(metadata, "requires", lambda name: texts)
    monkeypatch.setattr(metadata, "version", lambda name: "2.7")
    assert needed_packages() == {
        "": [Package("torch", ">=2.6", "2.7"), Package("numpy", ">=1.26", "2.7")],
        "wandb": [Package("wandb", ">=0.19", "2.7")]}


def test_without_any_installation_nothing_is_known_to_be_needed(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)
    monkeypatch.setattr(metadata, "requires", missing)
    assert needed_packages() == {}


@pytest.mark.parametrize("wanted, version, fits", [
    (">=2.6", "2.13.0+cpu", True), (">=2.6", "2.5.1", False), ("<2,>=1.2.3", "1.4.0", True),
    ("==2.3.10", "2.3.8", False), ("", "0.1", True), (">=1", None, False),
    (">=2.6", "2.7.0.dev1", True)])
def test_a_version_fits_if_the_requirement_has_it(wanted, version, fits):
    assert Package("x", wanted, version).fits is fits
