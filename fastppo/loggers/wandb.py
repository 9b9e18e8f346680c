"""The sink for Weights & Biases."""

import os

from fastppo.loggers.background import MediaTracker, NamedRunSink
from fastppo.machine.child_process import public_config
from fastppo.machine.stderr import error_line, note


class WandbSink(NamedRunSink):
    """Logs to wandb: online with an account, offline without; the Config is stored with the run.

    The `state` is the id of wandb's run. wandb drops the rows of steps that it has already.
    """

    name = "wandb"

    def start(self) -> MediaTracker:
        """The run of wandb's, in WANDB_MODE, else online with an account, else offline.

        Notes say where it is. Raises what wandb raises if neither works.
        """
        import wandb
        config, folder = self.config, self.folder
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(console="off", silent=True, save_code=False, disable_git=True,
                                  init_timeout=20)
        arguments = dict(
            project=config.wandb_project, entity=config.wandb_entity, group=config.wandb_group,
            tags=config.wandb_tags, dir=str(folder), name=folder.name or None, id=self.state,
            resume="allow", config=public_config(config), settings=settings)
        wandb.setup(wandb.Settings(silent=True))
        mode = os.environ.get("WANDB_MODE") or (
            "online" if wandb.login(prompt=False, verify=False) else "offline")
        if mode == "offline":
            note(f"wandb: offline, writing to {folder}/wandb (later: wandb login && wandb sync"
                 f" {folder}/wandb/offline-run-*)")
        try:
            run = wandb.init(mode=mode, **arguments)
        except Exception as error:  # no network, a wrong key, a full disk
            if mode == "offline":
                raise
            note(f"wandb: {error_line(error)}; going on offline")
            run, mode = wandb.init(mode="offline", **arguments), "offline"
        if mode == "online" and getattr(run, "url", None):
            note(f"wandb: {run.url}")
        return MediaTracker(wandb, run)
