"""Draws a NetworkView as a picture: inputs above, then the distributions of actions, the value."""

import math
from typing import NamedTuple, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from fastppo.evaluation.network_view import Choices, NetworkView, Normals

BACKGROUND, TEXT, MUTED = (24, 26, 31), (214, 218, 226), (140, 147, 160)
POSITIVE, NEGATIVE, GROUND = (88, 166, 255), (255, 149, 84), (48, 53, 62)
EDGE, LINE, LETTERS = 12, 17, 12  # pixels: margin, height of a line, size of its letters
LABEL_WIDTH = 24  # pixels of the number of an input
WIDEST_BAR = 40  # pixels of the bar of an input
CODES = 32  # an image without a number as large is one of codes
RANGE = 3.0  # means and deviations of actions are drawn between -RANGE and RANGE


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
