"""Videos while training: a sink that records an episode at an interval.

It does not change a bit of training: it has its own environment and seeds, and only reads the
policy. The others learn of a video by on_video, see callbacks.py.
"""

from pathlib import Path

from fastppo.config import Config
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError, Error, Set
from fastppo.evaluation.evaluator import crosses
from fastppo.machine.stderr import error_line, note
from fastppo.settings.known_names import VIDEO
from fastppo.video.video import best_format, record_video

VIDEO_FRAMES = 1_000  # at most


class VideoRecorder:
    """Records the first episode of an evaluation every `video_interval` steps of training.

    The files are videos/step-000123456.mp4 or .webp in the run's folder, named after the step at
    which the iteration ended. If one fails, a note says so, and no more notes follow until one
    works; training goes on. Raises ConfigError without a folder, or for an environment that cannot
    be made a second time.
    """

    def __init__(self, config: Config, source: EnvSource):
        if config.run_dir is None:
            raise ConfigError("video_interval writes into the run's folder, and run_dir is None",
                              (Set(run_dir="runs/my_run"), Set(video_interval=None)))
        source.evaluation_factories()
        self.interval, self.folder = config.video_interval, Path(config.run_dir) / "videos"
        self.failed = False

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Records, if it is due; then calls on_video of the others, and updates time/... ."""
        if not crosses(self.interval, ppo.progress.begin, ppo.step):
            return
        with ppo.clock(VIDEO):
            path = self._record(ppo)
        stats |= ppo.clock.stats(ppo.step)
        if path is not None:
            for method in ppo.hooks.video:
                method(ppo, path)

    def close(self) -> None:
        """No environment is open between two videos."""

    def _record(self, ppo) -> Path | None:
        """Records an episode, and returns the file; None if that failed."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            path = record_episode(ppo, self.folder / f"step-{ppo.step:09d}{best_format()}")
        except Exception as error:  # renderers and encoders may raise anything
            if not self.failed:
                why = error.what.partition("\n")[0] if isinstance(error, Error) \
                    else error_line(error)
                note(f"the video at step {ppo.step:,} failed, and training goes on: {why}")
            self.failed = True
            return None
        self.failed = False
        return path


def record_episode(ppo, path: Path) -> Path:
    """Records the first episode of an evaluation of `ppo`, at most VIDEO_FRAMES; returns `path`."""
    return record_video(ppo.policy, ppo.source.evaluation_factories()[0], path, ppo.config.seed,
                        frames=VIDEO_FRAMES)
