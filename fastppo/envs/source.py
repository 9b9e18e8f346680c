"""The environments that a trainer was given: factories, spaces, and what they decide."""

from typing import Any, Sequence

import gymnasium as gym
from gymnasium.vector import VectorEnv

from fastppo.config import Config
from fastppo.envs import atari, faults, masks
from fastppo.envs.make import Factory, make_envs, make_factory, spaces_of
from fastppo.envs.step_time import step_seconds
from fastppo.envs.wrappers import warn_redundant_wrappers
from fastppo.errors import ConfigError, SpaceError, spelt


class EnvSource:
    """The environments a trainer was given: their factories, their spaces, and the Config for them.

    `env` is an id, class, callable, list of callables, or a VectorEnv: then `vector` is that, and
    there are no factories. Else one environment is made here, to read its spaces and metadata;
    and, for num_workers="auto", to measure the seconds that a step of it takes, `step_seconds`.
    If `showing`, action masks become a part of the observations, here and in every factory.
    """

    step_seconds, masked = 0.0, False

    def __init__(self, env: Any, config: Config, showing: bool = True):
        self.config = config.replace(**settings_decided_by(env))
        if isinstance(env, VectorEnv):
            self.factories, self.metadata = [], env.metadata
            self._take(env)
            return
        several, env = isinstance(env, (list, tuple)), config.env_name if env is None else env
        self.vector = None
        self.factories = ([self._factory(one) for one in env] if several
                          else [self._factory(env)] * config.num_envs)
        probes = make_envs(self.factories if several else self.factories[:1])
        self.obs_space, self.act_space = _spaces(probes)
        self.metadata = dict(probes[0].metadata)
        if showing:
            self._mask(probes)
        if self.config.num_workers == "auto":
            self.step_seconds = step_seconds(masks.wrap_mask(probes[0]) if self.masked else probes[0])
        warn_redundant_wrappers(probes[0])
        faults.close_all(probes)

    def to_play(self, env: Any = None) -> list[Factory]:
        """The factories of environments to evaluate in: of `env`, `eval_env`, or the run's own."""
        env = self.config.eval_env if env is None else env
        if env is not None:
            with spelt("evaluate(env={})"):
                made = make_factory(env, self.config.max_episode_steps, stack=self.config.frame_stack,
                               games=self._games()).to_play()
            made.masked = self.masked
            return [made] * self.config.num_envs
        if not self.factories:
            raise ConfigError("evaluation plays in environments of its own, and a VectorEnv cannot"
                              " be copied", 'evaluate(env="CartPole-v1"), with an id or a callable')
        return [make.to_play() for make in self.factories]

    def close(self) -> None:
        """Nothing: a VectorEnv that was handed in is closed by whoever made it."""

    def _take(self, env: VectorEnv) -> None:
        """Have `env`, and the masks that it has, as the vector environment."""
        spaces_of(env, "single_")
        self.vector = masks.wrap_vector_mask(env)
        self.obs_space, self.act_space = spaces_of(self.vector, "single_")
        self.masked = self.vector is not env

    def _mask(self, probes: Sequence[gym.Env]) -> None:
        """Tell every factory to show the masks that environments have elsewhere."""
        if masks.has_hidden_masks(probes):
            self.masked, self.obs_space = True, masks.masked_space(self.obs_space, self.act_space)
            for make in self.factories:
                make.masked = True

    def _factory(self, env: Any) -> Factory:
        return make_factory(env, self.config.max_episode_steps, self.config.env_kwargs,
                       self.config.frame_stack, self._games())

    def _games(self) -> atari.AtariOptions | None:
        return atari.atari_options(self.config.preprocessing, self.config.end_on_life_loss)


def _spaces(envs: Sequence[gym.Env]) -> tuple[gym.Space, gym.Space]:
    """The two spaces that all of `envs` have; SpaceError for one that has others."""
    wanted, *others = map(spaces_of, envs)
    for i, found in enumerate(others, 1):
        if found != wanted:
            raise SpaceError(f"environment {i} has the spaces {found}, the first one"
                             f" {wanted}", "give environments with the same spaces")
    return wanted


def settings_decided_by(env: Any) -> dict[str, Any]:
    """The settings that `env` decides by itself: a list its length, a VectorEnv how it is made."""
    if isinstance(env, VectorEnv):
        return {"num_envs": env.num_envs, "num_workers": 0, "vec": "native",
                "max_episode_steps": None, "env_kwargs": None, "frame_stack": 1,
                "preprocessing": "none", "end_on_life_loss": False}
    if not isinstance(env, (list, tuple)):
        return {}
    if not env:
        raise ConfigError("the list of environments is empty", "PPO([lambda: MyEnv(), ...])")
    return {"num_envs": len(env)}


def check_agreement(env: Any, asked: dict[str, Any]) -> None:
    """Raise ConfigError for the first setting in `asked` that `env` has decided otherwise."""
    whose = "a VectorEnv that is made" if isinstance(env, VectorEnv) else "a list of callables"
    for name, value in settings_decided_by(env).items():
        if asked.get(name) not in (None, "auto", value):
            raise ConfigError(f"{name} is {asked[name]!r}, but {whose} has decided it: {value!r}",
                              f"leave {name} out")
