"""Builds the Collector of a run: its environments, and the actor that chooses their actions."""

from gymnasium.vector import VectorEnv

from fastppo.collect import Collector
from fastppo.compiled.learner import policy_plan
from fastppo.config import Config
from fastppo.envs.source import EnvSource
from fastppo.learner import Learner
from fastppo.machine import limits
from fastppo.machine.shared_memory import Arena
from fastppo.policy import Policy
from fastppo.stepping.actors import CentralActor, LocalActor
from fastppo.stepping.environments import EpisodeRules
from fastppo.stepping.replay import EnvSnapshots, EpisodeLog
from fastppo.stepping.rewards import ReturnScaling
from fastppo.stepping.rollout_recorder import RolloutViews
from fastppo.trainer.rollout_arrays import env_groups
from fastppo.vecenv import Serial


def make_collector(arena: Arena, source: EnvSource, policy: Policy, learner: Learner,
                   config: Config, ranks: limits.OneProcess) -> Collector:
    """The Collector of a run: its environments, and the actor that chooses their actions."""
    vector, views = source.vector, RolloutViews.of(arena, 0, config.rows)
    log = EpisodeLog(views, config.replay_limit if vector is None else 0, config.agents)
    rules = EpisodeRules(config.replay_timeout, config.nan_policy == "reset_env", {}, config.past)
    snapshots = EnvSnapshots(arena, ReturnScaling(config.rows), log)
    collector = Collector(arena, policy, config, snapshots)
    if vector is not None and attached_simulator(collector, vector):
        return collector
    groups, plan, central = [range(config.rows)], None, None
    if vector is None and (config.num_workers or config.acting == "central"):
        own = ranks.own(config.num_envs)
        groups = env_groups(len(own), own.start, config.agents)
    if config.acting == "local":
        plan = policy_plan(policy, learner.flat)
    else:
        central = central_actor(config)(arena, policy, groups, config.seed)
    if config.past:
        from fastppo.games.past import PastSelves
        collector.past = PastSelves(arena, config.past_interval)
    if config.num_workers:
        from fastppo.trainer.worker_collector import start_workers
        start_workers(collector, source, learner, ranks, groups, plan, central, rules,
                      *stepper_of(source, config))
    else:
        stepper, local = stepper_of(source, config)
        actor = central or local(arena, 0, config.rows, plan, policy.observer.layout,
                                 policy.actions, config.seed)
        if vector is not None:
            from fastppo.vector.native_vector import NativeVector
            collector.vec = NativeVector(vector, arena, actor, config.seed)
        else:
            collector.vec = stepper(source.factories, views, actor, config.seed, rules=rules,
                                    groups=groups if central else (), log=log)
    if central:
        central.attach(collector)
    return collector


def central_actor(config: Config) -> type[CentralActor]:
    """The class that acts in the main process."""
    kind = CentralActor
    if config.device != "cpu" or config.learner == "graph":
        from fastppo.gpu.device_actor import DeviceActor as kind
    if config.past:
        from fastppo.games.past import past_central
        kind = past_central(kind)
    return kind


def stepper_of(source: EnvSource, config: Config) -> tuple[type[Serial], type[LocalActor]]:
    """The classes that step environments, or games of several agents, and act by compiled code."""
    if source.row_bytes:
        from fastppo.compiled_envs.stepper import CompiledSerial
        return CompiledSerial, LocalActor
    if config.agents == 1:
        return Serial, LocalActor
    from fastppo.games.stepper import Games, PastLocalActor
    return Games, PastLocalActor if config.past else LocalActor


def attached_simulator(collector: Collector, env: VectorEnv) -> bool:
    """Makes `collector` step `env` if that is a simulator, whose rollout stays on its device."""
    from fastppo.gpu.simulator import DeviceVector, Simulator
    if not isinstance(env, Simulator):
        return False
    policy, seed = collector.policy, collector.config.seed
    collector.vec = vec = DeviceVector(env, collector.arena, policy, seed)
    collector.rollout = collector.rollout._replace(
        obs=policy.observer.layout.structure(vec.columns.obs), act=vec.columns.act)
    return True
