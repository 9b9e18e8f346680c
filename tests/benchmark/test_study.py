"""The study of bench/study.md: its runs, and that docs/results.md says what they have found."""

import json
import re
import sys

import numpy as np
import pytest
from source_tree import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import study  # noqa: E402
import study_peers  # noqa: E402
import study_tables  # noqa: E402

TASK = "CartPole-v1"


def marks_after(steps, returns, goal=float("inf"), total=200):
    """(the marks of a run that had these evaluations, the steps at which it went on)."""
    marks = study.Marks(total, goal)
    marks.evaluate = iter(returns).__next__
    marks.start()
    return marks, [step for step in steps if marks.reached(step)]


def test_a_run_is_evaluated_after_each_twentieth_of_its_steps_and_at_its_end():
    marks, _ = marks_after(range(0, 201, 4), range(20))
    assert marks.result(204)["steps"] == [*(-(-10 * i // 4) * 4 for i in range(1, 20)), 204]
    assert marks.returns == [*range(20)] and sorted(marks.seconds) == marks.seconds


def test_a_run_with_a_goal_ends_with_the_evaluation_that_reaches_it():
    marks, went_on = marks_after([10, 20], [1.0, 5.0], goal=4.0)
    assert went_on == [10] and marks.result(20)["steps"] == [10, 20]


def test_seconds_of_training_are_without_those_of_evaluations(monkeypatch):
    now = iter([100.0, 101.0, 900.0, 902.0, 999.0])
    monkeypatch.setattr(study, "perf_counter", lambda: next(now))
    marks, _ = marks_after([10], [1.0, 2.0])
    assert marks.result(20)["seconds"] == [1.0, 3.0]


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """A function: stores a run that ended with this return; a folder without other runs."""
    monkeypatch.setattr(study, "HERE", tmp_path)
    monkeypatch.setattr(study_tables, "HERE", tmp_path)

    def keep(name, seed, *returns, seconds=1.0, task=TASK):
        path = study.path_of(name, task, seed)
        path.parent.mkdir(exist_ok=True)
        last = slice(-len(returns), None)
        path.write_text(json.dumps({"name": name, "task": task, "seed": seed,
                                    "steps": [10, 20][last], "returns": returns,
                                    "seconds": [0.5, seconds][last], "training": 7.0}))
    return keep


@pytest.mark.parametrize("name, task, length", [
    ("none", "MountainCarContinuous-v0", {}),
    ("general_timed", TASK, {"total_steps": 64})])  # else as long as its preset says
def test_a_run_is_stored_with_its_settings_and_versions(kept, monkeypatch, tmp_path, name, task,
                                                        length):
    monkeypatch.setattr(study, "STEPS", {task: 64})
    monkeypatch.setattr(study, "episodes", lambda task: 2)
    assert study.run(name, task, 3, {"num_envs": 2, "num_steps": 32, "num_minibatches": 1}
                     | length)
    found = json.loads((tmp_path / name / f"{task}-3.json").read_text())
    assert found["steps"] == [64, 64] and len(found["returns"]) == 2 and "torch" in found["made"]
    assert "training" in found
    assert found["settings"]["num_steps"] == 32


def test_a_share_is_of_the_way_from_random_actions_to_the_presets_median(kept):
    kept("random", 0, 10.0)
    for seed, last in enumerate((100.0, 110.0, 400.0), 1):
        for other in (seed, seed + 3):
            kept("preset", other, 20.0, last)
        kept("general", seed, 20.0, last - 50)
    text = study_tables.shown(["table", "general", "preset", "--tasks", TASK, "--seeds", "1", "2",
                               "3"])
    assert "| CartPole-v1 | 10.0 | 110.0 | 60.0 (50.0) | 0.50 |" in text
    assert "P(better than fastppo with presets) 0.278" in text  # 2.5 of 9: areas end at 1.2


def test_means_stand_beside_published_ones_and_say_what_is_surely_lower(kept, monkeypatch):
    monkeypatch.setitem(study_tables.PUBLISHED, "paper", {"seeds": 5, "tasks": {
        TASK: [300.0, 2.0], "Acrobot-v1": [-100.0, None]}})
    for seed in (1, 2, 3):
        kept("general", seed, 0.0, 100.0 + seed)
        kept("general", seed, 0.0, -90.0 - seed, task="Acrobot-v1")
    text = study_tables.shown(["beside", "general", "paper", "sb3", "--seeds", "1", "2", "3",
                               "--tasks", TASK, "Acrobot-v1"])
    assert "| CartPole-v1 | 102.0 ± 1.0 (3) | 300.0 ± 2.0 (5) | – |" in text
    assert "| Acrobot-v1 | -92.0 ± 1.0 (3) | -100.0 (5) | – |" in text
    assert "fastppo has a higher mean than paper in 1 (0 by Welch's test, p < 0.05), a lower one" \
        " in 1 (1)" in text
    text = study_tables.shown(["beside", "general", "paper", "--training", "--seeds", "1", "2",
                               "--tasks", TASK])
    assert "| CartPole-v1 | 7.0 ± 0.0 (2) | 300.0 ± 2.0 (5) |" in text


def test_the_return_of_a_peer_is_that_of_gymnasiums_episodes():
    always_left = study_peers.evaluated(TASK, lambda obs: 0)
    assert 8 <= always_left <= 11


def test_a_script_of_cleanrl_is_judged_by_its_last_hundred_training_episodes(monkeypatch, tmp_path):
    (tmp_path / "cleanrl").mkdir()
    (tmp_path / "cleanrl" / "ppo.py").write_text(
        "for i in range(1, 201):\n    print(f'global_step={500 * i}, episodic_return=[{i}.0]')\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = study_peers.cleanrl_script(TASK, 1, study.Marks(100_000, float("inf")))
    assert found["steps"] == [*range(5_000, 100_001, 5_000)]
    assert found["returns"][:2] == [5.5, 10.5] and found["returns"][-1] == 150.5


def test_a_run_that_misses_its_goal_has_no_end_of_seconds(kept):
    for seed, last in enumerate((480.0, 490.0, 9.0), 1):
        kept("preset_timed", seed, 1.0, last, seconds=float(seed))
    text = study_tables.shown(["seconds", "preset_timed", "--tasks", TASK, "--seeds", "1", "2",
                               "3"])
    assert text.endswith("| CartPole-v1 475 | **2.0** (1.0 to inf; 3 seeds) |")
    text = study_tables.shown(["seconds", "preset_timed", "sb3_timed", "--tasks", TASK, "--seeds",
                               "2"])
    assert text.endswith("| CartPole-v1 475 | **2.0** (1 seed) | – |")


def test_a_picture_has_a_panel_for_each_task(kept, tmp_path):
    for seed in (1, 2, 3):
        kept("general", seed, 1.0, 2.0)
    path = study_tables.shown(["plot", "general", "--seeds", "1", "2", "--tasks", TASK, "--output",
                               str(tmp_path / "a.svg"), "--by_seconds"])
    assert "CartPole-v1" in (tmp_path / "a.svg").read_text() and path.endswith("a.svg")


def test_a_run_of_one_evaluation_is_drawn_by_seconds(kept, tmp_path):
    kept("preset_timed", 1, 480.0)
    assert study_tables.shown(["plot", "preset_timed", "--seeds", "1", "--tasks", TASK, "--output",
                               str(tmp_path / "a.svg"), "--by_seconds"]).endswith("a.svg")


def test_only_what_is_below_a_command_is_rewritten(kept):
    kept("preset_timed", 1, 1.0, 480.0)
    page = "a\n<!-- study_tables.py seconds preset_timed --tasks CartPole-v1 --seeds 1 -->\n{}\n" \
        "<!-- end -->\nb"
    once = study_tables.rewrite(page.format("old"))
    assert "old" not in once and "480" not in once and "**1.0**" in once
    assert study_tables.rewrite(once) == once and once.startswith("a\n") and once.endswith("\nb")


def test_the_page_says_what_is_stored():
    def without_intervals(text):  # which depend on SciPy's version
        return re.sub(r"\(0\.\d+ to 0\.\d+\)", "", text)

    text = study_tables.PAGE.read_text(encoding="utf-8")
    assert study_tables.BLOCK.search(text)
    assert without_intervals(study_tables.rewrite(text)) == without_intervals(text)


def test_every_stored_run_of_a_name_has_all_its_evaluations():
    for path in study.HERE.glob("*/*.json"):
        run = json.loads(path.read_text())
        assert path == study.path_of(run["name"], run["task"], run["seed"])
        assert np.isfinite(run["returns"]).all()
        assert len(run["returns"]) == (1 if run["name"] == "random" else len(run["steps"]))
