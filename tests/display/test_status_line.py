"""A line that says how far something slow is, on a terminal and in a file."""

import io
import sys

from fastppo.display import status_line


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def shown(stream, monkeypatch, seconds):
    """What a StatusLine writes to `stream` if it is called at these seconds."""
    clock = [0.0]
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(status_line.time, "monotonic", lambda: clock[0])
    with status_line.StatusLine() as status:
        for clock[0] in seconds:
            status(f"at {clock[0]}")
    return stream.getvalue()


def test_on_a_terminal_the_line_is_replaced_and_removed(monkeypatch):
    assert shown(Terminal(), monkeypatch, [1.0, 2.0, 2.1, 2.3]) == \
        "\r\033[Kat 2.0\r\033[Kat 2.3\r\033[K"


def test_elsewhere_a_line_comes_every_ten_seconds(monkeypatch):
    assert shown(io.StringIO(), monkeypatch, [3.0, 10.0, 11.0, 19.9, 20.0]) == "at 10.0\nat 20.0\n"


def test_what_is_fast_shows_nothing(monkeypatch):
    assert shown(Terminal(), monkeypatch, [0.5, 1.9]) == ""
