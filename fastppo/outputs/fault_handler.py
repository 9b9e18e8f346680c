"""What follows a fault: a file that shows it, and workers that start again."""

import logging
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

import torch

from fastppo.errors import EnvError, Error, FaultPlace, WorkerError
from fastppo.settings.fixes import Set

log = logging.getLogger("fastppo")


@contextmanager
def restarted_on_fault(ppo) -> Iterator[None]:
    """A part of an iteration, which is to run again if the block has ended without a result.

    It then runs in new workers: after a fault, with on_worker_failure=restart, as often as its
    budget allows. A fault of an environment leaves a bundle in the run's folder, if there is one.
    """
    try:
        yield
    except EnvError as error:
        text = error.what
        for place in error.places:
            _write(ppo, error, text, place)
        if not _restarted(ppo, error):
            raise
    except torch.OutOfMemoryError as error:
        parts, envs = ppo.config.num_microbatches, ppo.config.num_envs
        what = f"{ppo.config.device} has run out of memory: {str(error).splitlines()[0]}"
        raise Error(what, (Set(num_microbatches=2 * parts), Set(num_envs=max(1, envs // 2)))
                    ) from error


def fault_stats(ppo) -> dict[str, float]:
    """The numbers of restarts and of truncated episodes, from the first restart on."""
    restarts = getattr(ppo.collector.vec, "restarts", None)
    return {} if not restarts or not restarts.count else {
        "faults/restarts": float(restarts.count), "faults/truncated": float(len(restarts.cuts))}


def _restarted(ppo, error: EnvError) -> bool:
    """True if `error` is of workers, and they have been started again."""
    restarts = getattr(ppo.collector.vec, "restarts", None)
    if restarts is None or not isinstance(error, WorkerError):
        return False
    from fastppo.workers.restarts import RESTARTS, SECONDS
    ppo.collector.rewind()
    before = len(restarts.cuts)
    if not restarts.restart(error.places):
        error.what += (f"\nthe workers are not started again, because that has happened {RESTARTS}"
                       f" times in {SECONDS / 60:g} minutes")
        return False
    log.warning("%s\nthe workers have been started again (restart %d), and the running episodes are"
                " replayed%s", error.what, restarts.count, "" if len(restarts.cuts) == before else
                "; an episode that has failed twice will end before that step")
    return True


def _write(ppo, error: EnvError, text: str, place: FaultPlace) -> None:
    """Writes the bundle of a fault into the run's folder, and names it in the error."""
    if ppo.config.run_dir is None:
        return
    from fastppo.files.crash_bundle import bundle_name, replay_command, write_bundle
    path = Path(ppo.config.run_dir) / bundle_name(place)
    try:
        write_bundle(ppo, text, place, path)
    except Exception as other:  # nothing may hide the fault itself
        log.warning("%s", getattr(other, "what", repr(other)))
        return
    if "\nto see it again: " not in error.what:  # one of several is enough
        error.what += f"\nto see it again: {replay_command(path, ppo.config)}"
