"""Rules about settings that do not fit the spaces, or a model of the user's; no torch here."""

from gymnasium.spaces import Box, Space

from fastppo.build.check_config import check_config, first_changed, is_user_model
from fastppo.config import Config
from fastppo.errors import ConfigError
from fastppo.settings.fixes import Omit, Set
from fastppo.settings.spelling import IMAGE_MODELS
from fastppo.spaces.actions import check_bounds
from fastppo.spaces.leaves import action_storage, brief_text, leaves, subspaces
from fastppo.spaces.observations import ObservationEncoding, ObservationLayout

SMALL = 84  # pixels of a side, as in Atari games


def check_settings(config: Config, seen: ObservationLayout) -> None:
    """Raises ConfigError or SpaceError for settings that contradict each other or the spaces."""
    action_storage(seen.act_space)  # it raises SpaceError
    boxes = [leaf.space for leaf in leaves(seen.act_space) if isinstance(leaf.space, Box)]
    for applies, why, names in _exclusions(config, seen.act_space, boxes):
        if applies and (name := first_changed(config, names.split())):
            raise ConfigError(f"{name} is {getattr(config, name)!r}, but {why}", Omit(name))
    check_config(config)
    _check_keys(config, seen)
    _check_model(config, seen)
    for setting, given in (("action_scaling", config.action_scaling),
                           ("distribution", config.distribution in ("squashed", "beta")),
                           ("std", isinstance(config.std, str) and not config.action_scaling)):
        if given:
            check_bounds(seen.act_space, setting)


def _exclusions(config: Config, act_space: Space, boxes: list[Box]):
    """Rows of (it applies, reason, settings that must then have their default)."""
    return (
        (not boxes, f"it is for Box actions, and the actions are {act_space}",
         "std sde final_tanh action_scaling distribution"),
        (subspaces(act_space), f"it is for actions that are one Box, and they are {act_space}",
         "sde"),
        (is_user_model(config.model), "it is for built-in networks, and the model is your own",
         "layer_norm final_tanh shared_critic actor_keys critic_keys rnn rnn_size hidden_sizes"
         " activation sde"),
        (config.distribution == "beta", "a beta distribution has no mean or std, and lies between"
         " the bounds", "std action_scaling final_tanh sde"),
        (config.distribution == "squashed", "a squashed distribution lies between the bounds",
         "action_scaling final_tanh sde"),
        (config.distribution == "state_gaussian", "the network returns the std of state_gaussian",
         "std sde"),
        (config.sde, "sde explores with a gaussian of its own", "std"))


def _check_keys(config: Config, seen: ObservationLayout) -> None:
    """Raises ConfigError for keys that the observations do not have."""
    known = tuple(key for key, _ in subspaces(seen.network_space) if isinstance(key, str))
    for name, keys in (("actor_keys", config.actor_keys), ("critic_keys", config.critic_keys)):
        if keys is None:
            continue
        if not known:
            raise ConfigError(f"{name} are parts of a Dict observation, but these are"
                              f" {brief_text(seen.space)}", Omit(name))
        if not isinstance(keys, tuple) or not keys or not {*keys} <= {*known}:
            raise ConfigError(f"{name} is {keys!r}, but must be some of {', '.join(known)}",
                              Set(**{name: known}))


def _check_model(config: Config, seen: ObservationLayout) -> None:
    """Raises ConfigError for a network for images, if no observation is one that is large enough.
    """
    if config.model not in IMAGE_MODELS or config.model in (fitting := models_for(seen)):
        return
    smallest, wide = IMAGE_MODELS[config.model], "x".join(map(str, largest_image(seen)))
    found = f"the largest here is {wide}" if wide else f"there are none in {brief_text(seen.space)}"
    larger = (Set(resize=SMALL),) * resizable(config, seen)
    raise ConfigError(f"model={config.model} is for images (Boxes of uint8, or of other numbers"
                      " with three axes and the same finite bounds everywhere) of"
                      f" {smallest}x{smallest} or larger, and {found}",
                      (*larger, Set(model=[*fitting, "mlp"][0])))


def models_for(seen: ObservationLayout) -> list[str]:
    """The networks for images that suit the observations."""
    side = min(largest_image(seen), default=0)
    return [name for name, smallest in IMAGE_MODELS.items() if side >= smallest]


def largest_image(seen: ObservationLayout) -> tuple[int, ...]:
    """(height, width) of the observation's largest image; () if it has none."""
    shapes = [leaf.image_shape for leaf in ObservationEncoding(seen).leaves]
    return max((shape[1:] for shape in shapes if shape), key=min, default=())


def resizable(config: Config, seen: ObservationLayout) -> bool:
    """True if the setting resize can change the observations: one image, or frames of one."""
    axes = 3 + (config.frame_stack > 1)
    return (bool(largest_image(seen)) and seen.is_box and len(seen.space.shape) <= axes
            and config.vec not in ("native", "envpool"))
