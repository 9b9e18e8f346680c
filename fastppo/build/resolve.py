"""Resolves a Config: preset, machine, spaces."""

import logging
import math
import secrets
from functools import partial
from numbers import Real
from typing import Any, Callable, Iterable

import torch
from gymnasium.vector import VectorEnv

from fastppo.build.check_settings import check_heads, check_network, check_update, torch_alone
from fastppo.build.model import is_plain_mlp
from fastppo.config import Config, check_names, default_of
from fastppo.envs.observations import (
    ObservationEncoding,
    ObservationLayout,
    clamps_normalised_only,
)
from fastppo.envs.source import EnvSource, check_agreement
from fastppo.envs.spaces import check_spaces
from fastppo.envs.vector_source import VectorEnvSource
from fastppo.errors import ConfigError
from fastppo.machine import kernels
from fastppo.networks.cnn import IMAGE_NETWORKS, image_shape
from fastppo.networks.heads import COMPILED_HEADS, make_head
from fastppo.networks.mlp import COMPILED_ACTIVATIONS as COMPILED_ACTIVATIONS
from fastppo.settings.presets import BY_PRESET, PRESETS, preset_of
from fastppo.update.coefficients import coefficients_at
from fastppo.workers.count import pays, worker_count

log = logging.getLogger("fastppo")

Callback = Callable[[Any, dict[str, float]], Any]
Callbacks = Callback | Iterable[Callback]


def make_source(env: Any, config: Config) -> EnvSource:
    """The environments of a run: those of `env`, or made as one vector environment by `vec`."""
    made = config.vec in ("native", "envpool") and not isinstance(env, VectorEnv)
    return VectorEnvSource(env, config) if made else EnvSource(env, config)


def config_for(env: Any, asked: dict[str, Any]) -> Config:
    """The Config of the settings `asked` for `env`, over its preset, over the defaults."""
    check_names(asked)
    asked = {name: str(value) if isinstance(value, torch.device) else value
             for name, value in asked.items() if name not in BY_PRESET or value != "auto"}
    check_agreement(env, asked)
    if isinstance(asked.get("env_kwargs"), dict) and asked["env_kwargs"].get("render_mode"):
        raise ConfigError("env_kwargs asks for a render_mode, but environments are not drawn while"
                          " they train", "leave it out; to watch: evaluate(1, env=lambda:"
                          " gymnasium.make(..., render_mode='human'))")
    name = asked.get("env_name", "") if env is None else env_label(env)
    if not name:
        raise ConfigError("PPO was given no environment (the default is the command's alone)",
                          f'PPO("{default_of("env_name")}")')
    if asked.get("env_name", name) != name:
        raise ConfigError(f"PPO was given {name} and env_name={asked['env_name']!r}: only one of"
                          " them can be trained on", "leave env_name out")
    preset = asked.get("preset", "auto")
    if preset not in ("auto", "none", *PRESETS):
        raise ConfigError(f"there is no preset {preset!r}, only auto, none,"
                          f" {', '.join(PRESETS)}", "--preset=auto")
    return Config(**{**preset_of(str(name), preset), **asked, "env_name": name})


def env_label(env: Any) -> str:
    """What to call an environment that was given as `env`."""
    if isinstance(env, (list, tuple)):
        return env_label(env[0]) if env else "nothing"
    if isinstance(env, partial):
        return env_label(env.func)
    return env if isinstance(env, str) else getattr(env, "__qualname__", type(env).__name__)


def check_total_steps(total: Any) -> int:
    """`total` environment steps as an int; ConfigError for what is no whole number, 0 or more."""
    if isinstance(total, bool) or not isinstance(total, Real) or not 0 <= total < math.inf \
            or total != int(total):
        raise ConfigError(f"learn was asked for {total!r} steps, but they must be a whole number,"
                          " 0 or more", "ppo.learn(1_000_000)")
    return int(total)


def target_steps(ppo: Any, total_steps: int | None) -> int:
    """The step at which `learn` ends; warns if it is done already, or if the learning rate rises."""
    total = ppo.config.total_steps if total_steps is None else check_total_steps(total_steps)
    if ppo.step >= total and not ppo.pending:
        log.warning("%d steps are done already, of %d asked for: nothing to do\n"
                    "  fix: ppo.learn(ppo.step + %d)", ppo.step, total, total or 1)
    elif ppo.step and not ppo.pending:
        _warn_of_rise(ppo, total)
    return total


def _warn_of_rise(ppo: Any, total: int) -> None:
    """Warns if a later end than that of the last `learn` makes a scheduled learning rate rise."""
    last = ppo.learner.optimizer.rates
    following = ppo.learner.kl_control.rates(
        coefficients_at(ppo.config, 1.0 - min(ppo.step / total, 1.0)))
    if any(after > before for before, after in zip(last, following)):
        log.warning("the learning rate rises from %.3g to %.3g, because its schedule now ends at"
                    " step %d\n  fix: PPO(..., total_steps=%d) from the start, or anneal_lr=False",
                    last[0], following[0], total, total)


def as_callbacks(callbacks: Callbacks) -> tuple[Callback, ...]:
    """`callbacks`, one or any number of them, as a tuple; ConfigError for what cannot be called."""
    try:
        found = (callbacks,) if callable(callbacks) else tuple(callbacks)
    except TypeError:  # neither a callable nor iterable
        found = (callbacks,)
    for one in found:
        if not callable(one):
            raise ConfigError(f"learn was given the callback {one!r}, which cannot be called",
                              "ppo.learn(callbacks=[lambda ppo, stats: print(stats)])")
    return found


def resolve(source: EnvSource) -> Config:
    """The Config for `source` with every None and "auto" decided; raises for impossible spaces."""
    config, obs_space = source.config, source.obs_space
    check_spaces(obs_space, source.act_space)
    check_heads(config, source.act_space)
    seen = ObservationLayout(obs_space, source.act_space)
    check_network(config, seen)
    config = config.replace(
        seed=secrets.randbits(31) if config.seed is None else config.seed,
        model=_model(config, seen), device=_device(config.device),
        torch_threads=config.torch_threads or 1,
        vec="workers" if config.vec == "auto" else config.vec)
    if config.shared_critic is None:
        config = config.replace(shared_critic=config.model in IMAGE_NETWORKS
                                and config.actor_keys == config.critic_keys)
    if config.norm_rewards is None:
        config = config.replace(norm_rewards=config.reward_scale == 1 and not config.clip_rewards)
    check_update(config)
    serves = _serves(config, seen)
    config = config.replace(acting=_compiled(config, "acting", serves, "local", "central"))
    if torch_alone(config) and config.learner == "kernel":
        raise ConfigError(f"--learner=kernel cannot serve {torch_alone(config)}, which torch alone"
                          " can", "--learner=torch")
    serves = serves and not torch_alone(config) and seen.mask is None
    config = config.replace(learner=_compiled(config, "learner", serves, "kernel", "torch"))
    return config.replace(num_workers=worker_count(
        config.num_workers, config.num_envs, partial(pays, source.step_seconds, config)))


def _serves(config: Config, seen: ObservationLayout) -> bool:
    """Whether the compiled kernels serve such a network on such observations."""
    head = make_head(seen.act_space, config, 1)
    return (kernels.COMPILED and is_plain_mlp(config) and config.device == "cpu"
            and type(head) in COMPILED_HEADS and config.std is None and not config.final_tanh
            and not config.norm_values and head.size <= kernels.MAX_CHOICES
            and len(config.hidden_sizes) <= kernels.MAX_HIDDEN
            and clamps_normalised_only(seen, config.norm_obs, config.obs_limit))


def _model(config: Config, seen: ObservationLayout) -> Any:
    """The network that `model` comes to; ConfigError where it cannot see these observations."""
    model, shapes = config.model, [shape[1:] for shape in map(image_shape, ObservationEncoding(seen).leaves) if shape]
    if model == "auto":
        return "cnn" if max(map(min, shapes), default=0) >= IMAGE_NETWORKS["cnn"].smallest else "mlp"
    if model not in IMAGE_NETWORKS:
        return model
    smallest = IMAGE_NETWORKS[model].smallest
    largest = max(shapes, key=min, default=(0,))
    fits = [name for name, kind in IMAGE_NETWORKS.items() if min(largest) >= kind.smallest]
    fix = f"--model={[*fits, 'mlp'][0]}"
    if not shapes:
        raise ConfigError(f"--model={model} is for images, Boxes of uint8 with two axes or more,"
                          f" and none are in the observations {seen.space}", fix)
    if model not in fits:
        wide = "x".join(map(str, largest))
        raise ConfigError(f"--model={model} is for images of {smallest}x{smallest} or larger, and"
                          f" the largest here is {wide}", fix)
    return model


def _device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        what = f"device is {device!r}, which torch does not know"
        raise ConfigError(what, "--device=auto") from error
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device is {device!r}, but only cpu and cuda are served",
                          "--device=auto")
    if kind == "cuda" and not torch.cuda.is_available():
        why = (f"this torch ({torch.__version__}) was built without CUDA" if not torch.version.cuda
               else "no NVIDIA GPU or driver is visible")
        raise ConfigError(f"--device={device}, but {why}", "--device=cpu")
    return device


def _compiled(config: Config, name: str, serves: bool, compiled: str, general: str) -> str:
    """What the choice `name` comes to: `compiled` where the compiled one serves, else `general`."""
    asked = getattr(config, name)
    if asked == compiled and not serves:
        raise ConfigError(f"--{name}={compiled} needs the compiled extension and a built-in MLP on"
                          f" the CPU, of {', '.join(COMPILED_ACTIVATIONS)}, without layer_norm, rnn"
                          f" or keys, of {kernels.MAX_HIDDEN} layers at most; actions of one"
                          f" Discrete or one Box, {kernels.MAX_CHOICES:,} choices or numbers at"
                          " most, the latter of a gaussian whose std is learnt and free of the"
                          " state; learning, without action masks", f"--{name}={general}")
    return compiled if asked in ("auto", compiled) and serves else general
