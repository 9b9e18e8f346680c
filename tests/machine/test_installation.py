"""What is installed: the clone and its commit, the compiled extension, packages and extras."""

import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from fastppo.machine import installation
from fastppo.machine.installation import commit_of, needed_packages, tilde


@pytest.fixture
def clone(tmp_path):
    """A folder that looks like a clone of fastppo."""
    (tmp_path / "clone" / "csrc").mkdir(parents=True)
    (tmp_path / "clone" / "fastppo").mkdir()
    (tmp_path / "clone" / "pyproject.toml").write_text("")
    return tmp_path / "clone"


def test_the_commit_is_gits_and_says_if_files_differ(clone):
    def git(*words):
        return subprocess.run(["git", "-C", clone, "-c", "user.name=a", "-c", "user.email=b@c",
                               *words], check=True, capture_output=True, text=True).stdout
    assert commit_of(clone) is None
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


def test_the_home_folder_is_a_tilde(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    assert tilde("/home/me/x") == "~/x" and tilde("/home/me2/x") == "/home/me2/x"


# requirements

def test_the_packages_are_those_of_the_installed_distribution(monkeypatch):
    texts = ["torch>=2.6", "numpy>=1.26", 'wandb>=0.19; extra == "wandb"',
             'swig; extra == "far" and sys_platform == "nowhere"']
    monkeypatch.setattr(metadata, "requires", lambda name: texts)
    monkeypatch.setattr(metadata, "version", lambda name: "2.7")
    found = {extra: [(str(wanted.specifier), version) for wanted, version in packages]
             for extra, packages in needed_packages().items()}
    assert found == {"": [(">=2.6", "2.7"), (">=1.26", "2.7")], "wandb": [(">=0.19", "2.7")]}


def test_without_any_installation_nothing_is_known_to_be_needed(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)
    monkeypatch.setattr(metadata, "requires", missing)
    assert needed_packages() == {}
