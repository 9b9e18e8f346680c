"""The environments that a policy can be evaluated in, by spaces and masks; their render modes."""

import dataclasses
import inspect
from typing import Any, Callable

from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.spaces import Box, Dict, Space

from fastppo.envs import faults, masks
from fastppo.envs.make import EnvFactory, Factory, make_envs, spaces_of
from fastppo.envs.source import EnvSource
from fastppo.errors import ConfigError, Error, Fix, Omit
from fastppo.spaces.leaves import CHOICES, brief_text, mask_leaf, observation_storage

WINDOW, FRAMES = "human", "rgb_array"  # render modes
MUJOCO_MODELS = "gymnasium.envs.mujoco."  # their modules


def evaluation_factories(source: EnvSource, env: Any = None, name: str = "env") -> list[Factory]:
    """The factories of environments for an evaluation: of `env`, given as `name`, or the run's own.

    Raises ConfigError if the environment cannot be made, has other spaces than the environments of
    training, or if only one of them has action masks.
    """
    if env is None:
        return source.evaluation_factories()
    try:
        factories = source.evaluation_factories(env, name)
        envs = make_envs(factories[:1])
    except Error as error:
        if name == "env" or error.what.startswith(name):
            raise
        raise ConfigError(f"{name} is {env!r}: {error.what}", error.fix) from error
    try:
        found, where = spaces_of(envs[0]), masks.mask_source(envs[0])
    finally:
        faults.close_all(envs)
    check_spaces(f"{name} is {env!r}, whose", (source.obs_space, source.act_space), found,
                 ("give one of the same spaces", Omit(name)))
    trained = mask_leaf(source.obs_space, source.act_space) is not None
    if isinstance(source.act_space, CHOICES) and bool(where) != trained:
        has, wanted = ("an", "without") if where else ("no", "with")
        raise ConfigError(f"{name} is {env!r}, which has {has} action mask, but the policy is"
                          f" trained {wanted} one", (f"give one {wanted} a mask", Omit(name)))
    return factories


def check_spaces(whose: str, ours: tuple[Space, Space], theirs: tuple[Space, Space], fix: Fix
                 ) -> None:
    """Raises ConfigError if the spaces of an environment, `theirs`, are not those of a policy.

    Both are (observation space, action space); `whose` begins the text of the error.
    """
    for what, our, their in zip(("observations", "actions"), ours, theirs):
        if not spaces_match(our, their, what == "observations"):
            found, wanted = (brief_text(space, 1_000) for space in (their, our))
            raise ConfigError(f"{whose} {what} are of the space {found}, but the policy is trained"
                              f" for {wanted}", fix)


def spaces_match(ours: Space, theirs: Space, bounds_free: bool) -> bool:
    """True if two spaces are equal; `bounds_free`: Boxes too, if they are stored the same way."""
    if bounds_free and isinstance(ours, Box) and isinstance(theirs, Box):
        return observation_storage(ours) == observation_storage(theirs)
    if bounds_free and isinstance(ours, Dict) and isinstance(theirs, Dict):
        return ours.keys() == theirs.keys() and all(
            spaces_match(ours[key], theirs[key], True) for key in ours)
    return ours == theirs


def with_render_mode(factory: EnvFactory, mode: str) -> EnvFactory:
    """`factory` with the argument render_mode, if its constructor takes one.

    The camera of Gymnasium's MuJoCo models follows the body, unless the arguments choose another.
    """
    maker = factory.constructor
    if isinstance(maker, EnvSpec):
        maker = maker.entry_point
        maker = load_env_creator(maker) if isinstance(maker, str) else maker
    arguments = {**factory.kwargs, "render_mode": mode}
    is_model = str(getattr(factory.constructor, "entry_point", "")).startswith(MUJOCO_MODELS)
    if is_model and not any("camera" in name for name in arguments):
        arguments["camera_name"] = "track"  # without a name it stands still since Gymnasium 1.4
    return dataclasses.replace(factory, kwargs=arguments) if takes_render_mode(maker) else factory


def takes_render_mode(constructor: Callable) -> bool:
    """True if a function or class has an argument render_mode, or any."""
    return any(one.name == "render_mode" or one.kind is one.VAR_KEYWORD
               for one in inspect.signature(constructor).parameters.values())
