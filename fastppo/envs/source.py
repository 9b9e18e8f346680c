"""The environments of a run: factories, spaces, the settings they decide, the time of a step."""

import math
from functools import partial
from time import perf_counter
from typing import Any, Callable, Sequence

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Dict
from gymnasium.vector import VectorEnv

from fastppo.config import Config, default_of
from fastppo.envs import faults, masks
from fastppo.envs.make import WRAPPING, EnvFactory, make_envs, make_factory, spaces_of, wrapping
from fastppo.envs.wrappers import step_limit, unchecked_step
from fastppo.errors import ConfigError, Omit, SpaceError
from fastppo.machine.global_rng import preserved_global_rng
from fastppo.spaces.actions import ActionMapping
from fastppo.spaces.leaves import MASK, STATE, masked_space
from fastppo.spaces.observations import ObservationLayout

MOST_STEPS, MOST_SECONDS = 300, 0.05  # the measurement ends at the first of them


class EnvSource:
    """The factories and spaces of the environments of a run, and its Config as it was given.

    `env` is an id, class, callable, list of callables, VectorEnv, or None for config.env_name. A
    VectorEnv is kept as `vector`, and there are no factories. Otherwise environments are made once
    to read their spaces and metadata, and closed again.
    With `show_masks`, action masks outside the observations become a part of them, here and in
    every factory. `step_seconds` is measured if num_workers is "auto".
    """

    resolved: Config  # with every None and "auto" resolved, of a run
    vector: VectorEnv | None = None
    masked = False
    step_seconds = 0.0
    step_limit: Any = None  # of an episode, as the environments, or their spec, have it
    row_bytes = 0  # of the state of a compiled environment

    def __init__(self, env: Any, config: Config, show_masks: bool = True):
        self.config = config
        if isinstance(env, (VectorEnv, list, tuple)):
            self.config = config.replace(**settings_decided_by(env))
        if isinstance(env, VectorEnv):
            self.factories = []
            self._use_vector(env)
        elif isinstance(env, (list, tuple)):
            self.factories = [self._factory(one) for one in env]
            self._inspect(self.factories, show_masks)
        else:
            factory = self._factory(config.env_name if env is None else env)
            self.factories = [factory] * config.num_envs
            self._inspect([factory], show_masks)

    def evaluation_factories(self, env: Any = None, setting: str = "eval_env") -> list[EnvFactory]:
        """The factories of environments to evaluate in: of `env`, of eval_env, or the run's own.

        `setting` is the name under which `env` was given, for texts of errors.
        """
        env = self.config.eval_env if env is None else env
        if env is not None:
            factory = self._factory(env, setting).for_evaluation()
            factory.masked = self.masked
            return [factory] * self.config.num_envs
        if not self.factories:
            raise ConfigError("evaluation needs environments of its own, but a VectorEnv cannot be"
                              " copied", "give eval_env, or evaluate(), an id or a callable")
        return [factory.for_evaluation() for factory in self.factories]

    def close(self) -> None:
        """Does nothing: the caller closes a VectorEnv that it has made."""

    def _use_vector(self, env: VectorEnv) -> None:
        """Takes spaces and masks from `env`."""
        spaces_of(env, "single_")
        # A simulator's masks, if any, are in its observations.
        self.masked = not hasattr(env, "device") and masks.has_hidden_masks([env])
        self.vector = masks.VectorActionMaskWrapper(env) if self.masked else env
        self.obs_space, self.act_space = spaces_of(self.vector, "single_")
        self.metadata, self.step_limit = env.metadata, getattr(env.spec, "max_episode_steps", None)

    def _inspect(self, factories: Sequence[EnvFactory], show_masks: bool) -> None:
        """Takes spaces, metadata, masks and the time of a step from environments made for this."""
        limit = partial(faults.time_limit, self.config.reset_timeout, self.config.env_name)
        with limit("constructor"):
            envs = make_envs(factories)
        try:
            first = self.obs_space, self.act_space = spaces_of(envs[0])
            for e, env in enumerate(envs[1:], 1):
                if (spaces := spaces_of(env)) != first:
                    raise SpaceError(f"environment {e} has the spaces {spaces}, not {first}",
                                     "give environments with the same spaces")
            self.metadata, self.render_mode = dict(envs[0].metadata or {}), envs[0].render_mode
            self.step_limit = step_limit(envs[0]) or getattr(
                envs[0].unwrapped, "max_episode_steps", None)
            self.row_bytes = row_bytes(envs)
            self._use_agents({len(env.game.agents) if hasattr(env, "game") else 1 for env in envs})
            if show_masks and self.config.agents == 1:  # those of games are in their observations
                with limit("reset()"):
                    some = isinstance(first[0], Dict) or any(
                        env.has_wrapper_attr(masks.MASK_METHOD) for env in envs) or \
                        MASK in faults.first_info(envs[0])
                    self.masked = some and masks.has_hidden_masks(envs)
            if self.masked:
                self.obs_space = masked_space(self.obs_space, self.act_space)
            for factory in factories:
                factory.masked = self.masked
            if self.config.num_workers == "auto":
                self.step_seconds = step_seconds(
                    masks.wrap_mask(envs[0]) if self.masked else envs[0])
        finally:
            faults.close_all(envs)

    def _use_agents(self, numbers: set[int]) -> None:
        """Sets the number of agents; raises ConfigError for several, or if it was another one."""
        if len(numbers) > 1:
            raise ConfigError("the games have different numbers of agents: "
                              + ", ".join(map(str, sorted(numbers))),
                              "give games with the same number of agents")
        agents, = numbers
        if self.config.agents not in (1, agents):
            raise ConfigError(f"agents is {self.config.agents}, but {self.config.env_name} has"
                              f" {agents}", (f"give a game of {self.config.agents} agents",
                                               Omit("agents")))
        self.config = self.config.replace(agents=agents)

    def _factory(self, env: Any, setting: str = "env_name") -> EnvFactory:
        config = self.config
        return make_factory(env, config.max_episode_steps,
                            config.env_kwargs if setting == "env_name" else None, setting=setting,
                            agent_index=config.agent_index,
                            shows_state=STATE in (config.critic_keys or ()),
                            **wrapping(vars(config)))


def settings_decided_by(env: Any) -> dict[str, Any]:
    """The settings that a list or a VectorEnv decides, with their values; none for another env."""
    if isinstance(env, VectorEnv):
        on_device = {"device": str(env.device), "acting": "central"} if hasattr(
            env, "device") else {}  # a simulator
        return {"num_envs": env.num_envs, "num_workers": 0, "vec": "native",
                "max_episode_steps": None, "env_kwargs": None,
                **on_device, **{name: default_of(name) for name in WRAPPING}}
    if not isinstance(env, (list, tuple)):
        return {}
    if not env:
        raise ConfigError("the list of environments is empty",
                          "give a callable for each environment: [lambda: MyEnv(), ...]")
    return {"num_envs": len(env)}


def check_agreement(env: Any, given: dict[str, Any]) -> None:
    """Raises ConfigError for the first of the `given` settings that `env` decides otherwise."""
    kind = "VectorEnv" if isinstance(env, VectorEnv) else "list of callables"
    for name, value in settings_decided_by(env).items():
        if given.get(name) not in (None, "auto", value):
            raise ConfigError(f"{name} is {given[name]!r}, but the {kind} makes it {value!r}", (
                *[f"give {given[name]} environments"] * (name == "num_envs"), Omit(name)))


def row_bytes(envs: Sequence[gym.Env]) -> int:
    """The bytes of a row of compiled environments; 0 for others, and inside of other wrappers."""
    kinds = {type(env.unwrapped) for env in envs}
    bare = all(getattr(unchecked_step(env)[0], "__self__", None) is env.unwrapped for env in envs)
    machine = all(hasattr(getattr(env.unwrapped, "code", None), "functions") for env in envs)
    return envs[0].unwrapped.layout.row.itemsize if machine and bare and len(kinds) == 1 else 0


def random_actions(env: Any, seed: int) -> Callable[[Any], Any]:
    """A function that draws a legal action for an observation."""
    actions, layout = ActionMapping(env.action_space), ObservationLayout(
        env.observation_space, env.action_space)
    rng, to_env = np.random.default_rng(seed), actions.to_env()

    def draw(obs: Any) -> Any:
        u, z = rng.random((1, actions.size)), rng.standard_normal((1, actions.size))
        return to_env(actions.random(u, z, layout.legal(layout.rows([obs]))))[0]

    return draw


def step_seconds(env: gym.Env) -> float:
    """Seconds of a step of `env` under random legal actions, with its share of the resets.

    The global random generators stay as they are. Infinity if the environment fails: training
    reports that with more detail.
    """
    try:
        with preserved_global_rng():
            action_for, obs, steps, seconds = random_actions(env, 0), env.reset(seed=0)[0], 0, 0.0
            while steps <= MOST_STEPS and seconds < MOST_SECONDS:
                action = action_for(obs)
                begin = perf_counter()
                obs, _, term, trunc, _ = env.step(action)
                if term or trunc:
                    obs, _ = env.reset(seed=steps)
                if steps:  # the first step may load or compile, it is not counted
                    seconds += perf_counter() - begin
                steps += 1
            return seconds / (steps - 1)
    except (Exception, SystemExit):  # an environment may raise anything
        return math.inf
