"""The environments of a run as one vector environment, made from an id: vec=native or envpool."""

import contextlib
import dataclasses
import logging
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from fastppo.config import Config
from fastppo.envs import atari, faults
from fastppo.envs.envpool import EnvPoolVector
from fastppo.envs.make import make_envs, make_factory, spaces_of, wrapping
from fastppo.envs.masks import MASK_METHOD
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError, Error
from fastppo.settings.fixes import Omit, Set

log = logging.getLogger("fastppo")


class VectorEnvSource(EnvSource):
    """The environments of an id as one vector environment, made by the engine that `vec` names.

    Its factories make Gymnasium's environment of the same id, for evaluation; there are none if
    Gymnasium does not know the id.
    """

    def __init__(self, env: Any, config: Config):
        check_processes(config.vec, config.num_workers)
        if env is not None and not isinstance(env, str):
            raise ConfigError(f"vec={config.vec} makes environments by their id, not from {env!r}",
                              Set(vec="workers"))
        self.config, self.factories = config.replace(num_workers=0), []
        self.vector = vector = (make_games if config.preprocessing == "atari" else make_vector)(
            config)
        try:
            if config.vec == "native" or hasattr(vector, MASK_METHOD):
                self._use_vector(vector)
            else:  # EnvPool's infos have no masks: no reset is needed to look for them there
                self.obs_space, self.act_space = spaces_of(vector, "single_")
                self.metadata = vector.metadata
            self._add_factories()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the vector environment, which was made here; a second call does nothing."""
        faults.close_all([self.vector])

    def _add_factories(self) -> None:
        try:
            factory = self._factory(self.config.env_name)
            env, = make_envs([factory])
            shape = spaces_of(env)[0].shape
            faults.close_all([env])
            if shape != self.obs_space.shape:
                raise ConfigError(f"Gymnasium's environment has observations {shape}, that of vec="
                                  f"{self.config.vec} {self.obs_space.shape}", "")
        except Error as error:
            log.warning("%s: evaluation uses Gymnasium's environment, so set eval_env, or"
                        " eval_episodes to 0", error.what)
            return
        factory.masked = self.masked
        self.factories = [factory] * self.config.num_envs


def check_processes(vec: str, count: int | str | None, name: str = "num_workers") -> None:
    """Raises ConfigError if the setting `name` wants worker processes and `vec` has none."""
    if vec in ("native", "envpool") and count not in (None, 0, "auto"):
        raise ConfigError(f"{name} is {count}, but vec={vec} steps all environments in one process",
                          Omit(name))


def make_vector(config: Config) -> VectorEnv:
    """The vector environment of a Config's engine; ConfigError if it cannot be made."""
    kwargs = dict(config.env_kwargs or {})
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    if config.vec == "envpool":
        return EnvPoolVector(config.env_name, config.num_envs, kwargs)
    return make_native_vector(make_factory(config.env_name).constructor, config.num_envs, kwargs)


def make_games(config: Config) -> VectorEnv:
    """The same for a game of ale-py, with the engine's own preprocessing in place of ours.

    That is the same chain for every id of the game. ConfigError for another environment.
    """
    factory, limit = make_factory(config.env_name), config.max_episode_steps
    spec, games = factory.constructor, wrapping(vars(config))["games"]
    if getattr(spec, "entry_point", None) != atari.ALE_ENTRY:
        raise ConfigError(f"preprocessing=atari with vec={config.vec} is for the ids of ale-py, and"
                          f" not for {config.env_name}", Set(vec="workers"))
    height, width = games.size
    kwargs = {"stack_num": config.frame_stack, "img_height": height, "img_width": width,
              "noop_max": games.noops, "use_fire_reset": games.fire, **(config.env_kwargs or {})}
    if config.vec == "envpool":
        sticky = spec.kwargs["repeat_action_probability"]
        limits = {"max_episode_steps": limit} if limit else {}
        name = f"{spec.name.removesuffix('NoFrameskip')}-v5"
        vector = EnvPoolVector(name, config.num_envs, {
            "repeat_action_probability": sticky, "frame_skip": games.skip, **limits, **kwargs})
    else:
        limits = {"max_num_frames_per_episode": limit * games.skip} if limit else {}
        spec = dataclasses.replace(spec, vector_entry_point=atari.ALE_VECTOR, kwargs={
            **spec.kwargs, "frameskip": games.skip, "reward_clipping": False, **limits})
        vector = make_native_vector(spec, config.num_envs, kwargs)
    if config.frame_stack == 1:  # a frame in place of a stack of one
        vector = gym.wrappers.vector.ReshapeObservation(vector, games.size)
    with contextlib.closing(factory()) as env:
        first = atari.FIRE if games.fire and atari.needs_fire(env) else atari.NOOP
    return atari.AtariVector(vector, games.lives, first)


def make_native_vector(spec: EnvSpec, num_envs: int, kwargs: dict[str, Any]) -> VectorEnv:
    """The vector environment of a vector_entry_point; ConfigError if it cannot be made."""
    try:
        return gym.make_vec(spec, num_envs, "vector_entry_point", **kwargs)
    except Exception as error:  # an environment's constructor may raise anything
        raise ConfigError(f"the vector environment of {getattr(spec, 'id', spec)} cannot be made"
                          f" with {kwargs}: {type(error).__name__}: {error}", Set(vec="workers")
                          ) from error
