"""All rules about settings: their conflicts with each other, spaces, machine and processes.

They are asked once, by resolve.py, when the environments have been made and what they depend on is
resolved; torch is imported for a few of them alone.
"""

import os
import re
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, Callable, Iterable, NamedTuple

from gymnasium.spaces import Box

from fastppo.config import IMAGE_MODELS, MODELS, Config, default_of, having
from fastppo.errors import ConfigError, Fix, Install, Omit, Set
from fastppo.machine import kernels, limits
from fastppo.spaces.actions import unbounded
from fastppo.spaces.leaves import NARROWER, action_storage, brief_text, leaves, subspaces
from fastppo.spaces.observations import ObservationLayout

ENGINES = "native", "envpool"  # values of vec without workers
A_FOLDER = Set(run_dir="runs/my_run")
ONE_PROCESS = "is for a run of one process, and torchrun has started {processes}"


class Conflict(NamedTuple):
    """What cannot be: values of settings together, or with what the run meets."""

    about: str  # settings: it is looked for where one of them is not its default; "": always
    applies: Callable[[Any], Any]  # of a case: true, or what is `found`, if it is there
    text: str  # with the {attributes} of the case
    fix: Fix | Callable[[Any], Fix]  # or a function of the case


def case_of(config: Config, given: Config, seen: ObservationLayout | None = None
            ) -> SimpleNamespace:
    """What conflicts are looked for in: a Config, as `given` and resolved, and what it meets."""
    changed = {one.name for one in fields(given) if getattr(given, one.name) != one.default}
    return SimpleNamespace(**vars(config), config=config, given=given, seen=seen, changed=changed,
                           processes=limits.rank_count())


def check(conflicts: Iterable[Conflict], case: SimpleNamespace) -> None:
    """Raises ConfigError for the first of some conflicts that is there."""
    for about, applies, text, fix in conflicts:
        if (not about or not case.changed.isdisjoint(about.split())) and (found := applies(case)):
            case.found = found
            raise ConfigError(text.format_map(vars(case)), fix(case) if callable(fix) else fix)


def check_settings(config: Config, given: Config, seen: ObservationLayout) -> None:
    """Raises ConfigError or SpaceError for `given` settings that contradict each other or the rest.

    `config` has those resolved on which others depend.
    """
    action_storage(seen.act_space)  # it raises SpaceError
    check(CONFLICTS, case_of(config, given, seen))


def models_for(sides: tuple[int, ...]) -> list[str]:
    """The networks for images that suit those with two `sides`; none for ()."""
    return [name for name, smallest in IMAGE_MODELS.items() if min(sides, default=0) >= smallest]


def largest_image(seen: ObservationLayout) -> tuple[int, ...]:
    """(height, width) of the observation's largest image; () if it has none."""
    shapes = [leaf.image_shape for leaf in seen.leaves]
    return max((shape[1:] for shape in shapes if shape), key=min, default=())


def can_start_workers() -> bool:
    """True if worker processes can be started: with the compiled extension, and not on Windows."""
    return kernels.COMPILED and os.name != "nt"


def needs_workers(config: Any) -> str:
    """The first setting that asks for what only worker processes have; "" if none does."""
    if config.on_worker_failure == "restart":
        return "on_worker_failure"
    if config.step_timeout not in (0, default_of("step_timeout")):
        return "step_timeout"
    return ""


def _missing_logger(case: Any) -> str | None:
    from fastppo.machine.installation import is_missing
    return next(filter(is_missing, case.logger), None)


def _without_nccl(case: Any) -> bool:
    from fastppo.ranks.processes import nccl_fits
    return not nccl_fits(case.device_ids)


def _compiled() -> Any:
    from fastppo.compiled import support
    return support


def keys_of(seen: ObservationLayout) -> tuple[str, ...]:
    """The names of the parts of a Dict observation that a network sees; () for another one."""
    return tuple(key for key, _ in subspaces(seen.network_space) if isinstance(key, str))


def _too_small(case: Any) -> str:
    """What images the case's model needs and what there are, if they are too small; else ""."""
    sides, smallest = largest_image(case.seen), IMAGE_MODELS.get(case.model, 0)
    if not smallest or any(leaf.convolved(smallest) for leaf in case.seen.leaves):
        return ""
    found = f"the largest here is {'x'.join(map(str, sides))}" if sides else \
        f"there are none in {brief_text(case.seen.space)}"
    return f"{smallest}x{smallest} or larger, and {found}"


def _omitted(about: str, applies: Callable[[Any], Any], why: str) -> list[Conflict]:
    """A conflict of each setting in `about`, which then must have its default."""
    return [Conflict(name, applies, f"{name} is {{{name}!r}}, but {why}", Omit(name))
            for name in about.split()]


def _mapped(name: str, applies: Callable[[Any], Any]) -> Conflict:
    """A conflict of a setting that maps actions to their bounds."""
    return Conflict(name, applies, f"{name} maps actions to their bounds, but {{found}}",
                (Omit(name), NARROWER))


# For make_vec, too.
NO_WORKERS = Conflict(
    "num_workers", lambda c: c.num_workers not in (0, "auto") and not can_start_workers(),
    "num_workers={num_workers}, but worker processes need the compiled extension, which is not"
    " available here", ("install a C compiler, then run: pip install -e .", Set(num_workers=0)))

# For policies that are loaded, too.
OF_DEVICES = [
    Conflict("device", lambda c: c.device.startswith("cuda") and limits.no_gpu(),
        "device={given.device}, but {found}", Set(device="cpu")),
    Conflict("device", lambda c: c.device.startswith("cuda") and (
            number := int(c.device.partition(":")[2] or 0)) >= (count := limits.gpus())
            and f"GPU {number}, but there are {count}",
        "this process has {found}, counted from 0", ""),
]

CONFLICTS = [
    # What is missing, or too small.
    Conflict("logger", _missing_logger, 'logger="{found}" needs the package {found}, which is not'
        " installed", lambda c: Install(c.found)),
    Conflict("logger", lambda c: "tensorboard" in c.logger and c.run_dir is None,
        'logger="tensorboard" writes into the folder of the run, and run_dir is None', A_FOLDER),
    Conflict("video_interval", lambda c: c.run_dir is None,
        "video_interval is {video_interval}, but videos are files of the run, and run_dir is None",
        (A_FOLDER, Set(video_interval=None))),
    Conflict("num_envs num_steps num_minibatches",
        lambda c: c.num_minibatches > c.num_envs * c.num_steps and c.num_envs * c.num_steps,
        "num_minibatches {num_minibatches} is more than the {found} rows of num_envs {num_envs} x"
        " num_steps {num_steps}",
        lambda c: Set(num_minibatches=min(c.found, c.given.usual("num_minibatches")))),
    Conflict("eval_interval", lambda c: not c.eval_episodes,
        "eval_interval is {eval_interval}, but eval_episodes is 0", Set(eval_episodes=10)),
    *OF_DEVICES,
    Conflict("precision", lambda c: c.precision == "tf32" and c.device == "cpu",
        "precision is 'tf32', which only GPUs compute in", Set(precision="fp32")),
    Conflict("precision", lambda c: c.precision == "bf16" and c.model == "mlp",
        "precision is 'bf16', but model=mlp has no layer that computes in it: it is for"
        " convolutional networks and your own", Omit("precision")),

    # Settings that exclude each other.
    *(rule for value, names in having("excludes")["distribution"].items()
      for rule in _omitted(names, lambda c, value=value: c.distribution == value,
                           f"distribution={value} has no use for it")),
    *_omitted("std distribution rpo_alpha", lambda c: c.sde, "sde explores with a gaussian of its"
              " own"),
    *_omitted("layer_norm final_tanh actor_keys critic_keys rnn rnn_size hidden_sizes"
              " critic_hidden_sizes activation sde", lambda c: c.model not in MODELS,
              "it is for built-in networks, and the model is your own"),
    Conflict("adaptive_kl", lambda c: not isinstance(c.lr, (int, float)),
        "adaptive_kl={adaptive_kl} adapts the learning rate to the KL, but lr is the schedule"
        " {lr}", Set(lr=default_of("lr"))),
    Conflict("adaptive_kl", lambda c: c.lr_warmup,
        "lr_warmup={lr_warmup} raises the learning rate, which adaptive_kl adapts to the KL",
        (Omit("lr_warmup"), Omit("adaptive_kl"))),
    Conflict("optimizer", lambda c: getattr(c.optimizer, "keywords", {}).get("lr"),
        "the optimizer has lr={found!r}, but the setting lr is the learning rate of every"
        " optimizer", lambda c: f"take lr out of {c.optimizer!r}"),
    Conflict("recompute_advantages", lambda c: c.rnn != "none",
        "recompute_advantages=True, but values of a network with memory depend on all steps"
        " before", Set(recompute_advantages=False)),
    Conflict("shared_critic", lambda c: c.shared_critic and c.actor_keys != c.critic_keys,
        "actor and critic cannot share layers, because actor_keys and critic_keys differ",
        Set(shared_critic=False)),
    Conflict("critic_hidden_sizes", lambda c: c.shared_critic,
        "actor and critic share all layers but the last, so critic_hidden_sizes has no use",
        (Omit("critic_hidden_sizes"), Set(shared_critic=False))),
    *(Conflict(name, lambda c: c.preprocessing != "atari", f"{name} is for preprocessing=atari",
          Set(**{name: default_of(name)}))
      for name in ("end_on_life_loss", "noop_max", "fire_on_reset")),
    *(Conflict(name, lambda c: c.vec in ENGINES and c.preprocessing == "none",
          f"{name}={{{name}}}, but vec={{vec}} makes complete environments, whose own settings are"
          " given as env_kwargs", Omit(name)) for name in having("wrapper")),
    *(Conflict(name, lambda c: c.vec in ENGINES,
          f"{name}={{{name}}}, but a vector environment resets its environments itself", Omit(name))
      for name in ("reset_options", "nan_policy")),
    Conflict("nan_policy", lambda c: c.agents > 1,
        "nan_policy=reset_env is not for games of several agents", Omit("nan_policy")),
    Conflict("past", lambda c: c.agents == 1, "past={past} is for games of several agents",
        Omit("past")),
    Conflict("num_workers", lambda c: c.num_workers not in (0, "auto") and c.vec in ENGINES,
        "num_workers is {num_workers}, but vec={vec} steps all environments in one process",
        Omit("num_workers")),
    Conflict("wandb_project", lambda c: "wandb" in (c.logger or ()) and not re.fullmatch(
            r"[^/\\#?%:]{0,128}", c.wandb_project),
        "wandb_project is {wandb_project!r}, but wandb takes up to 128 characters, and none of"
        " / \\ # ? % :", Omit("wandb_project")),
    *(Conflict(name, lambda c, name=name: needs_workers(c) == name and (
            c.num_workers == 0 or c.vec != "workers" or not can_start_workers()),
        f"{name}={{{name}}} is for worker processes, and there are none",
        lambda c, name=name: (Omit(name), *[Set(num_workers=1)] * (
            c.vec == "workers" and can_start_workers())))
      for name in ("on_worker_failure", "step_timeout")),

    # Settings that do nothing without the value of another, which their fields name.
    *(Conflict(name, lambda c, other=other, wanted=wanted: getattr(c, other) not in wanted,
          f"{name} is {{{name}}}, but does nothing without "
          + Set(**{other: wanted[0]}).text(shell=False), (Set(**{other: wanted[0]}), Omit(name)))
      for name, (other, *wanted) in having("needs").items()),

    # Settings and spaces.
    *_omitted("std sde final_tanh action_scaling distribution rpo_alpha",
              lambda c: not any(isinstance(x.space, Box) for x in leaves(c.seen.act_space)),
              "it is for Box actions, and the actions are {seen.act_space}"),
    *_omitted("sde rpo_alpha", lambda c: subspaces(c.seen.act_space),
              "it is for actions that are one Box, and they are {seen.act_space}"),
    _mapped("action_scaling", lambda c: unbounded(c.seen.act_space)),
    _mapped("distribution", lambda c: c.distribution in having("bounded")["distribution"]
            and unbounded(c.seen.act_space)),
    _mapped("std", lambda c: isinstance(c.std, str) and not c.action_scaling
            and unbounded(c.seen.act_space, has_range=True)),
    *(Conflict(name, lambda c: not keys_of(c.seen) and brief_text(c.seen.space),
          f"{name} are parts of a Dict observation, but these are {{found}}", Omit(name))
      for name in ("actor_keys", "critic_keys")),
    *(Conflict(name, lambda c, name=name: ", ".join(keys_of(c.seen)) * (
            not getattr(c, name) or not {*getattr(c, name)} <= {*keys_of(c.seen)}),
          f"{name} is {{{name}!r}}, but must be some of {{found}}",
          lambda c, name=name: Set(**{name: keys_of(c.seen)}))
      for name in ("actor_keys", "critic_keys")),
    Conflict("model", _too_small, "model={model} is for images (Boxes of uint8, or of other numbers"
        " with three axes and the same finite bounds everywhere) of {found}",
        lambda c: Set(model=[*models_for(largest_image(c.seen)), "mlp"][0])),
    Conflict("frame_skip", lambda c: c.frame_skip > 1 and c.seen.mask is not None,
        "frame_skip repeats an action, which the action mask may forbid in the next frame",
        Omit("frame_skip")),

    # Settings and compiled code; some of them import torch.
    NO_WORKERS,
    Conflict("learner", lambda c: c.learner == "kernel"
        and _compiled().unsupported_in_learner(c.config, c.seen),
        "learner=kernel does not support {found}", Set(learner="torch")),
    Conflict("learner", lambda c: c.learner == "graph"
        and _compiled().unsupported_in_graph(c.config),
        "learner=graph does not support {found}", Set(learner="torch")),
    Conflict("acting", lambda c: c.acting == "local"
        and _compiled().unsupported_in_acting(c.config, c.seen),
        "acting=local does not support {found}", Set(acting="central")),

    # Settings and the processes that torchrun has started.
    Conflict("", lambda c: c.num_envs % c.processes,
        "num_envs is {num_envs}, but each of the {processes} processes has as many environments",
        lambda c: Set(num_envs=max(c.processes, c.num_envs // c.processes * c.processes))),
    *(Conflict(name, lambda c: c.processes > 1, f"{name}={{{name}}} {ONE_PROCESS}", Omit(name))
      for name in having("one_process")),
    Conflict("", lambda c: c.processes > 1 and c.agents > 1,
        f"a game of {{agents}} agents {ONE_PROCESS}", "run it without torchrun"),
    Conflict("", lambda c: c.processes > 1 and c.vec != "workers",
        f"vec={{vec}}, as that of a VectorEnv, {ONE_PROCESS}",
        (Set(vec="workers"), "give an id or a function in place of the VectorEnv")),
    Conflict("", lambda c: c.processes > 1 and (c.num_workers == 0 or not can_start_workers()),
        f"num_workers=0 {ONE_PROCESS}", Set(num_workers=1)),
    Conflict("learner", lambda c: c.processes > 1 and c.learner == "graph",
        f"learner=graph {ONE_PROCESS}", Set(learner="torch")),
    Conflict("backend", lambda c: c.processes > 1 and c.backend == "nccl" and _without_nccl(c),
        "backend=nccl needs a GPU for each process, and a torch with NCCL", Set(backend="gloo")),
]
