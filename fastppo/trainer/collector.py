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
    rules = EpisodeRules(config.replay_timeout, config.nan_policy == "reset_env", {})
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
    elif config.device == "cpu" and config.learner != "graph":
        central = CentralActor(arena, policy, groups, config.seed)
    else:
        from fastppo.gpu.device_actor import DeviceActor
        central = DeviceActor(arena, policy, groups, config.seed)
    if config.num_workers:
        from fastppo.trainer.worker_collector import start_workers
        start_workers(collector, source, learner, ranks, groups, plan, central, rules,
                      stepper_of(config.agents))
    else:
        actor = central or LocalActor(arena, 0, config.rows, plan, policy.observer.layout,
                                      policy.actions, config.seed)
        if vector is not None:
            from fastppo.vector.native_vector import NativeVector
            collector.vec = NativeVector(vector, arena, actor, config.seed)
        else:
            collector.vec = stepper_of(config.agents)(
                source.factories, views, actor, config.seed, groups=groups if central else (),
                rules=rules, log=log)
    if central:
        central.attach(collector)
    return collector


def stepper_of(agents: int) -> type[Serial]:
    """The class that steps environments, or games of several `agents`."""
    if agents == 1:
        return Serial
    from fastppo.games.stepper import Games
    return Games


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
