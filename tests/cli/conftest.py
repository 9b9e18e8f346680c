"""What every test of the command has: its name, and an empty working directory."""

import sys

import pytest


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The command was started as main.py, in the test's own folder, 80 columns wide."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "argv", ["main.py"])
    monkeypatch.chdir(tmp_path)
