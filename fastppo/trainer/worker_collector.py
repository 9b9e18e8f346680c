"""A Collector whose environments are in worker processes, which may share the update."""

from functools import partial
from typing import Sequence

from fastppo.collect import Collector
from fastppo.compiled.learner import update_coefficients
from fastppo.compiled.shared_minibatches import SharedMinibatches
from fastppo.envs.source import EnvSource
from fastppo.learner import Learner
from fastppo.machine import kernels, limits
from fastppo.stepping.actors import CentralActor, LocalActor, PolicyPlan
from fastppo.stepping.environments import WARMUP_EPISODE, EpisodeRules
from fastppo.stepping.replay import EpisodeLog
from fastppo.update.schedules import coefficients_at
from fastppo.vecenv import Serial
from fastppo.workers.protocol import START, WARMUP
from fastppo.workers.team import WorkerRestarts, WorkerTeam
from fastppo.workers.worker import HelperPlan, helper_count, make_worker_serial
from fastppo.workers.worker_vecenv import WorkerVecEnv


def start_workers(collector: Collector, source: EnvSource, learner: Learner,
                  ranks: limits.OneProcess, groups: Sequence[range], plan: PolicyPlan | None,
                  central: CentralActor | None, rules: EpisodeRules,
                  stepper: type[Serial], actor: type[LocalActor]) -> None:
    """Makes worker processes step the environments of `collector`, and share updates if they can.

    They act by `plan`, or `central` acts in this process.
    """
    arena, policy, config = collector.arena, collector.policy, collector.config
    helper, own = None, ranks.own(config.num_envs)
    if "grads" in arena.spec and ranks.size == 1:
        terms = update_coefficients(config, coefficients_at(config, 1.0))
        helper = HelperPlan(learner.plan, terms, policy.observer.norm)
    make = partial(make_worker_serial, groups, plan, policy.observer.layout, policy.actions,
                   config.seed, rules, helper, helper_count(config.num_workers), config.agents,
                   stepper, actor)
    team = WorkerTeam(make, source.factories[own.start:own.stop],
                      config.num_workers, arena, len(groups), config.step_timeout,
                      config.reset_timeout, main_computes=central is not None,
                      allowed=config.worker_env or (), first=own.start)
    team.episode_of = partial(_running_episode, team, collector.snapshots.log, config.seed)
    restarts = WorkerRestarts(team, rules.cuts) if config.on_worker_failure == "restart" else None
    collector.vec = WorkerVecEnv(team, config.num_steps, central, restarts, config.agents)
    if ranks.size > 1:
        from fastppo.ranks.processes import RankEnvs
        collector.vec = RankEnvs(collector.vec, arena, ranks)
    if helper:
        learner.shared = SharedMinibatches(team, arena, collector.rollout)
        learner.buffers = learner.buffers._replace(grads=arena["grads"], sums=arena["sums"])


def _running_episode(team: WorkerTeam, log: EpisodeLog, seed: int, env: int) -> tuple[int, int]:
    """(seed, number) of the running episode of an environment."""
    row = env * log.agents
    number = int(log.state.episodes[row, 0]) if team.posted.command == START else \
        log.running_now(row)[0]
    if team.posted.command == WARMUP:
        number = WARMUP_EPISODE - number
    return kernels.episode_seed(seed, kernels.Purpose.ENV_SEED, env, number), number
