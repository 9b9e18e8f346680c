"""Resolves the settings of a run: its preset, then every None and "auto"."""

import logging
import secrets
from functools import partial

import torch

from fastppo.compiled.support import (
    unsupported_in_acting,
    unsupported_in_graph,
    unsupported_in_learner,
)
from fastppo.config import IMAGE_MODELS, MODELS, Config
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError, Omit, Set
from fastppo.machine import limits
from fastppo.spaces.observations import ObservationEncoding, ObservationLayout
from fastppo.trainer.rules import (
    largest_image,
    models_for,
    normalises_rewards,
    worker_count,
    workers_are_faster,
)

log = logging.getLogger("fastppo")

WIDE_LAYER = 256  # units, from which on products of minibatches keep a GPU busy


def resolve(source: EnvSource) -> Config:
    """The Config of `source` with every None and "auto" resolved.

    Raises ConfigError for what this machine or the compiled kernels do not support.
    """
    config, seen = source.config, ObservationLayout(source.obs_space, source.act_space)
    model, shared, device = config.model, config.shared_critic, config.device
    if model in ("auto", "mlp"):
        model = _mlp_or_cnn(model, seen) if any(len(x.shape) > 1 for x in seen.leaves) else "mlp"
    if shared is None:
        shared = model in IMAGE_MODELS and config.actor_keys == config.critic_keys
    config = config.replace(
        norm_rewards=normalises_rewards(config), model=model, shared_critic=shared,
        seed=secrets.randbits(31) if config.seed is None else config.seed,
        vec="workers" if config.vec == "auto" else config.vec)
    if device != "cpu":
        by_rule = device == "auto" and not _suits_gpu(config, seen)
        device = "cpu" if by_rule else usable_device(config)
    config = config.replace(device=device)
    config = config.replace(precision=_precision(config, seen))
    slow = unsupported_in_learner(config, seen)
    graph = config.learner == "graph" or (
        config.learner == "auto" and config.device != "cpu" and limits.rank_count() == 1)
    learner = _compiled_unless(unsupported_in_graph(config) if graph else slow, config, "learner",
                               "graph" if graph else "kernel", "torch")
    if slow and learner != "kernel":
        log.info("learner=%s, because the compiled one, which is 5 to 15 times as fast for small"
                 " networks, does not support %s", learner, slow)
    config = config.replace(learner=learner, acting=_compiled_unless(
        unsupported_in_acting(config, seen), config, "acting", "local", "central"))
    # Small networks are fastest with one thread. Convolutions gain from more; workers sleep then.
    by_torch = learner != "kernel" and device == "cpu"
    cores = limits.usable_cores() if by_torch and _convolves(config, seen) else 1
    workers = 0 if config.num_workers == 0 else worker_count(
        config.num_workers, config.num_envs // limits.rank_count(),
        partial(workers_are_faster, source.step_seconds, config))
    return config.replace(
        torch_threads=config.torch_threads or 1, num_workers=workers,
        update_threads=config.update_threads or config.torch_threads or cores)


def _convolves(config: Config, seen: ObservationLayout) -> bool:
    """True for convolutional networks; a user's model for images most likely is one."""
    return config.model in IMAGE_MODELS or config.model not in MODELS and any(
        leaf.like_image for leaf in seen.leaves)


def _suits_gpu(config: Config, seen: ObservationLayout) -> bool:
    """True if device=auto takes a GPU: for convolutions and for layers of WIDE_LAYER units.

    Other networks act and learn faster on the CPU, in workers and in C. The rule stands in for
    figures, which no GPU has given yet. Settings of one device alone decide before it.
    """
    if config.device_ids or config.learner == "graph" or config.precision == "tf32":
        return True
    on_cpu = config.learner == "kernel" or config.acting == "local"
    return not on_cpu and (max(config.hidden_sizes, default=0) >= WIDE_LAYER
                           or _convolves(config, seen))


def _precision(config: Config, seen: ObservationLayout) -> str:
    """The precision with "auto" resolved; a warning for bf16 that the processor lacks.

    Raises ConfigError for bf16 where no layer would compute in it.
    """
    on_cpu = config.device == "cpu"
    if config.precision == "auto" and config.model not in IMAGE_MODELS:
        return "fp32"
    if config.precision == "auto":
        by_torch = unsupported_in_learner(config, seen) if config.learner == "auto" else \
            config.learner != "kernel"
        return "tf32" if not on_cpu else "bf16" if limits.has_bf16() and by_torch else "fp32"
    if config.precision == "tf32" and on_cpu:
        raise ConfigError("precision is 'tf32', which only GPUs compute in", Set(precision="fp32"))
    if config.precision == "bf16":
        if config.model == "mlp":
            raise ConfigError("precision is 'bf16', but model=mlp has no layer that computes in it:"
                              " it is for convolutional networks and your own", Omit("precision"))
        if not limits.has_bf16(config.device):
            log.warning("precision=bf16 is slow here: this processor converts each number, because"
                        " it computes in fp32\n  fix: precision=fp32")
    return config.precision


def _mlp_or_cnn(model: str, seen: ObservationLayout) -> str:
    """The model auto or mlp resolved; a warning for an MLP on images."""
    sides = largest_image(seen)
    fitting = models_for(sides)
    if "cnn" in fitting:
        if model == "auto":
            return "cnn"
        log.warning("model=mlp takes images as %s separate numbers, and does not know which pixels"
                    " are neighbours\n  fix: model=cnn", f"{ObservationEncoding(seen).size:,}")
    elif fitting and model == "auto":
        log.warning("model=mlp was chosen, because model=cnn is for images of %dx%d or larger, and"
                    " the largest here is %s\n  fix: model=%s", *[IMAGE_MODELS["cnn"]] * 2,
                    "x".join(map(str, sides)), fitting[0])
    return "mlp"


def usable_device(config: Config) -> str:
    """The device with "auto" resolved; ConfigError if torch cannot use it."""
    device = config.device
    if device == "auto":
        device = "cuda" if limits.gpus() else "cpu"
    if device.startswith("cuda") and (why := limits.no_gpu()):
        raise ConfigError(f"device={device}, but {why}", Set(device="cpu"))
    if device.startswith("cpu"):
        return "cpu"  # there is one
    by_rank = device == "cuda" and (limits.rank_count() > 1 or config.device_ids)
    number = limits.device_number(config.device_ids) if by_rank else torch.device(device).index
    if device.startswith("cuda") and not 0 <= (number or 0) < (count := limits.gpus()):
        there = Set(device_ids=tuple(range(count))) if by_rank else Set(device=f"cuda:{count - 1}")
        raise ConfigError(f"this process has GPU {number}, but there are {count}, counted from 0",
                          there)
    return f"cuda:{number}" if by_rank else device


def _compiled_unless(reason: str, config: Config, name: str, compiled: str, general: str) -> str:
    """The choice `name` resolved: `compiled`, unless there is a `reason` for which it cannot be."""
    choice = getattr(config, name)
    if choice == compiled and reason:
        raise ConfigError(f"{name}={compiled} does not support {reason}", Set(**{name: general}))
    return compiled if choice in ("auto", compiled) and not reason else general
