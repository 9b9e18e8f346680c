"""The pictures of a video: the rendered environment, the network's view, and a caption.

They are of episodes of a frozen policy, one after another.
"""

import os
from contextlib import contextmanager, nullcontext
from typing import Any, Iterator, Literal, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fastppo.envs.make import EnvFactory
from fastppo.errors import ConfigError, Set
from fastppo.evaluation.evaluate import FRAMES, EvaluationEnvs, evaluation_envs, with_render_mode
from fastppo.machine import limits
from fastppo.networks.torch_state import torch_threads
from fastppo.policy import Policy
from fastppo.settings.values import check_episodes, return_text
from fastppo.video.network_view import BACKGROUND, MUTED, TEXT, Panel, fitted, network_view

DISPLAY_DRIVER = "SDL_VIDEODRIVER"
View = Literal["env", "network", "both"]
SHORTEST_SIDE, LONGEST_SIDE = 340, 1280  # pixels of a rendered frame's shorter and longer side
NETWORK_BESIDE = 300, 320  # smallest width and height of the network's view in pixels
NETWORK_ALONE = 480, 420  # its size without the environment
STRIP, FONT_SIZE, MARGIN = 22, 13, 8  # pixels of the caption


class WatchedMoment(NamedTuple):
    """The place in an episode at which an observation is seen."""

    episode: int  # from 0 on
    step: int  # steps that were taken
    total: float  # undiscounted return so far
    over: bool  # True for the last observation of the episode


@contextmanager
def no_display() -> Iterator[None]:
    """Inside the block SDL, which pygame draws with, looks for no display; it would complain."""
    if not limits.has_display():
        os.environ.setdefault("MUJOCO_GL", "egl")  # GLFW needs one
    before = os.environ.get(DISPLAY_DRIVER)
    os.environ.setdefault(DISPLAY_DRIVER, "dummy")
    try:
        yield
    finally:
        if before is None:
            del os.environ[DISPLAY_DRIVER]


@contextmanager
def watched_env(policy: Policy, factory: EnvFactory, seed: int, mode: str | None,
                needed: bool = True) -> Iterator[EvaluationEnvs]:
    """One new environment with the render mode `mode`, for episodes with a frozen policy.

    None: any, it is not rendered. Afterwards it is closed. Raises ConfigError if it does not have
    that render mode and it is `needed`.
    """
    make = factory if mode is None else with_render_mode(factory, mode)
    with no_display() if mode == FRAMES else nullcontext(), torch_threads(1), \
            evaluation_envs(policy, [make], seed) as envs:
        if needed and mode is not None and envs.envs[0].render_mode != mode:
            modes = (envs.envs[0].metadata or {}).get("render_modes") or []
            users = not type(envs.envs[0].unwrapped).__module__.startswith("fastppo.")
            raise ConfigError(
                f"{factory.name} cannot be shown: it is not made with the render mode {mode}; the"
                f" render modes in its metadata: {', '.join(modes) or 'none'}", (*[
                    f'give its class metadata = {{"render_modes": ["{mode}"]}}, and its constructor'
                    " an argument render_mode, which it keeps as self.render_mode, and a method"
                    " render()"] * users,
                    Set(output="video.mp4") if FRAMES in modes else Set(view="network")))
        yield envs


def watched_moments(envs: EvaluationEnvs, episodes: int, deterministic: bool
                    ) -> Iterator[WatchedMoment]:
    """Plays episodes 0 .. episodes - 1 in the first environment; yields after resets and steps.

    They are the episodes of `evaluate` with the same seed.
    """
    check_episodes(episodes)
    for number in range(episodes):
        envs.begin(0, number)
        step, total, over = 0, 0.0, False
        yield WatchedMoment(number, step, total, over)
        while not over:
            (_, rew, over), = envs.steps([0], deterministic)
            step, total = step + 1, total + rew
            yield WatchedMoment(number, step, total, over)


class FramePainter:
    """Paints one picture for each moment of the episodes of `envs`, all of the same size.

    `name` is that of the environment, for the caption.
    """

    def __init__(self, envs: EvaluationEnvs, name: str, view: View = "env", caption: bool = True):
        self.envs, self.name, self.view, self.caption = envs, name, view, caption
        self.frame_size: tuple[int, int] | None = None
        self.limits = np.float32(0)
        self.names = action_names(envs.envs[0])

    def paint(self, moment: WatchedMoment) -> Image.Image:
        """The picture, RGB, of what the environment and the network see now.

        Raises EnvError if the environment renders no frame.
        """
        parts = [] if self.view == "network" else [self._frame()]
        if self.view == "both":
            height = max(NETWORK_BESIDE[1], parts[0].height)
            parts.append(self._panel((max(NETWORK_BESIDE[0], height * 3 // 4), height)))
        elif self.view == "network":
            parts.append(self._panel(NETWORK_ALONE))
        width, x = sum(part.width for part in parts), 0
        height = max(part.height for part in parts) + STRIP * self.caption
        size = width + width % 2, height + height % 2  # even, as mp4 needs it
        whole = Image.new("RGB", size, BACKGROUND)
        for part in parts:
            whole.paste(part, (x, 0))
            x += part.width
        if self.caption:
            draw_caption(whole, self.name, moment)
        return whole

    def _frame(self) -> Image.Image:
        """The frame of the first environment, as large as it is shown."""
        try:
            frame = np.asarray(self.envs.envs[0].render())
            if frame.dtype != np.uint8 or frame.shape[2:] != (3,) or not frame.size:
                raise ValueError(f"the frame is {frame.dtype} {list(frame.shape)}, not uint8"
                                 " [height width 3]")
        except BaseException as error:  # a user's environment may raise anything
            raise self.envs.fault(0, "render()", error) from error
        image = Image.fromarray(frame)
        self.frame_size = self.frame_size or shown_size(*image.size)
        larger = image.width < self.frame_size[0]  # pixels of a game stay sharp
        return image.resize(self.frame_size, Image.Resampling.NEAREST if larger
                            else Image.Resampling.LANCZOS)

    def _panel(self, size: tuple[int, int]) -> Image.Image:
        row, = (self.envs.acting(0) or [0])[:1]  # of a game, the first that acts next
        part = slice(row, row + 1)
        seen = network_view(self.envs.policy, self.envs.obs[part], self.envs.states[part])
        self.limits = np.maximum(self.limits, seen.limits)  # scales that only grow do not flicker
        return Panel(size).draw(seen._replace(limits=self.limits, names=self.names))


def action_names(env: Any) -> tuple[str, ...]:
    """The names that an environment has for its actions, as games of ale-py do; () for none."""
    try:
        return tuple(map(str, env.unwrapped.get_action_meanings()))
    except Exception:  # most environments have no such method
        return ()


def shown_size(width: int, height: int) -> tuple[int, int]:
    """The size at which a frame is shown: a small one several times as large, a large one less."""
    if max(width, height) > LONGEST_SIDE:
        scale = LONGEST_SIDE / max(width, height)
        return max(1, round(width * scale)), max(1, round(height * scale))
    times = min(-(-SHORTEST_SIDE // min(width, height)), max(1, LONGEST_SIDE // max(width, height)))
    return width * times, height * times


def draw_caption(image: Image.Image, name: str, moment: WatchedMoment) -> None:
    """Writes a line on the strip at the bottom: the name, the episode, the step, the return."""
    font, draw = ImageFont.load_default(FONT_SIZE), ImageDraw.Draw(image)
    middle = image.height - STRIP / 2
    right = "   ".join((f"episode {moment.episode + 1}", f"step {moment.step:,}",
                        f"return {return_text(moment.total)}"))
    draw.text((image.width - MARGIN, middle), right, TEXT if moment.over else MUTED, font, "rm")
    room = image.width - 4 * MARGIN - font.getlength(right)
    draw.text((MARGIN, middle), fitted(name, room, font), TEXT, font, "lm")
