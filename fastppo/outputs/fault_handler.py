"""What follows a fault: a file that shows it, and workers that start again."""

import logging
from functools import partial
from pathlib import Path
from typing import Callable, TypeVar

import torch

from fastppo.envs.env_hints import is_registered
from fastppo.errors import CheckpointError, EnvError, Error, NonFiniteError, WorkerError
from fastppo.files.crash_bundle import BUNDLE, bundle_name, write_bundle
from fastppo.files.failed_update import write_failed_update
from fastppo.settings.fixes import Set, program

Result = TypeVar("Result")

log = logging.getLogger("fastppo")


def _less_memory(ppo, error: BaseException) -> Error:
    """The error for a device without free memory."""
    parts, envs, config = ppo.config.num_microbatches, ppo.config.num_envs, ppo.config
    return Error(f"{config.device} has run out of memory: {str(error).partition(chr(10))[0]}",
                 (Set(num_microbatches=2 * parts), Set(num_envs=max(1, envs // 2))))


def replay_command(bundle: Path, env_name: str) -> str:
    """The command that replays a bundle."""
    named = "" if is_registered(env_name) else \
        f" --env_name={env_name if ':' in env_name else 'my_module:MyEnv'}"
    return f"{program()} replay {bundle}{named}"


class FaultHandler:
    """Runs the parts of an iteration, which can be called again after a fault.

    A fault of an environment leaves a bundle in the run's folder, if there is one; numbers that are
    not finite leave a record of the rollout. With on_worker_failure=restart the part is called
    again in new workers.
    """

    def run(self, ppo, part: Callable[[], Result]) -> Result:
        """The result of `part`, after as many restarts as are allowed."""
        while True:
            try:
                return part()
            except EnvError as error:
                self._write_bundles(ppo, error)
                if not self._restarted(ppo, error):
                    raise
            except NonFiniteError as error:
                write = partial(write_failed_update, ppo, error.what)
                self._write(ppo, error, f"failed-update-{ppo.complete_steps:012d}.record", write)
                raise
            except torch.OutOfMemoryError as error:
                raise _less_memory(ppo, error) from error

    def stats(self, ppo) -> dict[str, float]:
        """The numbers of restarts and of truncated episodes, from the first restart on."""
        restarts = getattr(ppo.collector.vec, "restarts", None)
        return {} if not restarts or not restarts.count else {
            "faults/restarts": float(restarts.count), "faults/truncated": float(len(restarts.cuts))}

    def _restarted(self, ppo, error: EnvError) -> bool:
        """True if `error` is of workers, and they have been started again."""
        restarts = getattr(ppo.collector.vec, "restarts", None)
        if restarts is None or not isinstance(error, WorkerError):
            return False
        ppo.collector.rewind()
        if not restarts.restart(error.places):
            return False
        log.warning("%s\nthe workers have been started again (restart %d), and the running episodes"
                    " are replayed", error.what, restarts.count)
        return True

    def _write_bundles(self, ppo, error: EnvError) -> None:
        """Writes the bundle of every environment that failed."""
        text = error.what
        for place in error.places:
            self._write(ppo, error, bundle_name(place), partial(write_bundle, ppo, text, place))

    def _write(self, ppo, error: Error, name: str, write: Callable[[Path], None]) -> None:
        """Writes a file into the run's folder, and names it in the error."""
        if ppo.config.run_dir is None:
            return
        path = Path(ppo.config.run_dir) / name
        try:
            write(path)
        except CheckpointError as other:
            log.warning("%s", other.what)
            return
        error.what += f"\nto see it again: {replay_command(path, ppo.config.env_name)}" \
            if path.suffix == BUNDLE else f"\nits rollout is in {path}"
