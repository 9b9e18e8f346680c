"""What tests on a GPU share: an error where the CPU waits for it."""

import warnings
from contextlib import contextmanager

import torch


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
