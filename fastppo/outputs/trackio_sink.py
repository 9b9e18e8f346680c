"""The sink for trackio, Hugging Face's tracker without an account."""

import secrets
from pathlib import Path
from typing import Any

from fastppo.config import Config
from fastppo.files.run_folder import public_config
from fastppo.outputs.background_sink import BackgroundSink, with_media


class TrackioSink(BackgroundSink):
    """Logs to trackio's database, in TRACKIO_DIR or the user's cache; `trackio show` shows it.

    The `state`, which a checkpoint holds, is the name of trackio's run, which a resumed run goes on
    with.
    """

    name = "trackio"

    def __init__(self, config: Config, folder: Path, step: int | None = None):
        super().__init__()
        self.config = config
        self.state = f"{folder.absolute().name}-{secrets.token_hex(2)}"

    def restore(self, state: str) -> None:
        """Goes on with the run of trackio's that has this name, before the first row."""
        self.state = str(state)

    def start(self) -> "TrackioRun":
        """The run of trackio's; it measures no hardware and opens no dashboard."""
        import trackio
        config = self.config
        return TrackioRun(trackio, trackio.init(
            project=config.wandb_project, name=self.state, group=config.wandb_group,
            config=public_config(config), resume="allow", embed=False, auto_log_gpu=False,
            auto_log_cpu=False))


class TrackioRun:
    """A run of trackio's without the rows that it has already; trackio would keep both.

    A resumed run repeats the steps after its checkpoint, bit for bit.
    """

    def __init__(self, trackio: Any, run: Any):
        from trackio.sqlite_storage import SQLiteStorage
        self.trackio, self.run = trackio, run
        self.last = SQLiteStorage.get_max_step_for_run(run.project, run.name, run_id=run.id)

    def log(self, row: dict[str, Any], step: int) -> None:
        """Logs what belongs to a step that is new."""
        if self.last is None or step > self.last:
            self.run.log(with_media(row, self.trackio), step=step)

    def finish(self) -> None:
        """Waits until everything is in the database."""
        self.run.finish()
