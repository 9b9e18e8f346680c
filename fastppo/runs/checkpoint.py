"""The whole state of a run between two iterations as one file, from which it continues exactly.

    weights, moments, optimizer, adaptive rates     the learner's
    progress, scaling of rewards, running episodes  the environments' (stepping/replay.py)
    last episodes, seconds, best evaluation         the outputs'

An environment itself is not saved: the actions of its running episode are, and are replayed.
"""

import contextlib
import logging
import os
import time
import weakref
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

from torch import Tensor

from fastppo.collect import Progress
from fastppo.errors import CheckpointError, Set, truncate_text
from fastppo.machine.child_process import public_config
from fastppo.machine.stderr import note
from fastppo.runs.facts import fingerprint
from fastppo.runs.folder import FolderLock, checkpoint_files, checkpoints_in, step_of
from fastppo.runs.policy_file import save_policy
from fastppo.runs.tensor_file import join_tree, read_tensor_file, split_tree, write_tensor_file
from fastppo.settings.known_names import MODEL_FILE
from fastppo.spaces.leaves import tree_map
from fastppo.stepping.replay import snapshot_tree
from fastppo.trainer.given_settings import plain, resumed_settings, settings_to_continue
from fastppo.update.schedules import coefficients_at

CHECKPOINT_FORMAT = "fastppo checkpoint 2"

log = logging.getLogger("fastppo")
COPY_SECONDS = 1.0  # between two copies of the weights of a GPU, which take a millisecond
KEPT = 2  # the newest, and the one before in case that is damaged


class Checkpoint(NamedTuple):
    """The contents of a checkpoint's file."""

    path: Path
    settings: dict[str, Any]  # of the Config as it was given, without those that are code
    code: list[str]  # names of the settings that no file holds: functions, classes, passwords
    state: dict[str, Any]
    step: int  # environment steps that the run had taken


def write_checkpoint(ppo, path: Path) -> None:
    """Writes the state after the last complete iteration; CheckpointError if that fails."""
    for sink in ppo.sinks:  # a run that is resumed goes on after the rows that wait
        getattr(sink, "flush", int)()
    # As it was given: what "auto" means is resolved again, for the machine that resumes. But it
    # keeps the device, because another one computes other bits.
    config = vars(ppo.source.config) | {"seed": ppo.config.seed, "run_dir": None,
                                        "precision": ppo.config.precision,
                                        "reset_options": ppo.reset_options}
    if config["device"] == "auto":
        config["device"] = ppo.config.device.partition(":")[0]  # each rank adds its own number
    public, tensors = public_config(ppo.config), {}
    code = [name for name, value in config.items()
            if not is_plain(value) or name == "env_kwargs" and plain(value) != public[name]]
    texts = {"config": {name: value for name, value in config.items() if name not in code},
             "code": code, "fingerprint": fingerprint(ppo.config.torch_threads),
             "state": split_tree(run_state(ppo), "state", tensors)}
    write_tensor_file(path, CHECKPOINT_FORMAT, tensors, texts)


def is_plain(value: Any) -> bool:
    """True if `value` is made of numbers, texts, lists and dicts alone."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def run_state(ppo) -> dict[str, Any]:
    """The state of `ppo` after its last complete iteration, as nested numbers and arrays."""
    learner, snapshots = ppo.learner, ppo.collector.snapshots
    boundary = snapshots.last if ppo.pending else snapshots.now(ppo.progress)
    return {"policy": ppo.policy.state_dict(), "optimizer": learner.optimizer.state,
            "rates": learner.optimizer.rates, "adapted_rate": learner.kl_control.state,
            "last_iteration": learner.last_iteration,
            "boundary": snapshot_tree(boundary, snapshots.log),
            "episodes": ppo.episodes.state, "seconds": ppo.clock.seconds,
            "past": ppo.collector.past and ppo.collector.past.state(learner.last_iteration),
            "sinks": {type(sink).__name__: sink.state for sink in sinks_with_state(ppo)}}


def sinks_with_state(ppo) -> list[Any]:
    """The sinks of `ppo` that continue where they were, such as the evaluator."""
    return [sink for sink in ppo.sinks if hasattr(sink, "state")]


def checkpoint_to_continue(path: str | os.PathLike, env: Any, changes: dict[str, Any]
                           ) -> tuple[Checkpoint, dict[str, Any]]:
    """(checkpoint, settings) of the run in a file or folder, continued with some `changes`."""
    place = Path(path)
    found = find_checkpoint(place)
    folder = {"run_dir": str(place)} if place.is_dir() else {}
    return found, resumed_settings(found.path, found.settings, found.code, env, folder | changes)


def find_checkpoint(place: Path) -> Checkpoint:
    """The checkpoint in a file, or the newest valid one in a run's folder.

    Damaged ones are named in the log. Raises CheckpointError if there is no valid one.
    """
    files, errors = checkpoint_files(place), []
    if not place.is_dir():
        return read_checkpoint(place)
    for path in files:
        try:
            found = read_checkpoint(path)
        except CheckpointError as error:
            errors.append(error)
            continue
        for error in errors:
            log.warning("%s; resuming from the one before, %s", error.what, path)
        return found
    model = place / MODEL_FILE
    raise CheckpointError(
        f"none of the {len(errors)} checkpoints in {place} can be read: {errors[0].what}",
        Set(init_from=str(model)) if model.is_file() else "start a new run")


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint in a file; CheckpointError if it is missing, damaged or something else."""
    tensors, texts = read_tensor_file(path, CHECKPOINT_FORMAT)
    try:
        state = join_tree(texts["state"], tensors)
        return Checkpoint(path, settings_to_continue(texts["config"], texts["code"]), texts["code"],
                          state, state["boundary"]["progress"][1])
    except Exception as error:  # a file may hold anything
        raise CheckpointError(f"{path} holds an invalid state: {truncate_text(repr(error), 500)}",
                              "give another checkpoint of the run") from error


def restore(ppo, found: Checkpoint) -> None:
    """Brings a new `ppo` to the state of a checkpoint; CheckpointError if it does not fit.

    Warns if its schedules end earlier than those of the run before.
    """
    try:
        _restore_state(ppo, found.state)
    except Exception as error:  # a file may hold anything
        raise CheckpointError(
            f"{found.path} does not fit this run: {truncate_text(str(error), 500)}",
            "give the environment and the model that it was written with") from error
    before, now, begin = found.settings["total_steps"], ppo.config, ppo.progress.begin
    total = now.total_steps
    if ppo.step < total < before and coefficients_at(now, 1 - ppo.step / total, begin) != \
            coefficients_at(now, 1 - ppo.step / before, begin):
        log.warning("the schedules, such as the learning rate's, now end at step %d, and no more at"
                    " %d, by this run's total_steps", total, before)


def _restore_state(ppo, state: dict[str, Any]) -> None:
    learner, collector = ppo.learner, ppo.collector
    ppo.policy.load_state_dict(state["policy"])
    learner.optimizer.restore(state["optimizer"])
    learner.optimizer.rates = state["rates"]
    learner.kl_control.restore(state["adapted_rate"])
    learner.last_iteration = state["last_iteration"]
    ppo.episodes.restore(state["episodes"])
    ppo.clock.seconds = {str(part): float(spent) for part, spent in state["seconds"].items()}
    for sink in sinks_with_state(ppo):
        if type(sink).__name__ in state["sinks"]:
            sink.restore(state["sinks"][type(sink).__name__])
    boundary = tree_map(lambda x: x.numpy() if isinstance(x, Tensor) else x, state["boundary"])
    if collector.past:
        collector.past.restore(state["past"])
    collector.progress = Progress(*map(int, boundary["progress"]))
    collector.snapshots.load(boundary, collector.progress)


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
        """Renames the checkpoints beyond the step at which the run begins: it is another one's."""
        for path in checkpoints_in(self.folder) if self.begins is not None else ():
            if step_of(path) > self.begins:
                with contextlib.suppress(OSError):
                    aside = path.with_name(path.name.replace("checkpoint", "abandoned"))
                    os.replace(path, aside)
                    log.warning("%s is not continued, and is now %s", path, aside.name)
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

    def _path(self, ppo) -> Path:
        return self.folder / f"checkpoint-{ppo.complete_steps:012d}.safetensors"


def can_lose_memory(ppo) -> bool:
    """True if the weights are on a device whose memory is lost with an error of it."""
    return ppo.config.device != "cpu"


def checkpointer_of(sinks: Sequence[Any]) -> Checkpointer:
    """The Checkpointer among the sinks of a run with a folder."""
    return next(sink for sink in sinks if isinstance(sink, Checkpointer))
