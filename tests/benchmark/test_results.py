"""The tables of docs/results.md: made of what is kept by bench/results.py, and saying no more."""

import sys

import pytest
from source_tree import ROOT

sys.path.insert(0, str(ROOT / "bench"))
import results  # noqa: E402
from learning import GOALS, PAGE, PLAIN, goals_of, options, within  # noqa: E402

GOAL = results.Goal("Hill-v0", 1000, 10.0)


def result(mean, seed=1, system="preset", env="Hill-v0", budget=1000, steps=960):
    return {"system": system, "env": env, "budget": budget, "seed": seed, "steps": steps,
            "seconds": 2.0, "mean": mean, "ci95": 1.0}


def test_the_interval_is_students_of_the_mean_over_seeds():
    assert results.interval([1.0, 2.0, 3.0]) == pytest.approx(4.30 / 3**0.5)
    assert results.interval([1.0, 3.0]) > results.interval([1.0, 3.0] * 40)


@pytest.mark.parametrize("means, met", [([0, 10, 99], "yes"), ([0, 9.99, 99], "**no**"), ([], "–")])
def test_a_goal_is_met_by_the_median_not_the_mean(means, met):
    table = results.with_presets([result(mean, i) for i, mean in enumerate(means)], [GOAL])
    assert table.splitlines()[-1].endswith(f"| 10 in 1,000 | {met} |")


def test_a_row_holds_only_results_of_its_system_environment_and_steps():
    others = [result(1, system="none"), result(2, env="Dale-v0"), result(3, budget=999)]
    assert results.found([*others, result(4)], "preset", GOAL) == [result(4)]


@pytest.mark.parametrize("own, other, verdict", [(5, 4, "yes"), (4, 5, "**no**"), (4, None, "–")])
def test_the_defaults_stand_beside_those_of_the_other_system(own, other, verdict):
    kept = [result(own, system="none")] + [result(other, system="sb3")] * (other is not None)
    row = results.without_presets(kept, [GOAL._replace(wanted=None)]).splitlines()[-1]
    assert row.endswith(f"| {verdict} |") and f"**{own:.1f}**" in row


@pytest.mark.parametrize("own, other, verdict", [
    ([1, 9], [4, 8], "no, within noise"), ([1, 2], [90, 91], "**no**"), ([1], [2], "**no**")])
def test_a_lower_median_is_a_no_that_says_whether_the_seeds_tell_them_apart(own, other, verdict):
    kept = [result(mean, seed, system) for system, means in (("none", own), ("sb3", other))
            for seed, mean in enumerate(means)]
    assert results.without_presets(kept, [GOAL]).endswith(f"| {verdict} |")


def test_a_result_takes_the_place_of_an_older_one_of_its_key(tmp_path):
    path = tmp_path / "kept.json"
    for one in result(1), result(2, seed=2), result(3):
        results.keep(path, one, "a machine")
    kept = results.load(path)
    assert kept == {"made": {"preset": "a machine"}, "results": [result(3), result(2, seed=2)]}


def test_only_what_is_between_the_marks_is_rewritten(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"above\n{results.BEGIN}\nold\n{results.END}\nbelow\n")
    for _ in range(2):
        results.rewrite(page, "new")
    assert page.read_text() == f"above\n{results.BEGIN}\n\nnew\n\n{results.END}\nbelow\n"


def test_the_page_says_what_is_kept():
    text = results.section(results.load(ROOT / "bench" / "learning.json"), GOALS, PLAIN)
    assert f"{results.BEGIN}\n\n{text}\n\n{results.END}" in PAGE.read_text(encoding="utf-8")


def test_a_run_takes_no_more_steps_than_it_is_allowed():
    sizes = {"preset": "none", "num_envs": 4, "num_steps": 8, "num_minibatches": 1}
    assert within("CartPole-v1", 100, sizes) == 96


def test_an_environment_without_a_goal_needs_its_steps(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["learning.py", "--env", "Hill-v0"])
    with pytest.raises(SystemExit, match="--steps="):
        goals_of(options())
    monkeypatch.setattr(sys, "argv", ["learning.py", "--env", "Hill-v0", "--steps", "9"])
    assert goals_of(options()) == [results.Goal("Hill-v0", 9, None)]
