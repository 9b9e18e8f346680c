"""Chooses the CPU or the GPU for device=auto, by measuring both with the networks of the run."""

import gc
import logging
import math
import time
from contextlib import closing, contextmanager, suppress
from statistics import median
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import torch

from fastppo.build.arena_layout import env_groups, make_arena, shares_update, trial_rollout
from fastppo.build.learner import make_learner
from fastppo.build.model import build_policy
from fastppo.build.resolve import resolve
from fastppo.build.user_model import trial_rows
from fastppo.config import Config
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError, Error
from fastppo.learners.compiled import policy_plan
from fastppo.learners.device_actor import central_actor, pinned
from fastppo.machine import limits
from fastppo.machine.ranks import Ranks, rank_count
from fastppo.networks.torch_state import torch_threads
from fastppo.policy import Policy
from fastppo.spaces.leaves import tree_map
from fastppo.stepping.actors import LocalActor
from fastppo.update.arithmetic import layer_flops
from fastppo.update.coefficients import coefficients_at
from fastppo.update.flat_parameters import FlatParameters
from fastppo.workers.update_helper import helper_count

MEASURED_SECONDS = 0.2  # of updates, and of acting, after a first call of each
MOST_CPU_FLOPS = 1e10  # of a measured update on the CPU: a sixth of a second of one core

log = logging.getLogger("fastppo")


class Placement(NamedTuple):
    """The device of a run, and what was measured of each: seconds per environment step.

    They are the seconds of acting and of updating; infinite where the device failed.
    """

    device: str
    seconds: dict[str, float]

    def __str__(self) -> str:
        times = (f"{device} failed" if math.isinf(seconds) else f"{device} {1e6 * seconds:,.2f}"
                 for device, seconds in self.seconds.items())
        return f"microseconds per step of acting and updating: {', '.join(times)}"


def place(source: EnvSource) -> Placement | None:
    """The faster device if device=auto leaves a choice, else None."""
    config = source.config
    free = config.device == "auto" and rank_count() == 1 and not config.device_ids
    return placement_among(source, ("cuda", "cpu")) if free and limits.gpus() else None


def placement_among(source: EnvSource, devices: Sequence[str]) -> Placement:
    """The fastest of `devices` for the run that `source` describes; the first of equal ones."""
    seconds: dict[str, float] = {}
    with _without_warnings():
        for device in devices:
            try:
                seconds[device] = seconds_per_step(source, resolve(source, device=device))
            except ConfigError:  # a setting that only another device has
                seconds[device] = math.inf
            gc.collect()  # of a trial some parts name each other
            with suppress(RuntimeError):  # of torch, once a capture has failed
                torch.cuda.empty_cache()  # the run has the memory that torch keeps
    return Placement(min(seconds, key=lambda device: seconds[device]), seconds)


def seconds_per_step(source: EnvSource, config: Config) -> float:
    """Seconds of acting and of updating for each environment step, as measured; see Placement."""
    with torch_threads(config.torch_threads, config.precision == "tf32"):
        policy = build_policy(source.obs_space, source.act_space, config)
        try:
            policy = policy.to(config.device)  # compile is left out: it takes a minute
            return _acting(source, config, policy) + _updating(source, config, policy)
        except (Error, RuntimeError) as error:  # such as a GPU whose memory others use
            log.info("device=%s cannot be measured: %s", config.device, error)
            return math.inf


def _acting(source: EnvSource, config: Config, policy: Policy) -> float:
    """Seconds per step of choosing the actions, as the run does it: in workers, or centrally."""
    one = config.replace(num_steps=1, num_minibatches=1, num_workers=0)
    with closing(make_arena(one, policy)) as arena, pinned(arena, config.device):
        rows = trial_rows(policy.observer.layout)
        arena["frames"].fill(0)
        for e in range(config.num_envs):
            arena["obs"][:, e] = rows[e % 2]
        if config.acting == "local":
            plan = policy_plan(policy, FlatParameters(policy, torch.from_numpy(arena["params"])))
            actor: Any = LocalActor(arena, 0, config.num_envs, plan, policy.observer.layout,
                                    policy.actions, config.seed)
            for name, moment in (("mean", "shift"), ("scale", "scale")):
                arena[name][:] = getattr(policy.observer, moment)
            group, processes = range(config.num_envs), max(1, config.num_workers)
        else:
            groups = env_groups(config.num_envs)
            actor, group, processes = central_actor(arena, policy, groups, config), groups[0], 1

        def call() -> None:
            actor.start(0)
            actor.act(0, group)
        return _seconds(call) / len(group) / processes


def _updating(source: EnvSource, config: Config, policy: Policy) -> float:
    """Seconds per step of an update with one minibatch of the run's size, all epochs of it."""
    envs = max(1, config.num_envs // config.num_minibatches)
    part = config.replace(  # without target_kl, which would cut some of the repeated updates
        num_envs=envs, num_minibatches=max(1, envs * config.num_minibatches // config.num_envs),
        num_workers=0, target_kl=None)
    if config.device == "cpu":
        step = 3 * config.epochs * envs * layer_flops(policy)
        steps = max(1, min(config.num_steps, int(MOST_CPU_FLOPS / max(1, step))))
        part = part.replace(num_minibatches=min(part.num_minibatches, envs * steps),
                            num_steps=steps)
    with closing(Ranks(config.backend)) as ranks, closing(make_arena(part, policy)) as arena:
        learner = make_learner(policy, part, arena, ranks)
        rollout, coefs = trial_rollout(policy, part.num_steps, envs), coefficients_at(config, 1.0)
        rollout = rollout._replace(  # where the run has its observations already
            obs=tree_map(lambda x: x.to(config.device), rollout.obs))
        with torch_threads(config.update_threads, config.precision == "tf32"):
            seconds = _seconds(lambda: learner.update(rollout, coefs, 0))
    processes = 1 + helper_count(config.num_workers) if shares_update(config, policy) else 1
    return seconds / (envs * part.num_steps) / processes


def _seconds(call: Callable[[], Any]) -> float:
    """The median of the seconds of a call, after one in which libraries choose their kernels."""
    call()
    found, end = [], time.perf_counter() + MEASURED_SECONDS
    while not found or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return median(found)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keeps the package's warnings back: the run itself gives them again."""
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)
