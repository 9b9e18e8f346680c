"""The sink for TensorBoard."""

import json
import time
from pathlib import Path
from typing import Any

from fastppo.config import Config
from fastppo.evaluation.gif import as_gif
from fastppo.machine.child_env import public_config
from fastppo.outputs.action_metrics import Histogram
from fastppo.outputs.background_sink import BackgroundSink
from fastppo.settings.metric_names import GLOBAL_STEP


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

    def start(self) -> "EventFile":
        """A new file, which hides the steps from the first one of this process on."""
        return EventFile(self.folder, self.first, markdown_table(self.settings))


class EventFile:
    """A new file of events, with a text; hides the points of older files from a `step` on.

    A fault raises OSError. SummaryWriter would write in a thread of its own, which prints a
    traceback if the disk is full, into a file that may be a link to another one.
    """

    def __init__(self, folder: Path, step: int, settings: str):
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from torch.utils.tensorboard import summary
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names; a time alone may be set back.
        older = len([*folder.glob("events.out.tfevents.*")])
        self.path = folder / f"events.out.tfevents.{older:06d}.{time.time_ns()}"
        self._write("xb", file_version="brain.Event:2")
        self._write(step=step, session_log=SessionLog(status=SessionLog.START))
        self._write(step=step, summary=summary.text("hyperparameters", settings))

    def log(self, row: dict[str, Any], step: int) -> None:
        """Writes a point of every metric, and histograms; a video as an image that moves."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        points = [Summary.Value(tag=name, **summary_value(value)) for name, value in row.items()
                  if name != GLOBAL_STEP]
        self._write(step=step, summary=Summary(value=points))

    def finish(self) -> None:
        """Does nothing, because everything is written."""

    def _write(self, mode: str = "ab", **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter
        with open(self.path, mode) as file:
            RecordWriter(file).write(Event(wall_time=time.time(), **content).SerializeToString())


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
