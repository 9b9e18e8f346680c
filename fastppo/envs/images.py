"""Preprocessing of images, and of actions that are repeated.

    ImagePreprocessing   the action repeated, then ImageView; stacking (wrappers.py) comes last
    ImageView            an image in grey, then of another size
"""

import functools
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Space

from fastppo.errors import ConfigError, Omit
from fastppo.machine import kernels
from fastppo.settings.values import image_size
from fastppo.spaces.leaves import Leaf, brief_text, channels_are_last, fitting_array
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
    """The images of a space in grey, or of another size; `space` is theirs, of uint8 or float32.

    Grey is that of Gymnasium's GrayscaleObservation; floats are not cut to whole numbers. Each
    pixel of another size is the mean over its area, see kernels.resize_area. Raises ConfigError for
    a space of no images.
    """

    def __init__(self, space: Space, options: ImageOptions):
        bounds = isinstance(space, Box) and len(space.shape) in (2, 3) and all(space.shape) and \
            StoredLeaf(Leaf((), space)).image_range
        channels = bounds and space.shape[2 if channels_are_last(space.shape) else 0]
        if not bounds or options.grayscale and channels != 3:
            name, what = ("grayscale", "an image of red, green and blue") if options.grayscale \
                else ("resize", "one image")
            raise ConfigError(f"{name} needs observations that are {what}, a Box of uint8 or of"
                              " other numbers with three axes and the same finite bounds"
                              f" everywhere; and these are {brief_text(space)}", Omit(name))
        self.given, self.axis = space, 2 if channels_are_last(space.shape) else 0
        self.grey, self.size = options.grayscale, image_size(options.resize)
        self.flat = len(space.shape) == 2 or self.grey and space.dtype == np.uint8
        example = self(np.zeros(space.shape, space.dtype))
        self.space = Box(*bounds, example.shape, example.dtype.type)

    def __call__(self, obs: Any) -> np.ndarray:
        """The view of one image; raises ValueError if that is not of the space."""
        image = fitting_array(obs, "observation", self.given.shape, self.given.dtype)
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
