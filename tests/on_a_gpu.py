"""What tests on a GPU share: an error where the CPU waits for it, and processes of their own."""

import os
import subprocess
import sys
import warnings
from contextlib import contextmanager

import torch
from source_tree import ROOT


@contextmanager
def no_wait_for_the_gpu():
    """An operation inside that waits for the GPU raises a RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        _set_mode("error")
        yield
    finally:
        _set_mode(before)


def _set_mode(mode):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode(mode)


def output_alone(module, function):
    """What a process of its own prints that calls a function of a test module, without arguments.

    After a capture has failed, torch's allocator refuses others in that process.
    """
    code = "import pretend_gpu as gpu; gpu.install(); " if "pretend_gpu" in sys.modules else ""
    code += f"from {module} import {function}; {function}()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
                          env=os.environ | {"PYTHONPATH": os.pathsep.join(
                              map(str, (ROOT, ROOT / "tests")))})
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
