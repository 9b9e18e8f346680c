"""The logger for TensorBoard, which shows a video as a small animated GIF."""

import io
import json
import subprocess
from pathlib import Path
from typing import Any

from PIL import Image, ImageSequence

from fastppo.config import Config
from fastppo.loggers.background import BackgroundSink
from fastppo.machine.child_process import public_config
from fastppo.settings.known_names import GLOBAL_STEP
from fastppo.trainer.metrics import Histogram

GIF_HEIGHT, GIF_FRAMES = 240, 150  # at most


def as_gif(path: Path) -> tuple[bytes, tuple[int, int]]:
    """(GIF of the .mp4 or .webp video at `path`, its width and height).

    It lasts as long; of a long video frames are left out. Raises an exception if that fails.
    """
    frames, times = [], []
    with Image.open(path if path.suffix.lower() == ".webp" else as_webp(path)) as video:
        for frame in ImageSequence.Iterator(video):
            frames.append(frame.convert("RGB"))
            frames[-1].thumbnail((frame.width, GIF_HEIGHT))
            times.append(frame.info["duration"])
    step, data = -(-len(frames) // GIF_FRAMES), io.BytesIO()
    frames[0].save(data, "GIF", save_all=True, append_images=frames[step::step], loop=0,
                   duration=[sum(times[i:i + step]) for i in range(0, len(times), step)])
    return data.getvalue(), frames[0].size


def as_webp(path: Path) -> io.BytesIO:
    """The frames of an .mp4 as an animated WebP, which Pillow reads."""
    import imageio_ffmpeg
    return io.BytesIO(subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", path, "-vf",
         f"scale=-1:min(ih\\,{GIF_HEIGHT})", "-f", "webp", "-"],
        stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout)


class TensorBoardSink(BackgroundSink):
    """Logs to a file of TensorBoard's in the run's folder, with the settings as a text.

    The run continues after `step`, or begins (None). What older files in the folder have after
    that step is hidden, which SummaryWriter calls purge_step.
    """

    name, videos = "tensorboard", (".mp4", ".webp")

    def __init__(self, config: Config, folder: Path, step: int | None):
        super().__init__()
        self.settings, self.folder = public_config(config), folder
        self.first = 0 if step is None else step + 1

    def start(self) -> "TensorBoardTracker":
        """A new file, which hides the steps from the first one of this process on."""
        return TensorBoardTracker(self.folder, self.first, markdown_table(self.settings))


class TensorBoardTracker:
    """A SummaryWriter, with a text; hides the points of older files in its folder from a `step` on.

    A fault of the file raises OSError, from the thread in which SummaryWriter writes; this prints a
    traceback too.
    """

    def __init__(self, folder: Path, step: int, settings: str):
        from torch.utils.tensorboard import SummaryWriter
        self.writer = SummaryWriter(folder, purge_step=step)
        self.writer.add_text("hyperparameters", settings, step)
        self.finish = self.writer.close

    def log(self, row: dict[str, Any], step: int) -> None:
        """Writes a point of every metric, and histograms; a video as an image that moves."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        points = [Summary.Value(tag=name, **summary_value(value)) for name, value in row.items()
                  if name != GLOBAL_STEP]
        # All at once: add_scalar opens the file for each of them, which takes five times as long.
        self.writer.file_writer.add_summary(Summary(value=points), step)
        self.writer.flush()  # for a TensorBoard that watches the run


def summary_value(value: Any) -> dict[str, Any]:
    """The field of TensorBoard's Summary.Value for a number, a Histogram or the Path of a video."""
    from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
    if isinstance(value, Histogram):
        counts, edges = value
        middles = (edges[1:] + edges[:-1]) / 2
        return {"histo": HistogramProto(
            min=edges[0], max=edges[-1], num=counts.sum(), sum=counts @ middles,
            sum_squares=counts @ middles ** 2, bucket_limit=edges[1:], bucket=counts)}
    if isinstance(value, Path):
        gif, (width, height) = as_gif(value)
        return {"image": Summary.Image(width=width, height=height, colorspace=3,
                                       encoded_image_string=gif)}
    return {"simple_value": value}


def markdown_table(settings: dict[str, Any]) -> str:
    """A table with a row for each setting."""
    cells = {name: json.dumps(value).replace("|", "\\|") for name, value in settings.items()}
    rows = (f"| {name} | {text} |" for name, text in cells.items())
    return "\n".join(["| setting | value |", "|---|---|", *rows])
