"""Records episodes of a policy as a video, or as the last picture alone.

.mp4   with imageio-ffmpeg
.webp  an animated WebP, with Pillow
.png   the last picture

While training a sink records an episode at an interval. It does not change a bit of training: it
has its own environment and seeds, and only reads the policy.
"""

import collections
import contextlib
import importlib.util
import io
from itertools import islice
from pathlib import Path
from typing import Any, Callable, ContextManager, Iterator

from PIL import Image

from fastppo.config import Config
from fastppo.envs.make import EnvFactory
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError, Error, Install, Set
from fastppo.evaluation.evaluator import crosses
from fastppo.machine.file_access import check_output, replaced
from fastppo.machine.stderr import error_line, note
from fastppo.policy import Policy
from fastppo.settings.known_names import VIDEO
from fastppo.video.frames import (
    FRAMES,
    FramePainter,
    View,
    WatchedMoment,
    watched_env,
    watched_moments,
)

VIDEO_FORMATS = ".mp4", ".webp"
STILL_FORMAT = ".png"
SHARPNESS = 7  # of mp4, 1 to 10: text stays legible
WEBP_QUALITY, WEBP_METHOD = 75, 2  # 0 to 100; 0, the fastest, to 6
FRAME_LIMIT = 10_000  # pictures of a video, unless its caller gives another number
VIDEO_FRAMES = 1_000  # pictures of a video that is recorded while training
Writer = Callable[[Image.Image], None]


def best_format() -> str:
    """The ending of the better format that can be written here: .mp4, or .webp without ffmpeg."""
    return VIDEO_FORMATS[0] if importlib.util.find_spec("imageio_ffmpeg") else VIDEO_FORMATS[1]


def check_video_path(path: Path) -> None:
    """Raises ConfigError if no video can be written to `path`."""
    check_output(path, (*VIDEO_FORMATS, STILL_FORMAT))
    if path.suffix.lower() == ".mp4" and best_format() != ".mp4":
        raise ConfigError("mp4 files need imageio-ffmpeg, which is not installed",
                          (Install("video"), Set(output=str(path.with_suffix(best_format())))))


@contextlib.contextmanager
def video_file(path: Path, fps: float) -> Iterator[Writer]:
    """A function that appends an RGB picture to the video at `path`; all have the same even size.

    The file is there at the end of the block, complete, with what was there before replaced; after
    an error or an interrupt nothing is changed. Raises ConfigError if it cannot be written.
    """
    check_video_path(path)
    write = {".mp4": _write_mp4, ".webp": _write_webp, ".png": _write_last}[path.suffix.lower()]
    try:
        with replaced(path) as part:
            part.touch()  # an error now, not after an episode
            with write(part, fps) as append:
                yield append
    except OSError as error:
        reason = error.strerror or str(error).partition("\n")[0]
        raise ConfigError(f"cannot write {path}: {reason}",
                          "give a file in a folder that exists, on a disk with free space"
                          ) from error


@contextlib.contextmanager
def _write_mp4(path: Path, fps: float) -> Iterator[Writer]:
    """Appends pictures to a H.264 file, encoded by a process that ends with the block."""
    import imageio_ffmpeg
    encoder, count = None, 0

    def append(image: Image.Image) -> None:
        nonlocal encoder, count
        if encoder is None:
            encoder = imageio_ffmpeg.write_frames(
                path, image.size, fps=fps, codec="libx264", quality=SHARPNESS, macro_block_size=2,
                ffmpeg_log_level="error", output_params=["-movflags", "+faststart"])
            encoder.send(None)
        encoder.send(image.tobytes())
        count += 1

    try:
        yield append
    finally:
        if encoder is not None:
            encoder.close()
    if imageio_ffmpeg.count_frames_and_secs(path)[0] != count:
        raise OSError("ffmpeg has not written all frames")


@contextlib.contextmanager
def _write_webp(path: Path, fps: float) -> Iterator[Writer]:
    """Collects packed pictures, and encodes them at the end of the block."""
    frames = PackedFrames()
    yield frames.append
    frames.seek(0)
    frames.save(path, "WEBP", save_all=True, duration=1000 / fps, quality=WEBP_QUALITY,
                method=WEBP_METHOD)


@contextlib.contextmanager
def _write_last(path: Path, _: float) -> Iterator[Writer]:
    """Writes the last picture at the end of the block."""
    last: collections.deque[Image.Image] = collections.deque(maxlen=1)
    yield last.append
    last[0].save(path, "PNG")


class PackedFrames(Image.Image):
    """Pictures, packed as PNG, as one image of several frames, of which one is unpacked.

    Pillow takes the frames of an animation from such an image; a list would hold them unpacked.
    """

    def __init__(self):
        super().__init__()
        self.packed: list[io.BytesIO] = []

    def append(self, image: Image.Image) -> None:
        """Adds a frame behind the last one."""
        self.packed.append(io.BytesIO())
        image.save(self.packed[-1], "PNG", compress_level=1)

    @property
    def n_frames(self) -> int:
        """The number of frames."""
        return len(self.packed)

    def seek(self, frame: int) -> None:
        """Reads a frame, counted from 0."""
        image = Image.open(self.packed[frame])
        image.load()
        self.im, self._mode, self._size, self.frame = image.im, image.mode, image.size, frame

    def tell(self) -> int:
        """The frame that is in memory."""
        return self.frame


def record_video(policy: Policy, factory: EnvFactory, path: Path, seed: int = 0, episodes: int = 1,
                 deterministic: bool = True, view: View | None = "env", caption: bool = True,
                 fps: float | None = None,
                 report: Callable[[WatchedMoment], Any] = lambda moment: None,
                 frames: int | None = None,
                 encoding: Callable[[], ContextManager] = contextlib.nullcontext) -> Path:
    """Writes a video of episodes to `path`, a .mp4 or .webp file, and returns the path.

    They are the episodes of `evaluate` with the same `seed`, in an environment of `factory` made
    with render_mode="rgb_array", except for the view "network" (None: that where no frames are
    drawn, else "env"); a frame for each observation, at most `frames` (None: FRAME_LIMIT). `fps`:
    frames per second, None for the environment's own rate. `report` is called for every frame, and
    ends the video if it returns True; `encoding` is a block around what follows the last frame.
    Raises ConfigError if the environment does not render, or if the file cannot be written;
    EnvError if the environment fails.
    """
    with contextlib.ExitStack() as stack:
        mode = None if view == "network" else FRAMES
        envs = stack.enter_context(watched_env(policy, factory, seed, mode, view is not None))
        view = view or ("env" if envs.envs[0].render_mode == FRAMES else "network")
        painter = FramePainter(envs, factory.name, view, caption)
        fps = fps or float(envs.envs[0].metadata.get("render_fps") or 30)
        append = stack.enter_context(video_file(path, fps))
        for moment in islice(watched_moments(envs, episodes, deterministic),
                             FRAME_LIMIT if frames is None else frames):
            append(painter.paint(moment))
            if report(moment):
                break
        with encoding():
            stack.close()
    return path


class VideoRecorder:
    """Records the first episode of an evaluation every `video_interval` steps of training.

    The files are videos/step-000123456.mp4 or .webp in the run's folder, named after the step at
    which the iteration ended. If one fails, a note says so, and no more notes follow until one
    works; training goes on. Raises ConfigError without a folder, or for an environment that cannot
    be made a second time.
    """

    def __init__(self, config: Config, source: EnvSource):
        self.interval, self.folder = config.video_interval, Path(config.run_dir or ".") / "videos"
        self.failed = False

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Records, if it is due; then calls on_video of the others, and updates time/... ."""
        if not crosses(self.interval, ppo.progress.begin, ppo.step):
            return
        path = None
        with ppo.clock(VIDEO):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                path = record_episode(ppo, self.folder / f"step-{ppo.step:09d}{best_format()}")
            except Exception as error:  # renderers and encoders may raise anything
                if not self.failed:
                    why = error.what.partition("\n")[0] if isinstance(error, Error) \
                        else error_line(error)
                    note(f"the video at step {ppo.step:,} failed, and training goes on: {why}")
        self.failed = path is None
        stats |= ppo.clock.stats(ppo.step)
        if path is not None:
            for method in ppo.hooks.video:
                method(ppo, path)

    def close(self) -> None:
        """No environment is open between two videos."""


def record_episode(ppo, path: Path) -> Path:
    """Records the first episode of an evaluation of `ppo`, at most VIDEO_FRAMES; returns `path`.

    Of an environment that draws no frames it is the network's view.
    """
    return record_video(ppo.policy, ppo.source.evaluation_factories()[0], path, ppo.config.seed,
                        view=None, frames=VIDEO_FRAMES)
