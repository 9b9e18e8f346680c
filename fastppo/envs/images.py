"""Preprocessing of images, and of actions that are repeated.

    ImagePreprocessing   the action repeated, then ImageView; stacking (wrappers.py) comes last
    ImageView            the images of observations in grey, then of another size
"""

import functools
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Space, Tuple

from fastppo.errors import ConfigError, Omit
from fastppo.machine import kernels
from fastppo.settings.values import image_size
from fastppo.spaces.leaves import Leaf, brief_text, build_structure, fitting_array, leaves
from fastppo.spaces.observations import StoredLeaf

# Of red, green and blue in grey [Gymnasium, GrayscaleObservation].
RGB_WEIGHTS = np.array([0.2125, 0.7154, 0.0721])


class ImageOptions(NamedTuple):
    """The settings of ImagePreprocessing."""

    frame_skip: int = 1
    grayscale: bool = False
    resize: int | str | None = None


UNCHANGED = ImageOptions()


class ImagePreprocessing(gym.Wrapper):
    """An environment with each action repeated, and its images as an ImageView has them.

    The rewards of an action's frames are added up, and the last frame is seen, as in Gymnasium's
    MaxAndSkipObservation without the maximum. An episode may end in any frame.
    """

    def __init__(self, env: gym.Env, options: ImageOptions):
        super().__init__(env)
        self.frames, self.view = options.frame_skip, None
        self.late = self.frames > 1 and type(env.unwrapped).__module__ == "fastppo.envs.car_racing"
        if self.late:
            env.unwrapped.late = True
        if options.grayscale or options.resize:
            self.view = ImageView(env.observation_space, options)
            self.observation_space = self.view.space

    def reset(self, **kwargs):
        """The environment's reset."""
        obs, info = self.env.reset(**kwargs)
        return self._seen(obs), info

    def step(self, action):
        """The last frame of the action, the sum of its rewards, and the last info."""
        obs, total, term, trunc, info = self.env.step(action)
        for _ in range(1, self.frames):
            if term or trunc:
                break
            obs, rew, term, trunc, info = self.env.step(action)
            total = total + rew
        return self._seen(obs), total, term, trunc, info

    def _seen(self, obs: Any) -> Any:
        obs = self.env.unwrapped.draw() if self.late else obs
        return self.view(obs) if self.view else obs


class ImageView:
    """Observations of a space with their images in grey, or of another size; `space` is theirs.

    Images are the Boxes that convolutions can see, also those inside a Dict or Tuple, whose other
    parts stay as they are. Raises ConfigError for a space without one, or for grey without one of
    three channels.
    """

    def __init__(self, space: Space, options: ImageOptions):
        self.parts = [LeafView(leaf, options) for leaf in leaves(space)]
        if not any(part.grey if options.grayscale else part.size for part in self.parts):
            name, what = ("grayscale", "an image of red, green and blue") if options.grayscale \
                else ("resize", "an image")
            raise ConfigError(f"{name} needs {what} in the observations, a Box of uint8 or of other"
                              " numbers with three axes and the same finite bounds everywhere; and"
                              f" these are {brief_text(space)}", Omit(name))
        self.space = space_of(build_structure(space, (part.space for part in self.parts)))

    def __call__(self, obs: Any) -> Any:
        """The view of one observation; raises ValueError if an image is not of its space."""
        return build_structure(self.space, (part(part.leaf.of(obs)) for part in self.parts))


def space_of(parts: Any) -> Space:
    """The space that is a structure of spaces, dicts and tuples; its order stays."""
    if isinstance(parts, dict):
        return Dict([(key, space_of(part)) for key, part in parts.items()])
    return Tuple(map(space_of, parts)) if isinstance(parts, tuple) else parts


class LeafView(StoredLeaf):
    """The view of one leaf: an image in grey if it has three channels, then of another size.

    Grey is that of Gymnasium's GrayscaleObservation; floats are not cut to whole numbers. Each
    pixel of another size is the mean over its area, see kernels.resize_area.
    """

    def __init__(self, leaf: Leaf, options: ImageOptions):
        super().__init__(leaf)
        self.space, axes = leaf.space, len(self.shape)
        channels = self.image_shape[0] if self.image_shape and axes < 4 else 0
        self.axis = 0 if self.image_shape == self.shape else 2
        self.grey = options.grayscale and channels == 3
        self.size = image_size(options.resize) if channels else None
        self.flat = axes == 2 or self.grey and self.dtype == np.uint8
        if self.grey or self.size:
            example = self(np.zeros(self.shape, leaf.space.dtype))
            self.space = Box(*self.image_range, example.shape, example.dtype.type)

    def __call__(self, value: Any) -> Any:
        """The view of one value; raises ValueError if that is an image and not of the space."""
        if not (self.grey or self.size):
            return value
        image = fitting_array(value, self.leaf, self.shape, self.leaf.space.dtype)
        planes = image[None] if image.ndim == 2 else np.moveaxis(image, self.axis, 0)
        if self.grey:
            red, green, blue = (plane * weight for plane, weight in zip(planes, RGB_WEIGHTS))
            whole = planes.dtype == np.uint8  # cut to whole numbers
            planes = [(red + green + blue).astype(planes.dtype if whole else np.float32)]
        if self.size:
            planes = [resized(plane, self.size) for plane in planes]
        return planes[0] if self.flat else np.stack(planes, self.axis)


def resized(plane: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The means of a plane [h w] over the area of each pixel of one of another size."""
    plane = np.ascontiguousarray(plane)
    if plane.dtype != np.uint8:
        down, across = map(area_shares, plane.shape, size)
        return (down @ plane @ across.T).astype(np.float32)
    out = np.empty(size, np.uint8)
    kernels.resize_area(plane, 1, out)
    return out


@functools.cache
def area_shares(old: int, new: int) -> np.ndarray:
    """f64 [new old]: the share of each old pixel of a line in each new one."""
    below = np.clip(np.arange(new + 1)[:, None] * old / new - np.arange(old), 0, 1)  # each edge
    return np.diff(below, axis=0) * new / old
