"""A run: environments, policy, learner and rollout buffer, made from a Config, closed together."""

import logging
from contextlib import ExitStack, closing
from functools import partial
from typing import Any, Callable, NoReturn, Self, Sequence

from gymnasium.vector import AutoresetMode

from fastppo.arguments.preset_files import naming_preset
from fastppo.build.arena_layout import env_groups, make_arena, shares_update
from fastppo.build.check_rollout import check_rollout
from fastppo.build.compiled_support import unsupported_in_learner
from fastppo.build.given_settings import checked_source, env_label
from fastppo.build.learner import make_learner
from fastppo.build.model import build_policy, compile_network
from fastppo.build.resolve import resolve
from fastppo.build.rules import check, differing, not_for_ranks, trained_by
from fastppo.collect import Collector, Progress, Rollout
from fastppo.config import Config
from fastppo.envs.source import EnvSource
from fastppo.errors import ClosedError, Error
from fastppo.learner import Learner
from fastppo.learners.compiled import policy_plan
from fastppo.learners.device_actor import DeviceActor, MirroredEnvs, central_actor, pinned
from fastppo.learners.ranked import own_environments
from fastppo.learners.shared_minibatches import SharedMinibatches
from fastppo.machine import kernels
from fastppo.machine.arena import Arena
from fastppo.machine.ranks import Ranks, rank_count
from fastppo.networks.torch_state import torch_threads
from fastppo.policy import Policy
from fastppo.spaces.observations import ObservationLayout
from fastppo.stepping.actors import CentralActor, LocalActor, PolicyPlan
from fastppo.stepping.boundary import Boundaries
from fastppo.stepping.device_vector import DeviceVector
from fastppo.stepping.environments import WARMUP_EPISODE, EpisodeRules
from fastppo.stepping.episodes import RolloutViews
from fastppo.stepping.native_vector import NativeVector, autoreset_mode
from fastppo.stepping.replay import EpisodeLog
from fastppo.stepping.rewards import ReturnScaling
from fastppo.stepping.simulator import Simulator, as_simulator
from fastppo.vecenv import Serial
from fastppo.workers.protocol import START, WARMUP
from fastppo.workers.rank_envs import RankEnvs
from fastppo.workers.restarts import WorkerRestarts
from fastppo.workers.team import WorkerTeam
from fastppo.workers.update_helper import helper_count
from fastppo.workers.worker_envs import WorkerVecEnv, make_worker_serial

log = logging.getLogger("fastppo")


class Run:
    """The parts of a run, wired; `make_sinks(config, source)` is called before any worker starts.

    Raises subclasses of fastppo.Error; what was made until then is closed.
    """

    def __init__(self, env: Any, settings: dict[str, Any],
                 make_sinks: Callable[[Config, EnvSource], Sequence[Any]]):
        self.sinks: list[Any] = []
        env = as_simulator(env)
        name = str(settings.get("env_name") or env_label(env))
        with ExitStack() as resources, naming_preset(name, settings):
            self.source = env if isinstance(env, EnvSource) else checked_source(env, settings)
            resources.callback(self.source.close)
            config = resolve(self.source)
            self.ranks = join_ranks(config)
            resources.callback(self.ranks.close)
            self.config = config = config.replace(seed=self.ranks.share(config.seed))
            log_slow_path(config, self.source)
            self.tf32 = None if config.device == "cpu" else config.precision == "tf32"
            with torch_threads(config.torch_threads, self.tf32):
                self.policy = build_policy(self.source.obs_space, self.source.act_space, config)
                self.arena = resources.enter_context(closing(
                    make_arena(config, self.policy.to(config.device))))
                resources.enter_context(pinned(self.arena, config.device))
                if config.compile:
                    compile_network(self.policy)
                self.learner = make_learner(self.policy, config, self.arena, self.ranks)
                if not self.ranks.rank:
                    self.sinks = [resources.enter_context(closing(sink))
                                  for sink in make_sinks(config, self.source)]
                self.collector = make_collector(self.arena, self.source, self.policy, self.learner,
                                                config, self.ranks)
                resources.callback(self.collector.vec.close)
                resources.callback(vars(self.learner).pop, "replay", None)  # a graph has memory
            self._resources = resources.pop_all()
        self.total, self.closed, self.whole = config.total_steps, False, self.collector.rollout
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

    @property
    def progress(self) -> Progress:
        """Iterations and environment steps collected so far."""
        return self.collector.progress

    @property
    def step(self) -> int:
        """Environment steps collected so far."""
        return self.progress.step

    @property
    def complete_steps(self) -> int:
        """Environment steps of the complete iterations, which updates have used."""
        return self.progress.begin if self.pending else self.step

    @property
    def pending(self) -> bool:
        """True if the last rollout has not been used by an update yet."""
        return self.learner.last_iteration < self.progress.iteration - 1

    def check_open(self) -> None:
        """Raises ClosedError after close()."""
        if self.closed:
            raise ClosedError("this PPO has been closed", "make a new one, or load what you saved")

    def check_rollout(self, rollout: Rollout) -> None:
        """Raises ClosedError after close(), InputError if `rollout` is not one of this trainer."""
        self.check_open()
        check_rollout(rollout, self.policy, self.progress.iteration)

    def close(self) -> None:
        """Stops the workers and closes the sinks; a second call does nothing."""
        self.closed = True
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def log_slow_path(config: Config, source: EnvSource) -> None:
    """Logs, as information, why the compiled learner is not used, if it could be on this device."""
    reason = unsupported_in_learner(config, ObservationLayout(source.obs_space, source.act_space))
    if reason:
        log.info("learner=%s, because the compiled one, which is 5 to 15 times as fast for small"
                 " networks, does not support %s", config.learner, reason)


def make_collector(arena: Arena, source: EnvSource, policy: Policy, learner: Learner,
                   config: Config, ranks: Ranks) -> Collector:
    """The Collector of a run: its environments, and the actor that chooses their actions."""
    vector, plan, central = source.vector, None, None
    groups = groups_of(config, ranks) if vector is None else [range(config.num_envs)]
    if config.acting == "local":
        plan = policy_plan(policy, learner.flat)
    else:
        next_step = vector is not None and autoreset_mode(vector) is AutoresetMode.NEXT_STEP
        central = central_actor(arena, policy, groups, config, next_step)
    views = RolloutViews.of(arena, 0, config.num_envs)
    log = EpisodeLog(views, config.replay_limit if vector is None else 0)
    boundaries = Boundaries(arena, ReturnScaling(config.num_envs), log)
    rules = EpisodeRules(config.replay_timeout, config.nan_policy == "reset_env", {})
    if config.num_workers:
        return mirrored(_with_workers(arena, source, policy, learner, config, plan, central,
                                      boundaries, rules, ranks), central)
    if isinstance(vector, Simulator):
        return device_collector(vector, arena, policy, config, boundaries)
    actor = central or LocalActor(arena, 0, config.num_envs, plan, policy.observer.layout,
                                  policy.actions, config.seed)
    if vector is not None:
        vec = NativeVector(vector, arena, actor, config.seed)
    else:
        vec = Serial(source.factories, views, actor, config.seed, groups=groups if central else (),
                     rules=rules, log=log)
    return mirrored(Collector(arena, vec, policy, config, boundaries), central)


def mirrored(collector: Collector, actor: CentralActor | None) -> Collector:
    """`collector`; its rollout has the observations of the device if the actor mirrors them."""
    if isinstance(actor, DeviceActor):
        collector.vec = MirroredEnvs(collector.vec, actor.mirror)
        collector.rollout = collector.rollout._replace(obs=actor.mirror.structure())
    return collector


def device_collector(env: Simulator, arena: Arena, policy: Policy, config: Config,
                     boundaries: Boundaries) -> Collector:
    """The Collector of a simulator; its rollout has observations and actions on the device."""
    vec = DeviceVector(env, arena, policy, config.seed)
    collector = Collector(arena, vec, policy, config, boundaries)
    collector.rollout = collector.rollout._replace(
        obs=policy.observer.layout.structure(vec.columns.obs), act=vec.columns.act)
    return collector


def groups_of(config: Config, ranks: Ranks) -> list[range]:
    """The groups of the environments of a rank, see env_groups."""
    first, last = (end(config.num_envs) for end in (ranks.first, ranks.last))
    return [range(first + group.start, first + group.stop) for group in env_groups(last - first)]


def join_ranks(config: Config) -> Ranks:
    """The processes of a run; ConfigError if torchrun has started several that do not fit it."""
    if rank_count() > 1:
        check(not_for_ranks(config, rank_count()))
    ranks = Ranks(config.backend, config.device_ids)
    check(differing(ranks.gather(trained_by(config))))
    return ranks


def _running_episode(team: WorkerTeam, log: EpisodeLog, seed: int, env: int) -> tuple[int, int]:
    """(seed, number) of the running episode of an environment."""
    number = int(log.state.episodes[env, 0]) if team.posted.command == START else \
        log.running_now(env)[0]
    if team.posted.command == WARMUP:
        number = WARMUP_EPISODE - number
    return kernels.episode_seed(seed, kernels.Purpose.ENV_SEED, env, number), number


def _with_workers(arena: Arena, source: EnvSource, policy: Policy, learner: Learner,
                  config: Config, plan: PolicyPlan | None, central: CentralActor | None,
                  boundaries: Boundaries, rules: EpisodeRules, ranks: Ranks) -> Collector:
    """A Collector whose environments are in worker processes, which may share the update."""
    groups, first = groups_of(config, ranks), ranks.first(config.num_envs)
    shared = shares_update(config, policy) and ranks.size == 1
    helper = learner.helper_plan() if shared else None
    make = partial(make_worker_serial, groups, plan, policy.observer.layout, policy.actions,
                   config.seed, rules, helper, helper_count(config.num_workers))
    factories = source.factories[first:ranks.last(config.num_envs)]
    team = WorkerTeam(make, factories, config.num_workers, arena, len(groups), config.step_timeout,
                      config.reset_timeout, main_computes=central is not None,
                      allowed=config.worker_env or (), first=first)
    restarts = WorkerRestarts(team, rules.cuts) if config.on_worker_failure == "restart" else None
    vec: Any = WorkerVecEnv(team, config.num_steps, central, restarts)
    vec = RankEnvs(vec, arena, ranks) if ranks.size > 1 else vec
    collector = Collector(arena, vec, policy, config, boundaries)
    team.episode_of = partial(_running_episode, team, boundaries.log, config.seed)
    if helper:
        learner.share(SharedMinibatches(team, arena, collector.rollout))
    return collector
