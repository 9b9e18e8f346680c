"""Resolves the settings of a run: its preset, then every None and "auto".

The rules are asked in between, when what they depend on is resolved. Until then nothing imports
torch, so that a wrong setting is refused at once.
"""

import logging
import secrets
from functools import partial
from typing import Any, Callable

from fastppo.config import IMAGE_MODELS, MODELS, Config, default_of
from fastppo.envs.source import EnvSource
from fastppo.machine import limits
from fastppo.spaces.leaves import STATE
from fastppo.spaces.observations import ObservationLayout
from fastppo.trainer.rules import (
    OF_DEVICES,
    can_start_workers,
    case_of,
    check,
    check_settings,
    keys_of,
    largest_image,
    models_for,
    needs_workers,
)

log = logging.getLogger("fastppo")
LONG, SHORT_LR = 1_000_000, 5e-4  # steps of a run, from which on this rate can end exploration
WIDE_LAYER = 256  # units, from which on products of minibatches keep a GPU busy
# Seconds, measured: bench/workers.py, bench/LOG.md.
START_SECONDS = 0.25  # until the workers have started
HANDOVER_SECONDS = 200e-6  # for the main process to wake the workers, and them to wake it


def resolve(source: EnvSource) -> Config:
    """The Config of `source` with every None and "auto" resolved.

    Raises ConfigError or SpaceError for settings that contradict each other, the spaces or this
    machine.
    """
    given, seen = source.config, ObservationLayout(source.obs_space, source.act_space)
    config = resolve_for_spaces(given, seen)
    if config.gamma == "auto":
        config = config.replace(gamma=discount_for(source.step_limit))
    if config.lr == "auto":
        config = config.replace(lr=SHORT_LR if config.total_steps < LONG else default_of("lr"))
    check_settings(config, given, seen)
    from fastppo.compiled import support
    _warn_of_model(given, seen)
    slow = support.unsupported_in_learner(config, seen)
    config = config.replace(precision=_precision(config, bool(slow)))
    graph = (config.device != "cpu" and limits.rank_count() == 1
             and not support.unsupported_in_graph(config))
    learner, acting = config.learner, config.acting
    if learner == "auto":
        learner = "graph" if graph else "torch" if slow else "kernel"
    if acting == "auto":
        acting = "central" if support.unsupported_in_acting(config, seen) else "local"
    if slow and learner != "kernel":
        log.info("learner=%s, because the compiled one, which is 5 to 15 times as fast for small"
                 " networks, does not support %s", learner, slow)
    config = config.replace(learner=learner, acting=acting)
    # Small networks are fastest with one thread. Convolutions gain from more; workers sleep then.
    by_torch = learner != "kernel" and config.device == "cpu"
    cores = limits.usable_cores() if by_torch and _convolves(config, seen) else 1
    workers = 0 if config.num_workers == 0 or config.vec != "workers" else worker_count(
        config.num_workers, config.num_envs // limits.rank_count(),
        partial(workers_are_faster, source.step_seconds, config))
    return config.replace(
        torch_threads=config.torch_threads or 1, num_workers=workers,
        update_threads=config.update_threads or config.torch_threads or cores)


def resolve_for_spaces(config: Config, seen: ObservationLayout) -> Config:
    """The Config with those settings resolved on which rules depend, and with a seed."""
    model, shared, device = config.model, config.shared_critic, config.device
    if config.agents > 1 and config.actor_keys is None and STATE in (config.critic_keys or ()):
        config = config.replace(actor_keys=tuple(key for key in keys_of(seen) if key != STATE))
    if model == "auto":
        model = "cnn" if "cnn" in models_for(largest_image(seen)) else "mlp"
    if shared is None:
        shared = (model in IMAGE_MODELS and config.actor_keys == config.critic_keys
                  and config.critic_hidden_sizes is None)
    norm_rewards = config.norm_rewards
    if norm_rewards is None:
        norm_rewards = config.reward_scale == 1 and not config.clip_rewards
    config = config.replace(
        norm_rewards=norm_rewards, model=model, shared_critic=shared,
        seed=secrets.randbits(31) if config.seed is None else config.seed,
        vec="workers" if config.vec == "auto" else config.vec)
    by_rule = device == "auto" and not _suits_gpu(config, seen)
    return config.replace(device="cpu" if by_rule else device_to_use(config))


def discount_for(limit: Any) -> float:
    """The discount of gamma=auto: what is a fifth of an episode's `limit` away counts a third."""
    known = isinstance(limit, int) and limit > 0
    return min(max(0.97, 1 - 5 / limit), 0.999) if known else default_of("gamma")


def _convolves(config: Config, seen: ObservationLayout) -> bool:
    """True for convolutional networks; a user's model for images most likely is one."""
    return config.model in IMAGE_MODELS or config.model not in MODELS and any(
        leaf.like_image or leaf.board for leaf in seen.leaves)


def _suits_gpu(config: Config, seen: ObservationLayout) -> bool:
    """True if device=auto takes a GPU: for convolutions and for layers of WIDE_LAYER units.

    Other networks act and learn faster on the CPU, in workers and in C. For layers no GPU has been
    measured yet. Settings of one device alone decide before it.
    """
    if config.device_ids or config.learner == "graph" or config.precision == "tf32":
        return True
    on_cpu = config.learner == "kernel" or config.acting == "local"
    return not on_cpu and (max(config.hidden_sizes + config.critic_sizes, default=0) >= WIDE_LAYER
                           or _convolves(config, seen))


def _precision(config: Config, slow: bool) -> str:
    """The precision with "auto" resolved; a warning for bf16 that the processor lacks.

    `slow`: whether the compiled learner cannot learn.
    """
    if config.precision == "auto":
        by_torch = slow if config.learner == "auto" else config.learner != "kernel"
        by_torch = by_torch and config.acting != "local"  # kernels act in fp32
        return "fp32" if config.model not in IMAGE_MODELS else "tf32" if config.device != "cpu" \
            else "bf16" if by_torch and limits.has_bf16() else "fp32"
    if config.precision == "bf16" and not limits.has_bf16(config.device):
        log.warning("precision=bf16 is slow here: this processor converts each number, because it"
                    " computes in fp32\n  fix: precision=fp32")
    return config.precision


def _warn_of_model(config: Config, seen: ObservationLayout) -> None:
    """Warns of an MLP that was chosen for images."""
    sides = largest_image(seen)
    fitting = models_for(sides)
    if fitting and config.model == "auto" and "cnn" not in fitting:
        log.warning("model=mlp was chosen, because model=cnn is for images of %dx%d or larger, and"
                    " the largest here is %s\n  fix: model=%s", *[IMAGE_MODELS["cnn"]] * 2,
                    "x".join(map(str, sides)), fitting[0])


def device_to_use(config: Config) -> str:
    """The device with "auto" resolved, and with the number that a process of torchrun has."""
    device = config.device
    if device == "auto":
        device = "cuda" if limits.gpus() else "cpu"
    if device.startswith("cpu"):
        return "cpu"  # there is one
    by_rank = device == "cuda" and (limits.rank_count() > 1 or config.device_ids)
    return f"cuda:{limits.device_number(config.device_ids)}" if by_rank else device


def checked_device(device: str) -> str:
    """The same for a policy that is loaded; ConfigError if torch cannot use the device."""
    given = Config(device=device)
    config = given.replace(device=device_to_use(given))
    check(OF_DEVICES, case_of(config, given))
    return config.device


def worker_count(num_workers: int | str | None, num_envs: int, faster: Callable[[int], bool]
                 ) -> int:
    """The number of worker processes for `num_envs` environments; 0: only the main process.

    None gives one per core; "auto" gives the same, or 0 if `faster(workers)` is False. A number is
    limited by that of the environments.
    """
    if not can_start_workers():
        return 0
    if num_workers is None or num_workers == "auto":
        count = min(max(1, limits.usable_cores() // limits.ranks_here()), num_envs)
        return count if num_workers is None or faster(count) else 0
    return min(int(num_workers), num_envs)


def workers_are_faster(step_seconds: float, config: Config, workers: int) -> bool:
    """True if `workers` save more time than they cost, or if a setting asks for them.

    They save their share of the stepping. They cost their start and, in local acting, one handover
    per rollout; in central acting one per step of each half of the environments.
    """
    if needs_workers(config):
        return True
    rollouts = -(-config.total_steps // (config.rows * config.num_steps))
    handovers = rollouts if config.acting == "local" else rollouts * config.num_steps * 2
    saved = config.total_steps * step_seconds * (1 - 1 / max(1, workers))
    return saved > START_SECONDS + handovers * HANDOVER_SECONDS
