"""The sink for Weights & Biases; it runs in a thread and never stops a run."""

import importlib.util
import os
import queue
import secrets
import sys
import threading
from pathlib import Path
from typing import Any

from fastppo.display.notes import note
from fastppo.errors import ConfigError
from fastppo.settings.fixes import Install
from fastppo.settings.metric_names import GLOBAL_STEP

QUEUE_LIMIT = 10_000  # iterations that may wait to be logged
FINISH_SECONDS = 10.0  # for the last rows when the run has ended


class WandbSink:
    """A sink for wandb: online with an account, offline without; `config` is stored with the run.

    `hung` is True after close() if wandb did not finish; its thread ends with the process. The
    `state`, which a checkpoint holds, is the id of wandb's run, which a resumed run goes on with.
    """

    def __init__(self, project: str, folder: Path, config: dict[str, Any]):
        self.hung, self.full, self.patience = False, False, FINISH_SECONDS
        self.rows: queue.SimpleQueue = queue.SimpleQueue()
        self.state = secrets.token_hex(4)
        self.thread = threading.Thread(target=self._log_rows, args=(project, folder, config),
                                       name="wandb", daemon=True)

    def restore(self, state: str) -> None:
        """Goes on with the run of wandb's that has this id, before the first row."""
        self.state = str(state)

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Puts one iteration into the queue of the thread; drops it if QUEUE_LIMIT rows wait."""
        if self.thread.ident is None:
            self.thread.start()
        if self.rows.qsize() < QUEUE_LIMIT:
            self.rows.put((ppo.step, {GLOBAL_STEP: ppo.step, **stats}))
        elif not self.full and self.thread.is_alive():
            self.full = True
            note("wandb does not keep up and misses some iterations; metrics.csv has them all")

    def close(self) -> None:
        """Waits up to `patience` seconds for the last rows."""
        if self.thread.ident is None:
            return
        self.rows.put(None)
        self.thread.join(self.patience)
        if self.thread.is_alive():
            self.hung = True
            note(f"wandb did not finish within {self.patience:g} s; the run ends without it")

    def _log_rows(self, project: str, folder: Path, config: dict[str, Any]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            run = start_run(project, folder, config, self.state)
            while (row := self.rows.get()) is not None:
                run.log(row[1], step=row[0])
            run.finish()
        except BaseException as error:  # also SystemExit: a run never fails because of wandb
            note(f"wandb: {_first_line(error)}; going on without it")


def start_run(project: str, folder: Path, config: dict[str, Any], name: str):
    """The run of wandb's with the id `name`: online, else offline.

    Raises what wandb raises if neither works.
    """
    import wandb
    chosen = os.environ.get("WANDB_MODE")
    mode = chosen or ("online" if _is_logged_in(wandb) else "offline")
    if mode == "offline":
        later = "wandb login && " * (not chosen) + f"wandb sync {folder}/wandb/offline-run-*"
        note(f"wandb: {'WANDB_MODE is offline' if chosen else 'not logged in'}; writing to"
             f" {folder}/wandb (later: {later})")
    arguments = {"project": project, "dir": str(folder), "name": folder.name or None,
                 "id": name, "resume": "allow", "config": config, "settings": wandb.Settings(
                     console="off", silent=True, save_code=False, disable_git=True,
                     init_timeout=20)}
    try:
        run = wandb.init(mode=mode, **arguments)
    except Exception as error:  # no network, a wrong key, a full disk
        if mode == "offline":
            raise
        note(f"wandb: {_first_line(error)}; going on offline")
        return wandb.init(mode="offline", **arguments)
    if mode == "online" and getattr(run, "url", None):
        note(f"wandb: {run.url}")
    return run


def check_wandb() -> None:
    """Raises ConfigError if wandb is not installed; a folder that its runs leave is no package."""
    if sys.modules.get("wandb") is not None:
        return
    spec = importlib.util.find_spec("wandb")
    if spec is None or spec.origin is None:
        raise ConfigError('logger="wandb" needs the package wandb, which is not installed',
                          Install("wandb"))


def _is_logged_in(wandb) -> bool:
    wandb.setup(wandb.Settings(silent=True))
    try:
        return bool(wandb.login(prompt=False, verify=False))
    except TypeError:  # an older version, whose login would ask on the terminal
        return bool(wandb.api.api_key)


def _first_line(error: BaseException) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
