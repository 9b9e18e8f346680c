"""The line on a terminal that says how far something slow is."""

import io

import pytest

from fastppo.display import status_line
from fastppo.display.status_line import StatusLine


class Screen(io.StringIO):
    """Text that is a terminal, or not."""

    def __init__(self, terminal):
        super().__init__()
        self.isatty = lambda: terminal


@pytest.fixture
def clock(monkeypatch):
    """A list with the time that the module sees."""
    now = [100.0]
    monkeypatch.setattr(status_line.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("terminal", [True, False])
def test_it_begins_after_two_seconds_and_on_a_terminal_only(monkeypatch, clock, terminal):
    screen = Screen(terminal)
    monkeypatch.setattr(status_line.sys, "stderr", screen)
    with StatusLine() as status:
        status("too early")
        clock[0] += 2.1
        status("shown")
        status("too soon")
        clock[0] += 0.3
        status("next")
    assert screen.getvalue() == "\r\033[Kshown\r\033[Knext\r\033[K" * terminal


def test_it_is_removed_before_something_else_is_printed_and_once(monkeypatch, clock):
    screen = Screen(True)
    monkeypatch.setattr(status_line.sys, "stderr", screen)
    with StatusLine() as status:
        status.clear()
        clock[0] += 3
        status("shown")
        status.clear()
    assert screen.getvalue() == "\r\033[Kshown\r\033[K"
