"""The parts of a run, wired: from an environment and settings, or from a checkpoint.

Its sinks are callbacks that receive its metrics, and that it closes; each is imported only if a
setting asks for it. After a fault a bundle is written, and workers may start again.
"""

import inspect
import logging
import os
import sys
from contextlib import ExitStack, closing, contextmanager
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator, NoReturn, Self, Sequence

import torch

from fastppo.config import Config
from fastppo.envs.source import EnvSource
from fastppo.errors import (
    USAGE_ERRORS,
    ConfigError,
    EnvError,
    Error,
    FaultPlace,
    Set,
    WorkerError,
)
from fastppo.machine import limits
from fastppo.networks.torch_state import torch_threads
from fastppo.settings.known_names import EPISODES_FILE, METRICS_FILE
from fastppo.settings.values import LOGGERS
from fastppo.trainer.callbacks import NO_HOOKS
from fastppo.trainer.collector import make_collector
from fastppo.trainer.given_settings import checked_source, config_for, env_label, joined_ranks
from fastppo.trainer.metrics import EpisodeMetrics, PartTimer
from fastppo.trainer.policy_and_learner import build_policy, compile_network, make_learner
from fastppo.trainer.rollout_arrays import make_arena

log = logging.getLogger("fastppo")
STOP_SECONDS = 2.0  # after a signal, which promises an end within five


def settings_signature() -> inspect.Signature:
    """The signature of PPO with Config's fields as its keyword arguments."""
    plain, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    own = [inspect.Parameter("env", plain, default=None)] + [
        inspect.Parameter(name, keyword, default=None) for name in ("checkpoint", "init_from")]
    return inspect.Signature(own + [
        inspect.Parameter(field.name, keyword, default=field.default, annotation=field.type)
        for field in fields(Config) if field.name != "env_name"])


class Run:
    """The parts of a run; PPO has its methods.

    With `checkpoint` it continues the run that wrote the file; with `init_from`, the file of a
    policy, it starts with its weights and observation moments. If a part cannot be made, those
    before it are closed.
    """

    __signature__ = settings_signature()  # for help() and completion

    def __init__(self, env: Any = None, *, checkpoint: str | os.PathLike | None = None,
                 init_from: str | os.PathLike | None = None, **settings: Any):
        if isinstance(env, Config):
            raise ConfigError("PPO takes settings by name, and no Config", "PPO(**vars(config))")
        self.clock, self.episodes, self.hooks = PartTimer(), EpisodeMetrics(), NO_HOOKS
        self.closed, found = False, None
        if checkpoint is not None:
            from fastppo.runs.checkpoint import checkpoint_to_continue
            found, settings = checkpoint_to_continue(checkpoint, env, settings)
        with ExitStack() as made:
            try:
                self._make(env, settings, found and found.step, made)
            except USAGE_ERRORS as error:
                from fastppo.trainer.setting_texts import name_preset
                name_preset(error, str(settings.get("env_name") or env_label(env)), settings)
                raise
            self.clock.times, self.total = self.arena["times"], self.config.total_steps
            if found is not None:
                from fastppo.runs.checkpoint import restore
                restore(self, found)
            if init_from is not None:
                from fastppo.runs.policy_file import start_from_policy
                start_from_policy(self, init_from)
            self.made = made.pop_all()

    def _make(self, env: Any, settings: dict[str, Any], step: int | None, made: ExitStack) -> None:
        """Makes the parts, which `made` closes; `step` is that of a run that is continued."""
        if hasattr(env, "device"):
            from fastppo.gpu.simulator import as_simulator
            env = as_simulator(env)
        self.source = source = env if isinstance(env, EnvSource) else checked_source(
            env, config_for(env, settings))
        made.callback(source.close)
        self.ranks = made.enter_context(closing(joined_ranks(source.config)))
        self.config = config = source.resolved
        self.reset_options = config.reset_options
        if self.ranks.size > 1:
            from fastppo.ranks.processes import check_same_settings
            check_same_settings(config, self.ranks)
            self.config = config = config.replace(seed=self.ranks.share(config.seed))
        self.tf32 = None if config.device == "cpu" else config.precision == "tf32"
        with torch_threads(config.torch_threads, self.tf32):
            self.policy = build_policy(source.obs_space, source.act_space, config)
            self.arena = made.enter_context(closing(
                make_arena(config, self.policy.to(config.device), source.row_bytes)))
            if config.device != "cpu":
                from fastppo.gpu.device_actor import pinned
                made.enter_context(pinned(self.arena, config.device))
            if config.compile:
                compile_network(self.policy)
            self.learner = make_learner(self.policy, config, self.arena, self.ranks)
            self.sinks = [] if self.ranks.rank else [
                made.enter_context(closing(sink)) for sink in make_sinks(config, source, step)]
            self.collector = make_collector(self.arena, source, self.policy, self.learner, config,
                                            self.ranks)
            made.callback(self.collector.vec.close)
            made.callback(vars(self.learner).pop, "replay", None)  # a graph has memory
        self.rollout = self.whole = self.collector.rollout
        if self.ranks.size > 1:
            from fastppo.ranks.learner import own_environments
            self.rollout = self.collector.rollout = own_environments(self.whole, self.ranks)

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return (f"<{type(self).__name__} on {self.config.env_name}: step {self.step:,} of"
                f" {self.total:,}{closed}>")

    def __reduce__(self) -> NoReturn:
        """Raises Error, for pickle and copy."""
        raise Error("a trainer cannot be pickled or copied: it holds processes and shared memory",
                    'of its policy: ppo.save("model.safetensors"), then load("model.safetensors");'
                    " to train in another process, make the trainer there")

    if not TYPE_CHECKING:  # which reports unknown names itself
        def __setattr__(self, name: str, value: Any) -> None:
            made = "total" in vars(self)
            if made and name in Config.__match_args__ and name not in vars(self):
                raise AttributeError(f"{name} is a setting, which is for a whole run and cannot"
                                     " be changed")
            super().__setattr__(name, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()  # of PPO


def make_sinks(config: Config, source: EnvSource, step: int | None = None) -> list[Any]:
    """The sinks of a Config; those that play are first, because the others receive what they add.

    The checkpoints are last: what the others write for an iteration is written before. `step` is
    that of the checkpoint of a run that is resumed.
    """
    sinks: list[Any] = []
    folder, last = Path(), []
    if config.eval_interval is not None or config.eval_env is not None:
        from fastppo.evaluation.evaluator import Evaluator
        sinks.append(Evaluator(config, source))
    if config.video_interval:
        from fastppo.video.recorder import VideoRecorder
        sinks.append(VideoRecorder(config, source))
    if config.run_dir is not None:
        from fastppo.loggers.csv_files import CsvSink, EpisodeSink
        from fastppo.runs.checkpoint import Checkpointer
        from fastppo.runs.folder import make_run_folder
        folder, lock = make_run_folder(config)
        sinks += [CsvSink(folder / METRICS_FILE, step, lock.hold),
                  EpisodeSink(folder / EPISODES_FILE, step, lock.hold)]
        last = [Checkpointer(folder, config.checkpoint_interval, lock, step)]
    for name in config.logger or ():
        sink = getattr(import_module(f"fastppo.loggers.{name}"), LOGGERS[name])
        sinks.append(sink(config, folder, step))
    if config.progress == "live" and limits.is_terminal(sys.stdout) and \
            str(sys.stdout.encoding).lower().startswith("utf"):
        from fastppo.terminal.live_view import LiveView
        sinks.append(LiveView())
    elif config.progress in ("lines", "live"):
        from fastppo.terminal.progress_lines import ProgressLines
        sinks.append(ProgressLines())
    return sinks + last


def shorten_waits(sinks: Sequence[Any]) -> None:
    """Makes sinks that wait for others when they are closed wait for STOP_SECONDS in all."""
    waiting = [sink for sink in sinks if hasattr(sink, "patience")]
    for sink in waiting:
        sink.patience = STOP_SECONDS / len(waiting)


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


def _restarted(ppo, error: EnvError) -> bool:
    """True if `error` is of workers, and they have been started again."""
    restarts = getattr(ppo.collector.vec, "restarts", None)
    if restarts is None or not isinstance(error, WorkerError):
        return False
    from fastppo.workers.team import RESTARTS, SECONDS
    ppo.collector.restore()
    before = len(restarts.cuts)
    if not restarts.restart(error.places):
        error.what += (f"\nthe workers are not started again, because that has happened {RESTARTS}"
                       f" times in {SECONDS / 60:g} minutes")
        return False
    ppo.episodes.beside |= {"faults/restarts": float(restarts.count),
                            "faults/truncated": float(len(restarts.cuts))}
    log.warning("%s\nthe workers have been started again (restart %d), and the running episodes are"
                " replayed%s", error.what, restarts.count, "" if len(restarts.cuts) == before else
                "; an episode that has failed twice will end before that step")
    return True


def _write(ppo, error: EnvError, text: str, place: FaultPlace) -> None:
    """Writes the bundle of a fault into the run's folder, and names it in the error."""
    if ppo.config.run_dir is None:
        return
    from fastppo.runs.crash_bundle import bundle_name, replay_command, write_bundle
    path = Path(ppo.config.run_dir) / bundle_name(place)
    try:
        write_bundle(ppo, text, place, path)
    except Exception as other:  # nothing may hide the fault itself
        log.warning("%s", getattr(other, "what", repr(other)))
        return
    if "\nto see it again: " not in error.what:  # one of several is enough
        error.what += f"\nto see it again: {replay_command(path, ppo.config)}"
