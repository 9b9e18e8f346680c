"""The network's view: inputs above, then the distributions of actions, and the value.

As data, and drawn as a picture.
"""

import math
from typing import Any, NamedTuple, Sequence

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor, nn
from torch import distributions as td
from torch.nn import functional as F

from fastppo.networks import action_heads
from fastppo.policy import Policy
from fastppo.spaces.leaves import channels_are_last, leaf_arrays, leaves
from fastppo.spaces.observations import ObservationEncoding

SHOWN_DEVIATIONS = 3.0  # normalised observations are shown up to this
TINY = 1e-6  # of others, an input that is always 0
BACKGROUND, TEXT, MUTED = (24, 26, 31), (214, 218, 226), (140, 147, 160)
POSITIVE, NEGATIVE, GROUND = (88, 166, 255), (255, 149, 84), (48, 53, 62)
EDGE, LINE, LETTERS = 12, 17, 12  # pixels: margin, height of a line, size of its letters
LABEL_WIDTH = 24  # pixels of the number of an input
WIDEST_BAR = 40  # pixels of the bar of an input
CODES = 32  # an image without a number as large is one of codes
RANGE = 3.0  # means and deviations of actions are drawn between -RANGE and RANGE


class Choices(NamedTuple):
    """The probabilities of choices, or of bits to be 1."""

    probs: np.ndarray  # f32 [n]


class Normals(NamedTuple):
    """The means and standard deviations of numbers, as they are sampled."""

    mean: np.ndarray  # f32 [a]
    std: np.ndarray  # f32 [a]


class NetworkView(NamedTuple):
    """The inputs of the network at one step, and its outputs."""

    images: list[np.ndarray]  # u8 [h w] or [h w 3], the frames of image observations
    numbers: np.ndarray  # f32 [k], the other inputs: normalised, choices one-hot
    limits: np.ndarray  # f32 [k], each number is shown between -limit and limit
    actions: list[Choices | Normals]  # one for each factor or part of the action space
    value: float
    parts: Sequence[tuple[str, int]] = ()  # key, and how many of the numbers, of a Dict or Tuple
    normalised: bool = False  # the numbers are, by the observer
    names: Sequence[str] = ()  # of the choices, if there is one Choices; () for their numbers


@torch.inference_mode()
def network_view(policy: Policy, rows: np.ndarray, states: np.ndarray) -> NetworkView:
    """The view of a stored observation [1 ...] with the recurrent state f32 [1 s]."""
    observer = policy.observer
    stored = observer.tensors(rows)
    params, value, _ = policy.step(stored, torch.from_numpy(states).to(observer.count.device))
    arrays = [array[0] for i, array in enumerate(leaf_arrays(rows)) if i != observer.layout.mask]
    seen = [leaf.like_image or i in observer.encoding.images
            for i, leaf in enumerate(observer.encoding.leaves)]
    images = [frame for i, array in enumerate(arrays) if seen[i]
              for frame in image_frames(as_bytes(observer.encoding, i, array))]
    x, places = observer(stored), leaves(observer.layout.network_space)
    inputs = [x[0, columns] for columns in observer.encoding.columns] if observer.flat else [
        leaf.of(x)[0].flatten() for leaf in places]
    found = [(".".join(map(str, place.path)), part.cpu().numpy())
             for image, place, part in zip(seen, places, inputs) if not image]
    numbers = [part for _, part in found]
    shown = np.nan_to_num(np.concatenate([np.zeros(0, np.float32), *numbers]))
    limits = np.full_like(shown, SHOWN_DEVIATIONS) if observer.norm else \
        np.maximum(np.abs(shown), TINY)
    return NetworkView(images, shown, limits, action_view(policy.head, params), float(value),
                       [(key, len(part)) for key, part in found if key], observer.norm)


def as_bytes(encoding: ObservationEncoding, i: int, image: np.ndarray) -> np.ndarray:
    """The image of leaf `i` in uint8, with other numbers scaled from their bounds."""
    if image.dtype == np.uint8:
        return image
    low, high = encoding.leaves[i].image_range or (0, 1)
    return np.clip((image - low) / (high - low) * 255, 0, 255).round().astype(np.uint8)


def image_frames(array: np.ndarray) -> list[np.ndarray]:
    """The pictures, [h w] or [h w 3], in an image observation: its channels or stacked frames."""
    if array.ndim == 4:
        return [picture for frame in array for picture in image_frames(frame)]
    if array.ndim == 2:
        return [array]
    if channels_are_last(array.shape):
        return [array] if array.shape[2] == 3 else [*np.moveaxis(array, 2, 0)]
    return [*array]


def action_view(head: nn.Module, params: Any) -> list[Choices | Normals]:
    """The distributions of actions that a head makes of parameters [1 p]; [] if it is unknown."""
    if isinstance(head, action_heads.CompositeHead):
        each = params.split([part.size for part in head.parts], -1)
        return [view for part, x in zip(head.parts, each) for view in action_view(part, x)]
    if isinstance(head, action_heads.Categorical):
        return [Choices(_finite(params.softmax(-1)))]
    if isinstance(head, action_heads.MultiCategorical):
        sizes = (~head.padding).sum(1).tolist()
        return [Choices(_finite(part.softmax(-1))) for part in params.split(sizes, -1)]
    if isinstance(head, action_heads.Bernoulli):
        return [Choices(_finite(params.sigmoid()))]
    if isinstance(head, action_heads.Beta):
        params = td.Beta(*(1 + F.softplus(params)).chunk(2, -1))
    if isinstance(params, td.Categorical):
        return [Choices(_finite(params.probs))]
    if isinstance(params, Tensor) and not isinstance(head, action_heads.Normal):
        mean, std = head.mode(params), head.std(params)
        return [Normals(_finite(mean), _finite(std.expand_as(mean)))] if len(std) else []
    try:
        mean, std = head.normal(params) if isinstance(head, action_heads.Normal) else (
            params.mean, params.stddev)
    except (AttributeError, NotImplementedError):  # an unknown head, or distribution
        return []
    return [Normals(_finite(mean), _finite(std.expand_as(mean)))]


def _finite(x: Tensor) -> np.ndarray:
    """The first row of x; 0 for NaN, with which the next action is an error."""
    return np.nan_to_num(x[0].flatten().cpu().numpy())


class Row(NamedTuple):
    """A line with a bar from `low` to `high` and a mark, between 0 and 1."""

    name: str
    low: float
    high: float
    mark: float
    text: str = ""


class Panel:
    """A picture of `size` pixels (width, height) on which a NetworkView is drawn."""

    def __init__(self, size: tuple[int, int]):
        self.image = Image.new("RGB", size, BACKGROUND)
        self.pen, self.font = ImageDraw.Draw(self.image), ImageFont.load_default(LETTERS)
        self.left, self.right = EDGE, size[0] - EDGE

    def draw(self, view: NetworkView) -> Image.Image:
        """The picture of `view`."""
        bottom = self.image.height - EDGE - LINE
        self._heading(bottom, "value (of scaled, discounted rewards)", f"{view.value:z.2f}")
        if rows := rows_of_actions(view):
            listed = LINE * len(rows) <= self.image.height // 2
            top = bottom - 6 - (LINE * len(rows) if listed else self.image.height // 5)
            if listed:
                self._draw_rows(rows, top)
            else:
                self._draw_bars([2 * row.mark - 1 for row in rows], top, bottom - 6)
            bottom = top - LINE - 2
            self._heading(bottom, action_title(view))
        self._draw_inputs(view, EDGE, bottom - 8)
        return self.image

    def _draw_inputs(self, view: NetworkView, top: int, bottom: int) -> None:
        if view.images:
            room = (bottom - top) // (2 if len(view.numbers) else 1)
            self._draw_images(view.images, top, room)
            top += room + 6
        if not len(view.numbers):
            return
        listed = bool(view.parts) and LINE * len(view.numbers) <= bottom - top - LINE
        title = ("inputs" if listed else inputs_title(view.parts)) + (
            ", normalised" if view.normalised else ", each to its largest")
        self._heading(top, title, f"±{view.limits.max():g}" * view.normalised)
        numbers = np.clip(view.numbers / view.limits, -1, 1).tolist()
        if listed:
            names = [f"{key} {i}" if count > 1 else key
                     for key, count in view.parts for i in range(count)]
            self._draw_rows([Row(name, *sorted((0.5, 0.5 + x / 2)), 0.5)
                             for name, x in zip(names, numbers)], top + LINE + 2)
        else:
            self._draw_bars(numbers, top + LINE + 2, bottom)

    def _draw_rows(self, rows: Sequence[Row], top: int) -> None:
        """Draws rows below each other: name, bar, text."""
        widths = [max(map(self.font.getlength, texts))
                  for texts in ([row.name for row in rows], [row.text for row in rows])]
        begin = self.left + min((self.right - self.left) // 2, 8 + math.ceil(widths[0]))
        end = self.right - (8 + math.ceil(widths[1])) * bool(widths[1])
        for y, row in enumerate(rows):
            y = top + LINE * y
            self._write(self.left, y, fitted(row.name, begin - self.left - 8, self.font), MUTED)
            if row.text:
                self._write(self.right, y, row.text, TEXT, "ra")
            low, high, mark = (begin + x * (end - begin) for x in row[1:4])
            self.pen.rectangle((begin, y + 2, end, y + LINE - 3), GROUND)
            self.pen.rectangle((low, y + 2, high, y + LINE - 3),
                               POSITIVE if high > mark or row.text else NEGATIVE)
            self.pen.line((mark, y + 2, mark, y + LINE - 3), TEXT)

    def _draw_bars(self, numbers: Sequence[float], top: int, bottom: int) -> None:
        """Draws numbers in [-1, 1] as bars from a line in the middle, side by side."""
        width = min(WIDEST_BAR, (self.right - self.left) / len(numbers))
        begin, gap = (self.left + self.right - width * len(numbers)) / 2, min(4.0, width / 5)
        if width >= LABEL_WIDTH:  # there is room for the number of each
            bottom -= LINE
            for i in range(len(numbers)):
                self._write(begin + (i + 0.5) * width, bottom + 3, str(i), MUTED, "ma")
        middle = (top + bottom) / 2
        self.pen.rectangle((self.left, top, self.right, bottom), GROUND)
        for i, number in enumerate(numbers):
            x, y = begin + i * width, middle - number * (bottom - top) / 2
            self.pen.rectangle((x + gap, min(y, middle), x + width - gap, max(y, middle)),
                               POSITIVE if number > 0 else NEGATIVE)
        self.pen.line((self.left, middle, self.right, middle), MUTED)

    def _draw_images(self, images: list[np.ndarray], top: int, height: int) -> None:
        """Draws pictures side by side, in the rows that make them largest."""
        room = self.right - self.left, height
        wide, high = (1 + max(one.shape[axis] for one in images) for axis in (1, 0))
        columns = max(range(1, len(images) + 1), key=lambda n: min(
            room[0] / (n * wide), room[1] / (-(-len(images) // n) * high)))
        whole = Image.new("RGB", (columns * wide, -(-len(images) // columns) * high), BACKGROUND)
        for i, one in enumerate(images):
            whole.paste(Image.fromarray(brightened(one)).convert("RGB"),
                        (i % columns * wide, i // columns * high))
        whole = ImageOps.contain(whole, room, Image.Resampling.NEAREST)
        self.image.paste(whole, (self.left + (room[0] - whole.width) // 2, top))

    def _heading(self, y: int, text: str, right: str = "") -> None:
        room = self.right - self.left - 50 * bool(right)
        self._write(self.left, y, fitted(text, room, self.font), MUTED)
        if right:
            self._write(self.right, y, right, TEXT, "ra")

    def _write(self, x: float, y: float, text: str, colour: tuple[int, int, int], anchor: str = "la"
               ) -> None:
        self.pen.text((x, y), text, colour, self.font, anchor)


def fitted(text: str, width: float, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """`text`, or its beginning that fits into so many pixels."""
    if len(text) <= width and font.getlength(text) <= width:  # no letter is as narrow as a pixel
        return text
    shorter = (f"{text[:end]}…" for end in range(min(len(text), int(width)), 0, -1))
    return next((one for one in shorter if font.getlength(one) <= width), "")


def rows_of_actions(view: NetworkView) -> list[Row]:
    """A row for each choice, with its probability, and each number, with mean and deviation."""
    named = len(view.actions) == 1 and len(view.names) == len(view.actions[0][0])
    rows = []
    for group in view.actions:
        for i, numbers in enumerate(np.stack(group, 1).tolist()):
            name = view.names[i] if named else str(i)
            if isinstance(group, Choices):
                rows.append(Row(name, 0.0, *numbers, *numbers, f"{numbers[0]:.2f}"))
            else:
                mean, std = numbers
                ends = np.clip([mean - std, mean + std, mean], -RANGE, RANGE) / RANGE
                rows.append(Row(name, *(0.5 + 0.5 * ends), f"{mean:.2f} ± {std:.2f}"))
    return rows


def brightened(image: np.ndarray) -> np.ndarray:
    """`image`, or if it is of small numbers, such as codes of cells, with its largest as 255."""
    most = int(image.max(initial=0))
    return image if not 0 < most < CODES else (image * (255 / most)).astype(np.uint8)


def inputs_title(parts: Sequence[tuple[str, int]]) -> str:
    """The words above inputs that are not listed: the keys, and the numbers of their inputs."""
    ends = np.cumsum([count for _, count in parts]).tolist()
    places = (f"{key} {end - count}" + f"-{end - 1}" * (count > 1)
              for (key, count), end in zip(parts, ends))
    return ", ".join(places) or "inputs"


def action_title(view: NetworkView) -> str:
    """The words above the distributions of actions."""
    kinds = {*map(type, view.actions)}
    if kinds == {Choices}:
        return "probabilities of actions"
    return "means and deviations of actions" if kinds == {Normals} else "actions"
