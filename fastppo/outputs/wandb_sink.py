"""The sink for Weights & Biases."""

import os
import secrets
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from fastppo.config import Config
from fastppo.display.notes import note
from fastppo.errors import ConfigError
from fastppo.files.run_folder import public_config
from fastppo.outputs.background_sink import BackgroundSink, error_line, with_media

CONNECT_SECONDS = 1.5
MODES = "online", "offline", "shared", "disabled", "dryrun", "run"  # of WANDB_MODE


class WandbSink(BackgroundSink):
    """Logs to wandb: online with an account, offline without; the Config is stored with the run.

    The `state`, which a checkpoint holds, is the id of wandb's run, which a resumed run goes on
    with. wandb drops the rows of steps that it has already.
    """

    name = "wandb"

    def __init__(self, config: Config, folder: Path, step: int | None = None):
        super().__init__()
        self.config, self.folder, self.state = config, folder, secrets.token_hex(4)

    def restore(self, state: str) -> None:
        """Goes on with the run of wandb's that has this id, before the first row."""
        self.state = str(state)

    def start(self) -> "WandbRun":
        """The run of wandb's: online, else offline; raises what wandb raises if neither works."""
        import wandb
        config, folder = self.config, self.folder
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(console="off", silent=True, save_code=False, disable_git=True,
                                  init_timeout=20)
        return WandbRun(wandb, start_run(wandb, folder, dict(
            project=config.wandb_project, entity=config.wandb_entity, group=config.wandb_group,
            tags=config.wandb_tags, dir=str(folder), name=folder.name or None, id=self.state,
            resume="allow", config=public_config(config), settings=settings)))


class WandbRun:
    """A run of wandb's, which gets histograms and videos as its own."""

    def __init__(self, wandb: Any, run: Any):
        self.wandb, self.run = wandb, run

    def log(self, row: dict[str, Any], step: int) -> None:
        """Logs what belongs to a step."""
        self.run.log(with_media(row, self.wandb), step=step)

    def finish(self) -> None:
        """Waits until everything is sent, or written."""
        self.run.finish()


def start_run(wandb, folder: Path, arguments: dict[str, Any]) -> Any:
    """The run that wandb.init makes of `arguments`; notes say where it is."""
    chosen = os.environ.get("WANDB_MODE")
    if chosen and chosen not in MODES:  # wandb would read it again where it is told offline
        raise ConfigError(f"WANDB_MODE is {chosen!r}, but must be one of {', '.join(MODES)}")
    mode = chosen or ("online" if _is_logged_in(wandb) else "offline")
    if mode == "online" and not chosen and (missing := unreachable_server()):
        mode = "offline"
        note(f"wandb: {missing} cannot be reached; going on offline (later: wandb sync"
             f" {folder}/wandb/offline-run-*)")
    elif mode == "offline":
        later = "wandb login && " * (not chosen) + f"wandb sync {folder}/wandb/offline-run-*"
        note(f"wandb: {'WANDB_MODE is offline' if chosen else 'not logged in'}; writing to"
             f" {folder}/wandb (later: {later})")
    try:
        run = wandb.init(mode=mode, **arguments)
    except Exception as error:  # no network, a wrong key, a full disk
        if mode == "offline":
            raise
        note(f"wandb: {error_line(error)}; going on offline")
        return wandb.init(mode="offline", **arguments)
    if mode == "online" and getattr(run, "url", None):
        note(f"wandb: {run.url}")
    return run


def unreachable_server() -> str:
    """The host of wandb's server if it takes no connection; "" if it does, or behind a proxy.

    wandb itself would try for a minute, and could not start offline after that.
    """
    url = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    host, port = url.hostname or "", url.port or (80 if url.scheme == "http" else 443)
    if getproxies():
        return ""
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError:
        return host
    return ""


def _is_logged_in(wandb) -> bool:
    wandb.setup(wandb.Settings(silent=True))
    try:
        return bool(wandb.login(prompt=False, verify=False))
    except TypeError:  # an older version, whose login would ask on the terminal
        return bool(wandb.api.api_key)
