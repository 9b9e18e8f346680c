"""The environments of a run as one vector environment, made from an id: vec=native or envpool."""

import contextlib
import dataclasses
import warnings
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, iterate

from fastppo.config import Config
from fastppo.envs import atari, faults
from fastppo.envs.families import family_of, is_registered, made_by_envpool
from fastppo.envs.make import EnvFactory, make_factory, spaces_of, wrapping
from fastppo.envs.masks import MASK_METHOD, VectorActionMaskWrapper
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError, Install, Set
from fastppo.machine import kernels, limits
from fastppo.machine.kernels import Purpose
from fastppo.spaces.actions import ActionMapping
from fastppo.spaces.leaves import MASK, is_batch

SEEDS = 2**31  # EnvPool's seeds are int32, and environment i has the seed + i
# EnvPool's packages that draw. The others do not, or end the process without OpenGL (MuJoCo).
DRAWN = "atari box2d classic_control highway jumanji minigrid pgx procgen vizdoom".split()


class EnvPoolVector(VectorEnv):
    """EnvPool's environments of one id, with batched spaces, and seeded by `reset`.

    EnvPool takes its seed at construction, so `reset(seed=...)` makes a new pool. So does the next
    reset after an interrupted step, whose results EnvPool may still hold. An episode that
    terminates in the step of its time limit counts as truncated; EnvPool does not tell them apart.
    There is one thread for each usable core, and results do not depend on their number. Infos have
    the "lives" of Atari's games and nothing else; action masks are returned by the method
    `action_masks`, for ids that have them.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, name: str, num_envs: int, kwargs: dict[str, Any]):
        self.name, self.num_envs = name.rpartition(":")[2], num_envs
        self.render_mode = kwargs.get("render_mode")
        self.kwargs = {"num_envs": num_envs,
                       "num_threads": min(limits.usable_cores(), num_envs), **kwargs}
        self.pool, self.seed, self.resets, self.in_step, self.info = None, 0, 0, False, {}
        # EnvPool gives float32 spaces their bounds in float64, and Gymnasium warns.
        with warnings.catch_warnings(action="ignore"):
            spec = self._call("make_spec")
            spaces = spec.gymnasium_observation_space, spec.gymnasium_action_space
        if type(spec).__base__.__module__.removeprefix("envpool.").partition(".")[0] in DRAWN:
            self.metadata = {**self.metadata, "render_modes": ["rgb_array"]}
        if f"info:{MASK}" in spec.state_array_spec:
            setattr(self, MASK_METHOD, lambda: self.info[MASK])
        self.single_observation_space, self.single_action_space = spaces
        self.observation_space, self.action_space = (batch_space(space, num_envs)
                                                     for space in spaces)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begins new episodes in all environments; with a seed they can be repeated."""
        if seed is not None:
            self.seed, self.resets = seed, 0
        if seed is not None or self.in_step or self.pool is None:
            fresh = kernels.episode_seed(self.seed, Purpose.ENV_SEED, 0, self.resets)
            self.pool = self._call("make_gymnasium", seed=fresh % (SEEDS - self.num_envs))
            self.resets, self.in_step = self.resets + 1, False
        with warnings.catch_warnings(action="ignore"):
            obs, self.info = self.pool.reset()
        return obs, self._lives()

    def step(self, actions: np.ndarray):
        """(observations, rewards [e], terminations [e], truncations [e], infos) of one step."""
        self.in_step = True  # and stays so if the step is interrupted
        obs, rew, term, trunc, self.info = self.pool.step(actions)
        self.in_step = False
        return obs, rew, term, trunc, self._lives()

    def render(self) -> np.ndarray:
        """The frame of the first environment, uint8 [1 height width 3]."""
        return self.pool.render()

    def close_extras(self, **kwargs) -> None:
        """Stops EnvPool's threads."""
        if self.pool is not None:
            self.pool.close()

    def _lives(self) -> dict[str, Any]:
        """The infos: the lives of Atari's games."""
        return {"lives": self.info["lives"]} if "lives" in self.info else {}

    def _call(self, function: str, **kwargs):
        """The result of a function of EnvPool for this id; ConfigError if it fails."""
        others = [Set(vec="workers")] * is_registered(self.name)
        try:
            import envpool
        except ImportError as error:
            raise ConfigError(f"vec=envpool needs EnvPool, which cannot be imported ({error})",
                              (Install("envpool"), *others)) from error
        try:
            return getattr(envpool, function)(self.name, **self.kwargs, **kwargs)
        except Exception as error:
            known = self.name in envpool.list_all_envs()
            raise ConfigError(f"EnvPool cannot make {self.name} with {self.kwargs}:"
                              f" {type(error).__name__}: {error}",
                              (*["envpool.list_all_envs() has its ids"] * (not known), *others)
                              ) from error


class SingleEnv(gym.Env):
    """An engine's environment alone, for evaluation, play and videos: its observations, as trained.

    All lives of a game are one episode. With `masked` the observations have the action mask. It has
    the render mode if the engine draws.
    """

    def __init__(self, config: Config, masked: bool, render_mode: str | None = None, **kwargs: Any):
        config = config.replace(end_on_life_loss=False, env_kwargs=kwargs)
        vector = make_vector(config, 1)
        if render_mode in (vector.metadata or {}).get("render_modes", ()):
            vector.close()
            kwargs["render_mode"] = render_mode
            vector = make_vector(config.replace(env_kwargs=kwargs), 1)
        self.vector = VectorActionMaskWrapper(vector) if masked else vector
        self.metadata, self.render_mode = vector.metadata, vector.render_mode
        self.observation_space, self.action_space = spaces_of(self.vector, "single_")
        self.actions = ActionMapping(self.action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Begins an episode."""
        obs, _ = self.vector.reset(seed=seed, options=options)
        return self._first(obs), {}

    def step(self, action: Any):
        """One step; the observation of an episode's last one is its final one in every mode."""
        obs, rew, term, trunc, info = self.vector.step(self.actions.stacked([action]))
        rew, *ends = (np.asarray(one)[0] for one in (rew, term, trunc))
        last = info.get("final_obs", obs) if any(ends) else obs
        return self._first(last) if is_batch(last) else last[0], rew, *ends, {}

    def render(self) -> np.ndarray:
        """The frame."""
        return self.vector.render()[0]

    def close(self) -> None:
        """Closes the vector environment."""
        self.vector.close()

    def _first(self, obs: Any) -> Any:
        return next(iter(iterate(self.vector.observation_space, obs)))


class VectorEnvSource(EnvSource):
    """The environments of an id as one vector environment, made by the engine that `vec` names.

    Its factories make such environments alone, for evaluation.
    """

    def __init__(self, env: Any, config: Config):
        if env is not None and not isinstance(env, str):
            raise ConfigError(f"vec={config.vec} makes environments by their id, not from {env!r}",
                              Set(vec="workers"))
        self.config, self.vector = config, make_vector(config, config.num_envs)
        vector = self.vector
        try:
            if config.vec == "native" or hasattr(vector, MASK_METHOD):
                self._use_vector(vector)
            else:  # EnvPool's infos have no masks: no reset is needed to look for them there
                self.obs_space, self.act_space = spaces_of(vector, "single_")
                self.metadata = vector.metadata
            if config.vec == "native":
                self.metadata = {**self.metadata, "render_modes": []}  # not every one draws
            self.factories = [self._factory(config.env_name)] * config.num_envs
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes the vector environment, which was made here; a second call does nothing."""
        faults.close_all([self.vector])

    def _factory(self, env: Any, setting: str = "env_name") -> EnvFactory:
        """The engine's; of other environments than its own, EnvPool has all ids, native none."""
        own, config = setting == "env_name", self.config
        if not own and not made_by_envpool(env, config.vec):
            return super()._factory(env, setting)
        make = partial(SingleEnv, config.replace(env_name=env), self.masked)
        return EnvFactory(make, env, None, dict(config.env_kwargs or {}) if own else {})


def make_vector(config: Config, num_envs: int) -> VectorEnv:
    """The vector environment of a Config's engine; ConfigError if it cannot be made."""
    if config.preprocessing == "atari":
        return make_games(config, num_envs)
    kwargs = dict(config.env_kwargs or {})
    if config.max_episode_steps is not None:
        kwargs["max_episode_steps"] = config.max_episode_steps
    if config.vec == "envpool":
        return EnvPoolVector(config.env_name, num_envs, kwargs)
    return make_native_vector(make_factory(config.env_name).constructor, num_envs, kwargs)


def make_games(config: Config, num_envs: int) -> VectorEnv:
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
        vector = EnvPoolVector(name, num_envs, {
            "repeat_action_probability": sticky, "frame_skip": games.skip, **limits, **kwargs})
    else:
        limits = {"max_num_frames_per_episode": limit * games.skip} if limit else {}
        spec = dataclasses.replace(spec, vector_entry_point=atari.ALE_VECTOR, kwargs={
            **spec.kwargs, "frameskip": games.skip, "reward_clipping": False, **limits})
        vector = make_native_vector(spec, num_envs, kwargs)
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
        family = isinstance(error, ImportError) and isinstance(spec, EnvSpec) and family_of(spec)
        raise ConfigError(f"the vector environment of {getattr(spec, 'id', spec)} cannot be made"
                          f" with {kwargs}: {type(error).__name__}: {error}",
                          family and family.fix or Set(vec="workers")) from error
