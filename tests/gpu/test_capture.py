"""A capture that fails, and what it leaves for others in the process; here with the calls alone."""

import gc
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace

import pytest
import torch

from fastppo.errors import Error
from fastppo.gpu import graphs


@pytest.fixture
def calls(monkeypatch):
    """The calls of a torch that has a GPU; a step that fails in a capture does so as there."""
    found = []

    @contextmanager
    def graph(*args, **settings):
        found.append("capture")
        try:
            yield
        except Exception as error:
            raise RuntimeError("operation failed due to a previous error") from error

    def stream():
        return SimpleNamespace(wait_stream=lambda other: None)
    made = SimpleNamespace(replay=lambda: found.append("replay"))
    for name, fake in (("CUDAGraph", lambda: made), ("Stream", stream), ("current_stream", stream),
                       ("graph", graph), ("stream", nullcontext),
                       ("get_sync_debug_mode", lambda: 0), ("set_sync_debug_mode", found.append),
                       ("set_stream", lambda own: found.append("own"))):
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(graphs, "failures", [])
    return found


def step_failing_at(calls, number):
    """A step that raises the `number`-th time."""
    def step():
        calls.append("step")
        if calls.count("step") == number:
            raise ValueError("a step\nthat waits")
    return step


def test_a_step_runs_thrice_before_it_is_captured_and_the_third_time_may_not_wait(calls):
    graphs.captured(step_failing_at(calls, 0), lambda: calls.append("undone"))()
    assert calls == ["step", "undone"] * 2 + [
        "error", "step", "undone", 0, "capture", "step", 0, "own", "replay"]


@pytest.mark.parametrize("number", [0, 2, 4])
def test_no_garbage_is_collected_within_a_capture_but_again_after_it(calls, number):
    fails, enabled = step_failing_at(calls, number), []

    def step():
        enabled.append(gc.isenabled())
        fails()
    with suppress(Error):
        graphs.captured(step)
    assert enabled == [False] * (number or 4) and gc.isenabled()


def test_after_a_failed_capture_no_other_is_tried_and_its_cause_is_named(calls):
    with pytest.raises(Error, match="^ValueError: a step$"):
        graphs.captured(step_failing_at(calls, 4))
    assert calls[-1] == "own"
    calls.clear()
    for _ in range(2):
        with pytest.raises(Error, match="earlier capture .* has failed: ValueError: a step$"):
            graphs.captured(step_failing_at(calls, 0))
    assert calls == []


def test_a_step_that_fails_before_the_capture_leaves_others_their_graphs(calls):
    with pytest.raises(Error, match="^ValueError: a step$"):
        graphs.captured(step_failing_at(calls, 1))
    graphs.captured(step_failing_at(calls, 0))
    assert calls.count("capture") == 1
