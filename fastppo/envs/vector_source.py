"""Vector environments made from an id, where the setting `vec` asks for one."""

import logging
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from fastppo.config import Config
from fastppo.envs import faults
from fastppo.envs.atari import atari_options
from fastppo.envs.envpool import EnvPoolVector
from fastppo.envs.make import SpecFactory, make_factory, spaces_of
from fastppo.envs.masks import MASK_METHOD
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError

log = logging.getLogger("fastppo")


class VectorEnvSource(EnvSource):
    """The environments of an id as one vector environment, made by the engine that `vec` names."""

    def __init__(self, env: Any, config: Config):
        check_processes(config.vec, config.num_workers)
        if atari_options(config.preprocessing, config.end_on_life_loss):
            raise ConfigError(f"--preprocessing={config.preprocessing}, but --vec={config.vec}"
                              " steps environments that are made already", "--vec=workers; or"
                              " --preset=none, and the engine's own preprocessing by env_kwargs")
        if config.frame_stack > 1:
            raise ConfigError(f"--frame_stack={config.frame_stack}, but --vec={config.vec} steps"
                              " environments that are made already", "--vec=workers")
        if env is not None and not isinstance(env, str):
            raise ConfigError(f"--vec={config.vec} makes environments by their id, not from"
                              f" {env!r}", "--vec=workers")
        make = {"native": make_native_vector, "envpool": EnvPoolVector}[config.vec]
        self.config, self.factories = config.replace(num_workers=0), []
        self.vector = make(config.env_name, config.num_envs, engine_options(config))
        self.open = [self.vector]
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the vector environment, which was made here; twice is fine."""
        faults.close_all(self.open)

    def _look(self) -> None:
        self.metadata = self.vector.metadata
        if self.config.vec == "native" or hasattr(self.vector, MASK_METHOD):
            self._take(self.vector)
        else:  # EnvPool's infos, which are not passed on, need not be looked into
            self.obs_space, self.act_space = spaces_of(self.vector, "single_")
        try:
            self.factories = [self._factory(self.config.env_name)] * self.config.num_envs
            self.factories[0].masked = self.masked
        except ConfigError as error:
            log.warning("%s: evaluation, which plays in Gymnasium's environment, needs"
                                 " another: --eval_env=... or --eval_episodes=0", error.what)


def check_processes(vec: str, count: int | str | None, name: str = "num_workers") -> None:
    """Raise ConfigError where the setting `name` asks for workers beside an engine."""
    if vec in ("native", "envpool") and count not in (None, 0, "auto"):
        raise ConfigError(f"{name} is {count}, but --vec={vec} steps all environments in one"
                          " process", f"leave {name} out")


def engine_options(config: Config) -> dict[str, Any]:
    """What an engine is asked for beside the id and the number of environments."""
    limit = config.max_episode_steps
    return (config.env_kwargs or {}) | ({} if limit is None else {"max_episode_steps": limit})


def make_native_vector(name: str, num_envs: int, kwargs: dict[str, Any]) -> VectorEnv:
    """The vector environment that the id `name` brings itself; ConfigError where it has none."""
    made = make_factory(name)
    if not isinstance(made, SpecFactory) or made.spec.vector_entry_point is None:
        raise ConfigError(f"--vec=native, but {name} has no vector environment of its own (no"
                          " vector_entry_point)", "--vec=workers")
    try:
        return gym.make_vec(made.spec, num_envs, "vector_entry_point", **kwargs)
    except Exception as error:  # an environment's constructor may raise anything
        raise ConfigError(f"the vector environment of {name} cannot be made with {kwargs}:"
                          f" {type(error).__name__}: {error}", "--vec=workers") from error
