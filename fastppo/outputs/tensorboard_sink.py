"""The sink for TensorBoard."""

import errno
import io
import json
import os
import re
import time
from pathlib import Path
from typing import Any

from fastppo.config import Config
from fastppo.evaluation.gif import as_gif
from fastppo.files.run_folder import public_config
from fastppo.outputs.action_metrics import Histogram
from fastppo.outputs.background_sink import BackgroundSink
from fastppo.settings.metric_names import GLOBAL_STEP

EVENT_FILE = re.compile(r"events\.out\.tfevents\.(\d+)")  # of our files


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
        file = EventFile(self.folder)
        file.restart_at(self.first)
        file.log_text("hyperparameters", markdown_table(self.settings), self.first)
        return file


class EventFile:
    """A new file of events; every call writes whole records, or raises OSError.

    SummaryWriter would write in a thread of its own, which prints a traceback if the disk is full.
    """

    def __init__(self, folder: Path):
        from tensorboard.compat.proto.event_pb2 import Event
        self.event = Event
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names; a time in them may be set back.
        older = [int(found[1]) for path in folder.iterdir()
                 if (found := EVENT_FILE.fullmatch(path.name))]
        self.path = folder / f"events.out.tfevents.{max(older, default=0) + 1:06d}"
        self._write(file_version="brain.Event:2")

    def restart_at(self, step: int) -> None:
        """Hides the points of older files from `step` on."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        self._write(step=step, session_log=SessionLog(status=SessionLog.START))

    def log_text(self, tag: str, text: str, step: int) -> None:
        """Writes a text, in markdown."""
        from torch.utils.tensorboard import summary
        self._write(step=step, summary=summary.text(tag, text))

    def log(self, row: dict[str, Any], step: int) -> None:
        """Writes a point of every metric, and histograms; a video as an image that moves."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        points = [Summary.Value(tag=name, **summary_value(value)) for name, value in row.items()
                  if name != GLOBAL_STEP]
        self._write(step=step, summary=Summary(value=points))

    def finish(self) -> None:
        """Does nothing, because everything is written."""

    def _write(self, **content: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter
        record, event = io.BytesIO(), self.event(wall_time=time.time(), **content)
        RecordWriter(record).write(event.SerializeToString())
        with open(self.path, "ab", buffering=0) as file:
            end = file.tell()
            if file.write(record.getvalue()) < len(record.getvalue()):
                file.truncate(end)  # a part of a record would hide those after it
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


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
