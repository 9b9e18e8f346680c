"""The sink that writes checkpoints into the folder of a run."""

import contextlib
import logging
import os
import time
import weakref
from pathlib import Path
from typing import Any, Callable, Sequence

from torch import Tensor

from fastppo.display.notes import note
from fastppo.errors import CheckpointError
from fastppo.files.checkpoint import write_checkpoint
from fastppo.files.policy_file import save_policy
from fastppo.files.run_folder import FolderLock, checkpoints_in, step_of
from fastppo.settings.file_names import MODEL_FILE

log = logging.getLogger("fastppo")

COPY_SECONDS = 1.0  # between two copies of the weights of a GPU, which take a millisecond
KEPT = 2  # the newest, and the one before in case that is damaged


class Checkpointer:
    """Writes a checkpoint every `interval` seconds, and at the end, also after an error.

    The interval is in seconds because what a crash may cost is time, and so is what a checkpoint
    costs: neither depends on how fast a run is. If a file cannot be written, a note is printed
    once, the older ones stay, and the next interval tries again. `newest` is the last file; the
    `lock` keeps the folder until it is closed. The run continues at `step`, or begins (None).
    `copied` has the weights of a GPU at some step, at most a second of training ago, for a GPU that
    fails and loses its memory.
    """

    def __init__(self, folder: Path, interval: float, lock: FolderLock, step: int | None):
        self.folder, self.interval, self.newest, self.lock = folder, interval, None, lock
        self.due, self.failed = time.monotonic() + interval, False
        self.ppo: Callable[[], Any] = lambda: None
        self.copied: tuple[int, dict[str, Tensor]] | None = None
        self.copy_due = 0.0
        for part in folder.glob(".*.part*"):  # of a process that was killed while it wrote
            part.unlink(missing_ok=True)
        self.begins: int | None = -1 if step is None else step  # None: training has begun

    def on_start(self, ppo) -> None:
        """Renames the checkpoints that are not continued."""
        if self.begins is not None:
            self._set_aside(self.begins)
            self.begins = None

    def __call__(self, ppo, stats: dict[str, float]) -> None:
        """Writes a checkpoint if it is due, or if training is done."""
        self.ppo = weakref.ref(ppo)
        if can_lose_memory(ppo) and time.monotonic() >= self.copy_due:
            self.copied = ppo.complete_steps, {
                name: x.cpu() for name, x in ppo.policy.state_dict().items()}
            self.copy_due = time.monotonic() + COPY_SECONDS
        if ppo.step >= ppo.total or self.interval and time.monotonic() >= self.due:
            self.write(ppo)

    def write(self, ppo) -> None:
        """Writes a checkpoint of the last complete iteration; removes all but the newest two."""
        path = self._path(ppo)
        try:
            self.lock.hold()
            write_checkpoint(ppo, path)
            self.newest, self.failed = path, False
            for old in checkpoints_in(self.folder)[KEPT:]:
                old.unlink(missing_ok=True)
        except (CheckpointError, OSError) as error:
            if not self.failed:
                why = getattr(error, "what", None) or getattr(error, "strerror", error)
                note(f"{why}; training goes on and tries again")
            self.failed = True
        self.due = time.monotonic() + self.interval

    def close(self) -> None:
        """Writes the last iteration, unless that is done or its memory is lost with a device.

        Then the weights that were copied last are saved, if they are not yet.
        """
        ppo = self.ppo()
        if ppo is not None and self.newest != self._path(ppo):
            try:
                self.write(ppo)
            except RuntimeError as error:
                if self.copied:
                    self.save_copied(ppo, error)
        self.lock.close()

    def save_copied(self, ppo, error: RuntimeError) -> Path | None:
        """Saves the policy with the weights that were copied last, once; returns the file.

        `error` says why they are the last: it is one of the device.
        """
        reason = str(error).partition("\n")[0]
        if self.copied is None:
            note(f"the policy cannot be saved: {reason}")
            return None
        (step, weights), self.copied = self.copied, None
        note(f"the policy of step {ppo.complete_steps:,} is lost, and that of step {step:,} is"
             f" saved: {reason}")
        save_policy(ppo.policy, ppo.config, self.folder / MODEL_FILE, weights)
        return self.folder / MODEL_FILE

    def _set_aside(self, step: int) -> None:
        """Renames the checkpoints beyond `step`, which are of a run that is not continued."""
        for path in checkpoints_in(self.folder):
            if step_of(path) > step:
                with contextlib.suppress(OSError):
                    aside = path.with_name(path.name.replace("checkpoint", "abandoned"))
                    os.replace(path, aside)
                    log.warning("%s is not continued, and is now %s", path, aside.name)

    def _path(self, ppo) -> Path:
        return self.folder / f"checkpoint-{ppo.complete_steps:012d}.safetensors"


def can_lose_memory(ppo) -> bool:
    """True if the weights are on a device whose memory is lost with an error of it."""
    return ppo.config.device != "cpu"


def checkpointer_of(sinks: Sequence[Any]) -> Checkpointer:
    """The Checkpointer among the sinks of a run with a folder."""
    return next(sink for sink in sinks if isinstance(sink, Checkpointer))
