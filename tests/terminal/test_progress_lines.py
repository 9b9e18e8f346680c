"""Progress as plain lines: an iteration that takes long says what it does."""

import re
import threading
import time

import pytest
from envs_for_tests import Chance
from optional_packages import NEEDS_EXTENSION

from fastppo.terminal import progress_lines, snapshot
from fastppo.terminal.snapshot import CurrentPart


class Slow(Chance):
    """Its steps take a while."""

    def step(self, action):
        time.sleep(0.1)
        return super().step(action)


def test_an_iteration_that_takes_long_is_not_silent(trainer, monkeypatch, capsys):
    monkeypatch.setattr(progress_lines, "LINE_SECONDS", 1.0)
    monkeypatch.setattr(snapshot, "SHOWN_AFTER", 0.5)
    monkeypatch.setattr(snapshot, "LONG_ROLLOUT", 1.0)
    monkeypatch.setattr(snapshot, "MEASURED_AFTER", 0.5)
    ppo = trainer(Slow, num_envs=4, num_steps=20, norm_obs=False, progress="lines")
    ppo.learn(160)
    told = capsys.readouterr().out.splitlines()
    hints = [text for text in told if text.startswith("hint ")]
    assert len(hints) == 1 and "--num_steps=16: " in hints[0]
    told = [text for text in told if text not in hints]
    first, last = (i for i, text in enumerate(told) if text.startswith("step "))
    for part in told[:first], told[first + 1:last]:
        assert len(part) > 2 and all(re.fullmatch(
            r"collecting (\d+ s|\d+ of 80 steps, [\d.]+ steps/s, \d+ s left)", text)
            for text in part)
        assert float(re.search(r"([\d.]+) steps/s", part[-1])[1]) == pytest.approx(10, rel=0.5)
    assert told[last].startswith("step 160 100%") and told[last:] == told[-1:]


@pytest.mark.full
@pytest.mark.parametrize("acting", ["local", "central"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=NEEDS_EXTENSION)])
def test_the_steps_of_a_rollout_are_counted_wherever_they_are_taken(trainer, monkeypatch, acting,
                                                                    workers):
    monkeypatch.setattr(snapshot, "SHOWN_AFTER", 0.0)
    ppo = trainer(Slow, num_envs=4, num_steps=8, acting=acting, num_workers=workers)
    part, counts = CurrentPart(ppo), {}
    collecting = threading.Thread(target=ppo.collect)
    collecting.start()
    while collecting.is_alive():
        found = re.match(r"(warming up|collecting) (\d+) of 32 steps, ", part.text())
        if found:
            counts.setdefault(found[1], []).append(int(found[2]))
        time.sleep(0.02)
    assert [*counts] == ["warming up", "collecting"]
    for seen in counts.values():
        assert sorted(seen) == seen and len({*seen} - {0, 32}) > 2
        assert {*seen} <= {*range(0, 33, 2)}  # a worker may be a step ahead of the other


def test_the_last_line_is_printed_when_learn_returns(trainer, capsys):
    ppo = trainer(Chance, progress="lines")
    ppo.learn(320, callbacks=lambda ppo, stats: ppo.step < 96)
    told = capsys.readouterr().out.splitlines()
    assert told[-1].startswith("step  96  30%")
    ppo.close()
    assert capsys.readouterr().out == ""


def test_iterations_that_are_fast_say_nothing_else(trainer, capsys):
    ppo = trainer(Chance, progress="lines")
    ppo.learn(320)
    assert "since" not in capsys.readouterr().out
