"""The sink for trackio, Hugging Face's tracker without an account."""

from pathlib import Path

from fastppo.config import Config
from fastppo.loggers.background import MediaTracker, NamedRunSink
from fastppo.machine.child_process import public_config


class TrackioSink(NamedRunSink):
    """Logs to trackio's database, in TRACKIO_DIR or the user's cache; `trackio show` shows it."""

    name = "trackio"

    def __init__(self, config: Config, folder: Path, step: int | None = None):
        super().__init__(config, folder, step)
        self.state = f"{folder.absolute().name}-{self.state}"

    def start(self) -> MediaTracker:
        """The run of trackio's; it measures no hardware and opens no dashboard.

        A resumed run repeats the steps after its checkpoint, bit for bit; trackio would keep both.
        """
        import trackio
        from trackio.sqlite_storage import SQLiteStorage
        config = self.config
        run = trackio.init(
            project=config.wandb_project, name=self.state, group=config.wandb_group,
            config=public_config(config), resume="allow", embed=False, auto_log_gpu=False,
            auto_log_cpu=False)
        return MediaTracker(trackio, run, SQLiteStorage.get_max_step_for_run(
            run.project, run.name, run_id=run.id))
