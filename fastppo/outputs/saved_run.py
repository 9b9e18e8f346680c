"""A run that can be saved, and continued from what was saved."""

import inspect
import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Self

from fastppo.build.given_settings import check_assignment, resumed_settings
from fastppo.build.resolve import warn_of_earlier_end
from fastppo.build.run import Run
from fastppo.config import Config
from fastppo.display.notes import episode_status
from fastppo.errors import PathError, UnknownNameError
from fastppo.files.checkpoint import find_checkpoint, restore, write_checkpoint
from fastppo.files.policy_file import save_policy, start_from_policy
from fastppo.outputs.callbacks import NO_HOOKS, learns_already
from fastppo.outputs.fault_handler import Result, attempt, fault_stats
from fastppo.outputs.metrics import EpisodeMetrics, PartTimer
from fastppo.outputs.sinks import make_sinks
from fastppo.settings.aliases import FOREIGN_NAMES, unknown_names


def settings_signature() -> inspect.Signature:
    """The signature of PPO with Config's fields as its keyword arguments."""
    plain, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    own = [inspect.Parameter("env", plain, default=None)] + [
        inspect.Parameter(name, keyword, default=None) for name in ("checkpoint", "init_from")]
    return inspect.Signature(own + [
        inspect.Parameter(field.name, keyword, default=field.default, annotation=field.type)
        for field in fields(Config) if field.name != "env_name"])


class SavedRun(Run):
    """A Run with metrics and sinks.

    With `checkpoint` it continues the run that wrote the file; with `init_from`, the file of a
    policy, it starts with its weights and observation moments.
    """

    __signature__ = settings_signature()  # for help() and completion

    def __init__(self, env: Any, settings: dict[str, Any],
                 checkpoint: str | os.PathLike | None = None,
                 init_from: str | os.PathLike | None = None):
        self.clock, self.episodes, self.hooks = PartTimer(), EpisodeMetrics(), NO_HOOKS
        found = None if checkpoint is None else find_checkpoint(Path(checkpoint))
        if found is not None:
            folder = {"run_dir": str(checkpoint)} if Path(checkpoint).is_dir() else {}
            settings = resumed_settings(found.path, found.settings, found.code, env,
                                        folder | settings)
        super().__init__(env, settings, partial(make_sinks, step=found and found.step))
        self.clock.times = self.arena["times"]
        try:
            if found is not None:
                restore(self, found)
                warn_of_earlier_end(self, found.settings["total_steps"])
            if init_from is not None:
                start_from_policy(self, init_from)
        except BaseException:
            self.close()
            raise

    if not TYPE_CHECKING:  # which reports unknown names itself
        def __getattr__(self, name: str) -> Any:
            if name in FOREIGN_NAMES:
                raise UnknownNameError(*unknown_names("a trainer has no", [name], dir(type(self))))
            return self.__getattribute__(name)  # it raises the error of before

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in vars(self) and "total" in vars(self):  # it is made
                check_assignment(name)
            super().__setattr__(name, value)

    @classmethod
    def load(cls, *args: Any, **others: Any) -> NoReturn:
        """Raises UnknownNameError, which says what is there instead: fastppo.load and resume."""
        raise UnknownNameError(*unknown_names("PPO has no", ["load"], ()))

    @classmethod
    def resume(cls, path: str | os.PathLike, env: Any = None, **changes: Any) -> Self:
        """The run that wrote a checkpoint: a file, or the newest valid one in a run's folder.

        Of a folder, it goes on writing there.

        It continues bit for bit on the same machine; the running episodes are replayed. `env` is
        needed if it was not an id, and every setting that was code, such as model=MyNet. `changes`
        are settings such as total_steps or num_workers. Raises CheckpointError for a damaged file,
        ConfigError for settings that would make it another run.
        """
        if not path:
            raise PathError(f"resume takes the folder of a run or a checkpoint, not {path!r}",
                            'PPO.resume("runs/latest")')
        return cls(env, checkpoint=path, **changes)

    def predict(self, obs: Any = None, *options: Any, **others: Any) -> Any:
        """The action of the policy as it is for one observation or a batch; see Policy.predict."""
        return self.policy.predict(obs, *options, **others)

    def reporting(self, episodes: int, report: Callable | None) -> AbstractContextManager:
        """A context with `report`; for None with one that shows the episodes, if that is asked for.

        Nothing is shown while `learn` runs: it shows the part that it is in.
        """
        shows = self.config.progress in ("live", "lines") and not self.hooks.iteration
        return episode_status(episodes) if report is None and shows else nullcontext(
            report or (lambda returns: None))

    def check_open(self) -> None:
        """Raises ClosedError after close(), and Error for a callback: `learn` is running."""
        super().check_open()
        if self.hooks.calling:
            raise learns_already()

    def attempt(self, part: Callable[[], Result]) -> Result:
        """The result of a part of an iteration, see fault_handler.attempt."""
        return attempt(self, part)

    def fault_stats(self) -> dict[str, float]:
        """The metrics faults/..., from the first restart on."""
        return fault_stats(self)

    def checkpoint(self, path: str | os.PathLike) -> None:
        """Writes the state after the last complete iteration to a file, for `resume`.

        A missing folder is made, with a warning. Raises CheckpointError if it cannot be written; an
        older file is then as it was.
        """
        write_checkpoint(self, Path(path))

    def save(self, path: str | os.PathLike = "") -> Path:
        """Writes the policy, with all that `fastppo.load` needs, to a safetensors file; its path.

        A missing folder is made, with a warning. Raises CheckpointError if it cannot be written.
        """
        return save_policy(self.policy, self.config, path)
