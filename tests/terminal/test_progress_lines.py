"""Progress as plain lines: an iteration that takes long says what it does."""

import time

from envs_for_tests import Chance

from fastppo.terminal import progress_lines


class Slow(Chance):
    """Its steps take a while."""

    def step(self, action):
        time.sleep(0.1)
        return super().step(action)


def test_an_iteration_that_takes_long_is_not_silent(trainer, monkeypatch, capsys):
    monkeypatch.setattr(progress_lines, "LINE_SECONDS", 1.0)
    ppo = trainer(Slow, num_envs=4, num_steps=8, norm_obs=False, progress="lines")
    ppo.learn(64)
    told = capsys.readouterr().out.splitlines()
    ends = [i for i, text in enumerate(told) if text.startswith("step ")]
    for begin, end in zip([-1, *ends], ends):
        assert told[begin + 1].startswith("collecting for ") and begin + 1 < end
    assert told[-1].startswith("step 64 100%")


def test_iterations_that_are_fast_say_nothing_else(trainer, capsys):
    ppo = trainer(Chance, progress="lines")
    ppo.learn(320)
    assert "since" not in capsys.readouterr().out
