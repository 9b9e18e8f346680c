"""The sink for Weights & Biases; it runs in a thread and never stops a run."""

import importlib.util
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

from fastppo.errors import ConfigError
from fastppo.outputs.console import note

QUEUE_LIMIT = 10_000  # iterations that may wait to be logged
FINISH_SECONDS = 10.0  # for the rest of them to go out when the run has ended


class WandbSink:
    """A sink for wandb: online with an account, offline without; `config` is stored with the run.

    `hung` says after close() that wandb did not come to an end; its thread dies with the process.
    """

    def __init__(self, project: str, folder: Path, config: dict[str, Any]):
        self.hung, self.full = False, False
        self.rows: queue.SimpleQueue = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._live, args=(project, folder, config),
                                       name="wandb", daemon=True)
        self.thread.start()

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Put one iteration in the queue; where that is too long, it is left out."""
        if self.rows.qsize() < QUEUE_LIMIT:
            self.rows.put((ppo.step, {"global_step": ppo.step, **stats}))
        elif not self.full and self.thread.is_alive():
            self.full = True
            note("wandb does not keep up and misses some iterations; metrics.csv has them all")

    def close(self) -> None:
        """Wait for the last rows to go out, not for ever."""
        self.rows.put(None)
        self.thread.join(FINISH_SECONDS)
        if self.thread.is_alive():
            self.hung = True
            note(f"wandb did not finish within {FINISH_SECONDS:g} s and was left behind")

    def _live(self, project: str, folder: Path, config: dict[str, Any]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            run = start_run(project, folder, config)
            while (row := self.rows.get()) is not None:
                run.log(row[1], step=row[0])
            run.finish()
        except BaseException as error:  # SystemExit too: wandb is a guest here
            note(f"wandb: {_short(error)}; going on without it")


def start_run(project: str, folder: Path, config: dict[str, Any]):
    """A run of wandb's: online, else offline; raises what wandb raises where neither can be."""
    import wandb
    asked = os.environ.get("WANDB_MODE")
    mode = asked or ("online" if _account(wandb) else "offline")
    if mode == "offline":
        later = "wandb login && " * (not asked) + f"wandb sync {folder}/wandb/offline-run-*"
        note(f"wandb: {'WANDB_MODE is offline' if asked else 'not logged in'}; writing to"
             f" {folder}/wandb (later: {later})")
    given = {"project": project, "dir": str(folder), "name": folder.name or None, "config": config,
             "settings": wandb.Settings(console="off", silent=True, save_code=False,
                                        disable_git=True, init_timeout=20)}
    try:
        run = wandb.init(mode=mode, **given)
    except Exception as error:  # no network, a wrong key, a full disk
        if mode == "offline":
            raise
        note(f"wandb: {_short(error)}; going on offline")
        return wandb.init(mode="offline", **given)
    if mode == "online" and getattr(run, "url", None):
        note(f"wandb: {run.url}")
    return run


def check_wandb() -> None:
    """Raise ConfigError where there is no package wandb, just perhaps the folder its runs leave."""
    if sys.modules.get("wandb") is not None:
        return
    spec = importlib.util.find_spec("wandb")
    if spec is None or spec.origin is None:
        raise ConfigError("--logger=wandb needs the package wandb, which is not installed",
                          'pip install "fastppo[wandb]"')


def _account(wandb) -> bool:
    wandb.setup(wandb.Settings(silent=True))
    try:
        return bool(wandb.login(prompt=False, verify=False))
    except TypeError:  # an older version, whose login would ask on the terminal
        return bool(wandb.api.api_key)


def _short(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
