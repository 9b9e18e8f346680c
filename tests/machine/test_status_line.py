"""A line that says how far something slow is, on a terminal and in a file."""

import io
import logging
import sys
import time

from fastppo.machine import limits
from fastppo.machine.stderr import note, printed_warnings


def stderr(monkeypatch, terminal):
    """A stream in the place of stderr, which is a terminal or not."""
    monkeypatch.setattr(limits, "is_terminal", lambda stream: terminal)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    return stream


def shown(monkeypatch, terminal, seconds):
    """What a StatusLine writes if it is called at these seconds."""
    clock, stream = [0.0], stderr(monkeypatch, terminal)
    monkeypatch.setattr(stderr.time, "monotonic", lambda: clock[0])
    with stderr.StatusLine() as status:
        for clock[0] in seconds:
            status(f"at {clock[0]}")
    return stream.getvalue()


def test_on_a_terminal_the_line_is_replaced_and_removed(monkeypatch):
    assert shown(monkeypatch, True, [1.0, 2.0, 2.1, 2.3]) == \
        "\r\033[Kat 2.0\r\033[Kat 2.3\r\033[K"


def test_elsewhere_a_line_comes_every_ten_seconds(monkeypatch):
    assert shown(monkeypatch, False, [3.0, 10.0, 11.0, 19.9, 20.0]) == "at 10.0\nat 20.0\n"


def test_what_is_fast_shows_nothing(monkeypatch):
    assert shown(monkeypatch, True, [0.5, 1.9]) == ""


def test_a_warning_takes_the_place_of_the_line(monkeypatch):
    stream = stderr(monkeypatch, terminal=True)
    stderr.show_status("loading x")
    note("it is old", "warning")
    assert stream.getvalue() == "\r\033[Kloading x\r\033[Kwarning: it is old\n"


def test_the_setting_that_a_warning_proposes_is_a_flag(monkeypatch, capsys):
    monkeypatch.setattr(limits, "is_terminal", lambda stream: False)
    with printed_warnings():
        logging.getLogger("fastppo").warning("lr=1 is odd\n  fix: lr=0.001")
    assert capsys.readouterr().err == "warning: lr=1 is odd\n  fix: --lr=0.001\n"


def test_a_line_is_cut_at_the_width_of_the_terminal(monkeypatch):
    stream = stderr(monkeypatch, terminal=True)
    monkeypatch.setenv("COLUMNS", "20")
    stderr.show_status("loading " + "x" * 30)
    assert stream.getvalue() == "\r\033[Kloading " + "x" * 11


def test_a_text_is_shown_at_once_and_with_its_seconds_until_the_block_ends(monkeypatch):
    stream = stderr(monkeypatch, terminal=True)
    with stderr.status_while("starting"):
        assert stream.getvalue() == "\r\033[Kstarting"
        deadline = time.monotonic() + 20
        while "starting, " not in stream.getvalue() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert "\r\033[Kstarting, 2 s" in stream.getvalue() or "starting, 3 s" in stream.getvalue()
    assert stream.getvalue().endswith("\r\033[K")
