"""The parts of a run, wired: from an environment and settings, or from a checkpoint."""

import inspect
import os
from contextlib import ExitStack, closing
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn, Self

from fastppo.build.arena_layout import make_arena
from fastppo.build.collector import make_collector
from fastppo.build.given_settings import checked_source, env_label
from fastppo.build.learner import make_learner
from fastppo.build.model import build_policy
from fastppo.build.resolve import resolve
from fastppo.config import Config
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError, Error, UnknownNameError
from fastppo.machine import limits
from fastppo.networks.torch_state import torch_threads
from fastppo.outputs.callbacks import NO_HOOKS
from fastppo.outputs.metrics import EpisodeMetrics, PartTimer
from fastppo.outputs.sinks import make_sinks
from fastppo.settings.aliases import FOREIGN_NAMES, NEW_TRAINER, unknown_names


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

    def __init__(self, env: Any = None, *others: Any,
                 checkpoint: str | os.PathLike | None = None,
                 init_from: str | os.PathLike | None = None, **settings: Any):
        if isinstance(env, Config):
            raise ConfigError("PPO takes settings by name, and no Config", "PPO(**vars(config))")
        if others or isinstance(env, str) and env.endswith("Policy"):
            raise ConfigError("PPO takes an environment, then settings by name",
                              'PPO("CartPole-v1", model="mlp")')
        self.clock, self.episodes, self.hooks = PartTimer(), EpisodeMetrics(), NO_HOOKS
        self.closed, found = False, None
        if checkpoint is not None:
            from fastppo.files.checkpoint import checkpoint_to_continue
            found, settings = checkpoint_to_continue(checkpoint, env, settings)
        with ExitStack() as made:
            if settings.get("preset", "auto") != "auto":
                from fastppo.arguments.preset_files import naming_preset
                made.enter_context(naming_preset(
                    str(settings.get("env_name") or env_label(env)), settings))
            self._make(env, settings, found and found.step, made)
            self.clock.times, self.total = self.arena["times"], self.config.total_steps
            if found is not None:
                from fastppo.files.checkpoint import restore
                restore(self, found)
            if init_from is not None:
                from fastppo.files.policy_file import start_from_policy
                start_from_policy(self, init_from)
            self.made = made.pop_all()

    def _make(self, env: Any, settings: dict[str, Any], step: int | None, made: ExitStack) -> None:
        """Makes the parts, which `made` closes; `step` is that of a run that is continued."""
        if hasattr(env, "device"):
            from fastppo.stepping.simulator import as_simulator
            env = as_simulator(env)
        self.source = source = env if isinstance(env, EnvSource) else checked_source(env, settings)
        made.callback(source.close)
        config = resolve(source)
        self.ranks = made.enter_context(closing(join_ranks(config)))
        self.config = config = config.replace(seed=self.ranks.share(config.seed))
        self.tf32 = None if config.device == "cpu" else config.precision == "tf32"
        with torch_threads(config.torch_threads, self.tf32):
            self.policy = build_policy(source.obs_space, source.act_space, config)
            self.arena = made.enter_context(closing(
                make_arena(config, self.policy.to(config.device))))
            if config.device != "cpu":
                from fastppo.learners.device_actor import pinned
                made.enter_context(pinned(self.arena, config.device))
            if config.compile:
                from fastppo.build.model import compile_network
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
            from fastppo.learners.ranked import own_environments
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
        def __getattr__(self, name: str) -> Any:
            if name in FOREIGN_NAMES:
                raise UnknownNameError(*unknown_names("a trainer has no", [name], dir(type(self))))
            return self.__getattribute__(name)  # it raises the error of before

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in vars(self) and "total" in vars(self) and (  # it is made
                    name in FOREIGN_NAMES or name in Config.__match_args__):
                raise UnknownNameError(
                    f"{name} of a trainer cannot be set: settings are for a whole run, in which lr,"
                    " clip_range and entropy_coef may follow a schedule", NEW_TRAINER)
            super().__setattr__(name, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()  # of PPO


def join_ranks(config: Config) -> limits.OneProcess:
    """The processes of a run; ConfigError if torchrun has started several that do not fit it."""
    if limits.rank_count() == 1:
        return limits.OneProcess()
    from fastppo.build.rules import check, differing, not_for_ranks, trained_by
    from fastppo.machine.ranks import Ranks
    check(not_for_ranks(config, limits.rank_count()))
    ranks = Ranks(config.backend, config.device_ids)
    check(differing(ranks.gather(trained_by(config))))
    return ranks
