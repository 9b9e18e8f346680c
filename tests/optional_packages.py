"""Marks of tests that need what not every machine has: some packages, our compiled extension."""

import importlib.util

import pytest


def needs(package: str):
    """The mark that skips a test where a package is not installed."""
    return pytest.mark.skipif(not importlib.util.find_spec(package), reason=f"needs {package}")


NEEDS_ALE, NEEDS_BOX2D, NEEDS_MUJOCO = map(needs, ("ale_py", "Box2D", "mujoco"))
NEEDS_EXTENSION = needs("fastppo._kernels")
