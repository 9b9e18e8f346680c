"""Progress as plain lines: an iteration that takes long says what it does."""

import time

from envs_for_tests import Chance

from fastppo.display import progress_lines


class Slow(Chance):
    """Its steps take a while."""

    def step(self, action):
        time.sleep(0.1)
        return super().step(action)


def test_a_first_rollout_that_takes_long_is_not_silent(trainer, monkeypatch, capsys):
    monkeypatch.setattr(progress_lines, "LINE_SECONDS", 1.0)
    ppo = trainer(Slow, num_envs=4, num_steps=8, norm_obs=False, progress="lines")
    ppo.learn(32)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("collecting for ") and first.endswith(" s")
    assert [text for text in others if text.startswith("step 32 100%")]


def test_iterations_that_are_fast_say_nothing_else(trainer, capsys):
    ppo = trainer(Chance, progress="lines")
    ppo.learn(320)
    assert "since" not in capsys.readouterr().out
