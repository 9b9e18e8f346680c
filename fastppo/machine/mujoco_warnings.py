"""The warnings that MuJoCo gives while it compiles a model, each once in a process."""

import functools
import importlib
import importlib.util
import logging
import sys
from contextlib import contextmanager
from typing import Iterator

log = logging.getLogger("fastppo")


@contextmanager
def mujoco_warnings_once(used: bool) -> Iterator[None]:
    """Logs each of MuJoCo's warnings in the block once in this process, in place of printing all.

    Without this every environment prints them, and they go to a file MUJOCO_LOG.TXT. `used`: the
    block imports mujoco if it is installed; otherwise it must have been imported before.
    """
    if used and importlib.util.find_spec("mujoco"):
        importlib.import_module("mujoco")
    mujoco = sys.modules.get("mujoco")
    if not hasattr(mujoco, "set_mju_user_warning"):
        yield
        return
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(_log_once)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


@functools.cache
def _log_once(text: str) -> None:
    log.warning("MuJoCo: %s", text)
