"""Records episodes of a policy as a video."""

import contextlib
from itertools import islice
from pathlib import Path
from typing import Any, Callable

from fastppo.envs.make import EnvFactory
from fastppo.evaluation.frames import FramePainter, View
from fastppo.evaluation.video_file import video_file
from fastppo.evaluation.watched_env import (
    FRAMES,
    WatchedMoment,
    frames_per_second,
    watched_env,
    watched_moments,
)
from fastppo.policy import Policy

FRAME_LIMIT = 10_000


def record_video(policy: Policy, factory: EnvFactory, path: Path, seed: int = 0, episodes: int = 1,
                 deterministic: bool = True, view: View = "env", caption: bool = True,
                 fps: float | None = None,
                 report: Callable[[WatchedMoment], Any] = lambda moment: None,
                 frames: int | None = None) -> Path:
    """Writes a video of episodes to `path`, a .mp4 or .webp file, and returns the path.

    They are the episodes of `evaluate` with the same `seed`, in an environment of `factory` made
    with render_mode="rgb_array", except for the view "network"; a frame for each observation, at
    most `frames` (None: FRAME_LIMIT). `fps`: frames per second, None for the environment's own
    rate. `report` is called for every frame, and ends the video if it returns True. Raises
    ConfigError if the environment does not render, or if the file cannot be written; EnvError if
    the environment fails.
    """
    with contextlib.ExitStack() as stack:
        mode = None if view == "network" else FRAMES
        envs = stack.enter_context(watched_env(policy, factory, seed, mode))
        painter = FramePainter(envs, factory.name, view, caption)
        append = stack.enter_context(video_file(path, fps or frames_per_second(envs.envs[0])))
        for moment in islice(watched_moments(envs, episodes, deterministic),
                             FRAME_LIMIT if frames is None else frames):
            append(painter.paint(moment))
            if report(moment):
                break
    return path
