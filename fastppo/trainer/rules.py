"""All rules about settings: which exclude or need each other, and what spaces and ranks allow.

And the number of worker processes, which depends on the machine.

A rule yields (what is wrong, fix) if it is broken. A run asks for them once, when it has made its
environments; what they need is known then, and torch is not imported yet.
"""

import logging
import os
import re
from dataclasses import fields
from itertools import chain
from typing import Callable, Iterator, Sequence

from gymnasium.spaces import Box

from fastppo.config import IMAGE_MODELS, MODELS, Config, default_of, having
from fastppo.errors import ConfigError, Fix, Omit, Set
from fastppo.machine import kernels, limits
from fastppo.spaces.actions import check_bounds
from fastppo.spaces.leaves import action_storage, brief_text, leaves, subspaces
from fastppo.spaces.observations import ObservationLayout

Broken = Iterator[tuple[str, Fix]]
BOUNDED, EXCLUDED, NEEDS = having("bounded"), having("excludes"), having("needs")

log = logging.getLogger("fastppo")
# Seconds, measured: bench/workers.py, bench/LOG.md.
START_SECONDS = 0.25  # until the workers have started
HANDOVER_SECONDS = 200e-6  # for the main process to wake the workers, and them to wake it


def check(*rules: Broken) -> None:
    """Raises ConfigError for the first of some rules that is broken."""
    for what, fix in chain(*rules):
        raise ConfigError(what, fix)


def check_settings(config: Config, seen: ObservationLayout) -> None:
    """Raises ConfigError or SpaceError for settings that contradict each other or the spaces."""
    action_storage(seen.act_space)  # it raises SpaceError
    changed = {one.name for one in fields(config) if getattr(config, one.name) != one.default}
    rules = [excluded(config, seen, changed), conflicts(config)]
    if not changed.isdisjoint(NEEDS):
        rules.append(without_effect(config, changed))
    if {"actor_keys", "critic_keys"} & changed:
        rules.append(unknown_keys(config, seen))
    if config.model in IMAGE_MODELS:
        rules.append(too_small_images(config, seen))
    check(*rules)
    for setting, given in (("action_scaling", config.action_scaling),
                           ("distribution", config.distribution in BOUNDED["distribution"]),
                           ("std", isinstance(config.std, str) and not config.action_scaling)):
        if given:
            check_bounds(seen.act_space, setting)


def normalises_rewards(config: Config) -> bool:
    """norm_rewards, whose default is True unless rewards are scaled or clipped."""
    chosen = config.norm_rewards
    return config.reward_scale == 1 and not config.clip_rewards if chosen is None else chosen


def excluded(config: Config, seen: ObservationLayout, changed: set[str]) -> Broken:
    """Settings `changed` that must have their defaults beside others, or with these actions."""
    actions = seen.act_space
    for applies, why, names in (
            (not any(isinstance(leaf.space, Box) for leaf in leaves(actions)),
             f"it is for Box actions, and the actions are {actions}",
             "std sde final_tanh action_scaling distribution"),
            (subspaces(actions), f"it is for actions that are one Box, and they are {actions}",
             "sde"),
            (config.model not in MODELS, "it is for built-in networks, and the model is your own",
             "layer_norm final_tanh shared_critic actor_keys critic_keys rnn rnn_size hidden_sizes"
             " activation sde"),
            (True, f"distribution={config.distribution} has no use for it",
             EXCLUDED["distribution"].get(config.distribution, "")),
            (config.sde, "sde explores with a gaussian of its own", "std distribution")):
        for name in names.split() if applies else ():
            if name in changed:
                yield f"{name} is {getattr(config, name)!r}, but {why}", Omit(name)


def without_effect(config: Config, changed: set[str]) -> Broken:
    """Settings `changed` that do nothing without the value of another that their fields name."""
    values = vars(config) | {"norm_rewards": normalises_rewards(config)}
    for name, (other, *wanted) in NEEDS.items():
        if name in changed and values[other] not in wanted:
            needed = Set(**{other: wanted[0]})
            yield (f"{name} is {values[name]}, but does nothing without {needed.text(shell=False)}",
                   (needed, Omit(name)))


def conflicts(config: Config) -> Broken:
    """Settings that contradict each other in every environment."""
    if config.eval_interval and not config.eval_episodes:
        yield (f"eval_interval is {config.eval_interval}, but eval_episodes is 0",
               Set(eval_episodes=10))
    if config.adaptive_kl is not None and not isinstance(config.lr, (int, float)):
        yield (f"adaptive_kl={config.adaptive_kl} adapts the learning rate to the KL, but lr is the"
               f" schedule {config.lr}", Set(lr=default_of("lr")))
    if config.adaptive_kl is not None and config.lr_warmup > 0:
        yield (f"lr_warmup={config.lr_warmup} raises the learning rate, which adaptive_kl adapts to"
               " the KL", (Omit("lr_warmup"), Omit("adaptive_kl")))
    if config.recompute_advantages and config.rnn != "none":
        yield ("recompute_advantages=True, but values of a network with memory depend on all steps"
               " before", Set(recompute_advantages=False))
    if config.shared_critic and config.actor_keys != config.critic_keys:
        yield ("actor and critic cannot share layers, because actor_keys and critic_keys differ",
               Set(shared_critic=False))
    engine = config.vec in ("native", "envpool")
    for name in having("wrapper") if config.preprocessing == "none" else ():
        changed = getattr(config, name) != default_of(name)
        if changed and name in ("end_on_life_loss", "noop_max", "fire_on_reset"):
            yield f"{name} is for preprocessing=atari", Set(**{name: default_of(name)})
        if changed and engine:
            yield (f"{name}={getattr(config, name)}, but vec={config.vec} makes complete"
                   " environments, whose own settings are given as env_kwargs", Omit(name))
    if engine and config.nan_policy == "reset_env":
        yield ("nan_policy=reset_env resets one environment, which a vector environment cannot",
               Omit("nan_policy"))
    project = re.sub(r"[/\\#?%:]", "-", config.wandb_project[:128])
    if "wandb" in (config.logger or ()) and config.wandb_project != project:
        yield (f"wandb_project is {config.wandb_project!r}, but wandb takes up to 128 characters,"
               " and none of / \\ # ? % :", Set(wandb_project=project))
    name = needs_workers(config)
    if name and (config.num_workers == 0 or not can_start_workers()):
        yield (f"{name}={getattr(config, name)} is for worker processes, and there are none",
               (Omit(name), *[Set(num_workers=1)] * can_start_workers()))


def unknown_keys(config: Config, seen: ObservationLayout) -> Broken:
    """Keys that the observations do not have."""
    known = tuple(key for key, _ in subspaces(seen.network_space) if isinstance(key, str))
    for name in ("actor_keys", "critic_keys"):
        keys = getattr(config, name)
        if keys is not None and not known:
            yield (f"{name} are parts of a Dict observation, but these are"
                   f" {brief_text(seen.space)}", Omit(name))
        if keys is not None and not (isinstance(keys, tuple) and keys and {*keys} <= {*known}):
            yield (f"{name} is {keys!r}, but must be some of {', '.join(known)}",
                   Set(**{name: known}))


def too_small_images(config: Config, seen: ObservationLayout) -> Broken:
    """A network for images, where no observation is one that is large enough."""
    smallest = IMAGE_MODELS[config.model]
    if smallest > min(sides := largest_image(seen), default=0):
        found = f"the largest here is {'x'.join(map(str, sides))}" if sides else \
            f"there are none in {brief_text(seen.space)}"
        yield (f"model={config.model} is for images (Boxes of uint8, or of other numbers with three"
               f" axes and the same finite bounds everywhere) of {smallest}x{smallest} or larger,"
               f" and {found}", Set(model=[*models_for(sides), "mlp"][0]))


def models_for(sides: tuple[int, ...]) -> list[str]:
    """The networks for images that suit those with two `sides`; none for ()."""
    return [name for name, smallest in IMAGE_MODELS.items() if min(sides, default=0) >= smallest]


def largest_image(seen: ObservationLayout) -> tuple[int, ...]:
    """(height, width) of the observation's largest image; () if it has none."""
    shapes = [leaf.image_shape for leaf in seen.leaves]
    return max((shape[1:] for shape in shapes if shape), key=min, default=())


def not_for_ranks(config: Config, count: int) -> Broken:
    """Settings of a resolved Config that `count` processes of torchrun cannot follow."""
    why = f"is for a run of one process, and torchrun has started {count}"
    if config.num_envs % count:
        yield (f"num_envs is {config.num_envs}, but each of the {count} processes has as many"
               " environments", Set(num_envs=max(count, config.num_envs // count * count)))
    for name in having("one_process"):
        if getattr(config, name) != default_of(name):
            yield f"{name}={getattr(config, name)} {why}", Omit(name)
    if config.vec != "workers":
        yield (f"vec={config.vec}, as that of a VectorEnv, {why}",
               (Set(vec="workers"), "give an id or a function in place of the VectorEnv"))
    if not config.num_workers:
        yield f"num_workers=0 {why}", Set(num_workers=1)
    if config.learner == "graph":
        yield f"learner=graph {why}", Set(learner="torch")


def trained_by(config: Config) -> dict[str, str]:
    """The settings that must be the same in all processes of a run, as texts."""
    own = having("of_rank")
    return {name: repr(value) for name, value in vars(config).items() if name not in own}


def differing(settings: Sequence[dict[str, str]]) -> Broken:
    """Settings of trained_by that are others in a process than in the first one."""
    return ((f"process 0 has {name}={value}, and process {rank} {name}={other[name]}",
             "start all with the same settings") for rank, other in enumerate(settings)
            for name, value in settings[0].items() if other[name] != value)


def can_start_workers() -> bool:
    """True if worker processes can be started: with the compiled extension, and not on Windows."""
    return kernels.COMPILED and os.name != "nt"


def worker_count(num_workers: int | str | None, num_envs: int, faster: Callable[[int], bool]
                 ) -> int:
    """The number of worker processes for `num_envs` environments; 0: only the main process.

    None gives one per core; "auto" gives the same, or 0 if `faster(workers)` is False. A number is
    limited by that of the environments, which the log says. Raises ConfigError if this machine
    cannot run workers.
    """
    if not can_start_workers():
        if num_workers and num_workers != "auto":
            raise ConfigError(f"num_workers={num_workers}, but worker processes need the compiled"
                              " extension, which is not available here",
                              ("install a C compiler, then run: pip install -e .",
                               Set(num_workers=0)))
        return 0
    if num_workers is None or num_workers == "auto":
        count = min(max(1, limits.usable_cores() // limits.ranks_here()), num_envs)
        return count if num_workers is None or faster(count) else 0
    if num_workers > num_envs:
        log.warning("num_workers=%d, but there are only %d environments: %d workers are started",
                    num_workers, num_envs, num_envs)
    return min(num_workers, num_envs)


def workers_are_faster(step_seconds: float, config: Config, workers: int) -> bool:
    """True if `workers` save more time than they cost, or if a setting asks for them.

    They save their share of the stepping. They cost their start and, in local acting, one handover
    per rollout; in central acting one per step of each half of the environments.
    """
    if needs_workers(config):
        return True
    rollouts = -(-config.total_steps // (config.num_envs * config.num_steps))
    handovers = rollouts if config.acting == "local" else rollouts * config.num_steps * 2
    saved = config.total_steps * step_seconds * (1 - 1 / max(1, workers))
    return saved > START_SECONDS + handovers * HANDOVER_SECONDS


def needs_workers(config: Config) -> str:
    """The first setting that asks for what only worker processes have; "" if none does."""
    if config.on_worker_failure == "restart":
        return "on_worker_failure"
    if config.step_timeout not in (0, default_of("step_timeout")):
        return "step_timeout"
    return ""
