"""Draws a NetworkView as a picture: inputs above, then the distributions of actions, the value."""

import math
from functools import partial
from typing import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fastppo.evaluation.network_view import Choices, NetworkView, Normals

Box = tuple[int, int, int, int]  # left, top, right, bottom in pixels

BACKGROUND, TEXT, MUTED = (24, 26, 31), (214, 218, 226), (140, 147, 160)
POSITIVE, NEGATIVE, GROUND = (88, 166, 255), (255, 149, 84), (48, 53, 62)
EDGE, LINE, LETTERS = 12, 17, 12  # pixels: margin, height of a line, size of its letters
LOWEST_LINE = 14  # of an input with a line of its own
LABEL_WIDTH = 24  # pixels of the number of an action or input
WIDEST_BAR, MOST_BARS = 40, 128  # pixels of the bar of an input; inputs that are bars, not cells
CODES = 32  # an image without a number as large is one of codes
RANGE = 3.0  # means and deviations of actions are drawn between -RANGE and RANGE


class Panel:
    """A picture of `size` pixels (width, height) on which a NetworkView is drawn."""

    def __init__(self, size: tuple[int, int]):
        self.image = Image.new("RGB", size, BACKGROUND)
        self.pen, self.font = ImageDraw.Draw(self.image), ImageFont.load_default(LETTERS)
        self.left, self.right = EDGE, size[0] - EDGE

    def draw(self, view: NetworkView) -> Image.Image:
        """The picture of `view`."""
        bottom = self.image.height - EDGE - LINE
        title = self._cut("value (of scaled, discounted rewards)", self.right - self.left - 60)
        self._write(self.left, bottom, title, MUTED)
        self._write(self.right, bottom, f"{view.value:z.2f}", TEXT, "ra")
        if view.actions:
            height, listed = self._action_height(view)
            box = self.left, bottom - 6 - height, self.right, bottom - 6
            self._draw_actions(view, box, listed)
            bottom = box[1] - LINE - 2
            self._write(self.left, bottom, action_title(view), MUTED)
        self._draw_inputs(view, (self.left, EDGE, self.right, bottom - 8))
        return self.image

    def _action_height(self, view: NetworkView) -> tuple[int, bool]:
        """(pixels for all actions, True if each has a line of its own)."""
        height = LINE * sum(len(group[0]) for group in view.actions)
        half = self.image.height // 2
        return (height, True) if height <= half else (self.image.height // 5, False)

    def _draw_inputs(self, view: NetworkView, box: Box) -> None:
        left, top, right, bottom = box
        if view.images:
            room = (bottom - top) // (2 if len(view.numbers) else 1)
            self._tile(view.images, (left, top, right, top + room))
            top += room + 6
        if len(view.numbers):
            listed = bool(view.parts) and LOWEST_LINE * len(view.numbers) <= bottom - top - LINE
            cells, limits = len(view.numbers) > MOST_BARS and not listed, view.limits
            limits = limits.max() if cells else limits  # cells are compared with one another
            title = "inputs" if listed else inputs_title(view.parts)
            title += ", normalised" if view.normalised else ", each to its largest" * (not cells)
            scale = f"±{view.limits.max():g}" if view.normalised or cells else ""
            self._write(left, top, self._cut(title, right - left - 50), MUTED)
            self._write(right, top, scale, MUTED, "ra")
            draw = partial(self._lines, view.parts) if listed else \
                self._cells if cells else self._bars
            draw(view.numbers / limits, (left, top + LINE + 2, right, bottom))

    def _draw_actions(self, view: NetworkView, box: Box, listed: bool) -> None:
        left, top, right, bottom = box
        if not listed:
            return self._bars(np.concatenate([
                2 * group.probs - 1 if isinstance(group, Choices) else group.mean / RANGE
                for group in view.actions]), box)
        known = len(view.actions) == 1 and len(view.names) == len(view.actions[0][0])
        names = view.names if known else [
            str(i) for i in range(max(len(group[0]) for group in view.actions))]
        begin = left + max(LABEL_WIDTH, 8 + max(map(self._width, names)))
        for group in view.actions:
            for name, numbers in zip(names, zip(*group)):
                draw, number = (self._share, 36) if isinstance(group, Choices) else (
                    self._spread, 90)
                line = begin, top + 2, right - number, top + LINE - 3
                self._write(left, top, name, MUTED)
                self._write(right, top, draw(line, *numbers), TEXT, "ra")
                top += LINE

    def _share(self, box: Box, prob: float) -> str:
        """Draws a probability as a bar; returns it as text."""
        left, top, right, bottom = box
        self.pen.rectangle(box, GROUND)
        if (width := round((right - left) * float(prob))) > 0:
            self.pen.rectangle((left, top, left + width, bottom), POSITIVE)
        return f"{prob:.2f}"

    def _spread(self, box: Box, mean: float, std: float) -> str:
        """Draws a mean as a mark, its deviation as a bar around it; returns them as text."""
        left, top, right, bottom = box
        self.pen.rectangle(box, GROUND)
        low, middle, high = (left + (right - left) * (0.5 + 0.5 * float(np.clip(x / RANGE, -1, 1)))
                             for x in (mean - std, mean, mean + std))
        self.pen.rectangle((low, top + 3, high, bottom - 3), POSITIVE)
        self.pen.rectangle((middle - 1, top, middle + 1, bottom), TEXT)
        return f"{mean:.2f} ± {std:.2f}"

    def _bars(self, numbers: np.ndarray, box: Box) -> None:
        """Draws numbers in [-1, 1], larger ones cut, as bars from a line in the middle."""
        left, top, right, bottom = box
        width = min(WIDEST_BAR, (right - left) / len(numbers))
        begin, gap = (left + right - width * len(numbers)) / 2, min(4.0, width / 5)
        if width >= LABEL_WIDTH:  # there is room for the number of each
            bottom -= LINE
            for i in range(len(numbers)):
                self._write(begin + (i + 0.5) * width, bottom + 3, str(i), MUTED, "ma")
        middle = (top + bottom) / 2
        self.pen.rectangle((left, top, right, bottom), GROUND)
        for i, number in enumerate(np.clip(numbers, -1, 1).tolist()):
            x, y = begin + i * width, middle - number * (bottom - top) / 2
            self.pen.rectangle((x + gap, min(y, middle), x + width - gap, max(y, middle)),
                               POSITIVE if number > 0 else NEGATIVE)
        self.pen.line((left, middle, right, middle), MUTED)

    def _lines(self, parts: Sequence[tuple[str, int]], numbers: np.ndarray, box: Box) -> None:
        """Draws numbers in [-1, 1], larger ones cut, each as a bar beside its key and index."""
        left, top, right, bottom = box
        line = min(LINE, (bottom - top) // len(numbers))
        names = [f"{key} {i}" if count > 1 else key for key, count in parts for i in range(count)]
        begin = left + min((right - left) // 2, 8 + max(map(self._width, names)))
        for i, (name, number) in enumerate(zip(names, np.clip(numbers, -1, 1).tolist())):
            y, middle = top + i * line, (begin + right) / 2
            self._write(left, y, self._cut(name, begin - left - 8), MUTED)
            self.pen.rectangle((begin, y + 2, right, y + line - 3), GROUND)
            x = middle + number * (right - begin) / 2
            self.pen.rectangle((min(x, middle), y + 2, max(x, middle), y + line - 3),
                               POSITIVE if number > 0 else NEGATIVE)
            self.pen.line((middle, y + 2, middle, y + line - 3), MUTED)

    def _cells(self, numbers: np.ndarray, box: Box) -> None:
        """Draws numbers in [-1, 1] as coloured cells, row by row."""
        left, top, right, bottom = box
        width, height = max(1, right - left), max(1, bottom - top)
        columns = math.ceil(math.sqrt(len(numbers) * width / height))
        side = max(1, width // columns)
        cells = np.full((-(-len(numbers) // columns), columns, 3), BACKGROUND, np.uint8)
        flat = np.clip(numbers, -1, 1)[:, None]
        ends = np.where(flat > 0, POSITIVE, NEGATIVE)
        cells.reshape(-1, 3)[:len(numbers)] = GROUND + abs(flat) * (ends - np.array(GROUND))
        picture = Image.fromarray(cells)
        size = columns * side, min(height, len(cells) * side)
        self.image.paste(picture.resize(size, Image.Resampling.NEAREST), (left, top))

    def _tile(self, images: list[np.ndarray], box: Box) -> None:
        """Draws pictures side by side, in the rows that make them largest."""
        left, top, right, bottom = box
        shape = max(one.shape[0] for one in images), max(one.shape[1] for one in images)
        scale, columns = max(
            ((min((right - left - 4 * n) / n / shape[1],
                  (bottom - top) / -(-len(images) // n) / shape[0] - 0.02), n)
             for n in range(1, len(images) + 1)), key=lambda choice: choice[0])
        left += int(right - left - columns * (shape[1] * scale + 4)) // 2
        for i, one in enumerate(images):
            size = max(1, int(one.shape[1] * scale)), max(1, int(one.shape[0] * scale))
            place = (left + i % columns * (int(shape[1] * scale) + 4),
                     top + i // columns * (int(shape[0] * scale) + 4))
            picture = Image.fromarray(brightened(one)).convert("RGB")
            self.image.paste(picture.resize(size, Image.Resampling.NEAREST), place)

    def _write(self, x: float, y: float, text: str, colour: tuple[int, int, int], anchor: str = "la"
               ) -> None:
        self.pen.text((x, y), text, colour, self.font, anchor)


    def _width(self, text: str) -> int:
        return math.ceil(self.pen.textlength(text, self.font))

    def _cut(self, text: str, width: float) -> str:
        """`text`, or its beginning that fits into so many pixels."""
        if len(text) <= width and self._width(text) <= width:  # no letter is as narrow as a pixel
            return text
        fitting = (f"{text[:end]}…" for end in range(int(width) // 2, 0, -1))
        return next((one for one in fitting if self._width(one) <= width), "")


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
