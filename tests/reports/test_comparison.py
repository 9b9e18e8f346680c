"""Two groups of runs compared: scores, statistics, intervals, and the text."""


import numpy as np
import pytest
from run_folders import RETURN, write_run, write_runs
from scipy import stats

from fastppo.errors import ConfigError
from fastppo.reports.comparison import (
    EVALUATION_SCORE,
    bootstrapped,
    compare_runs,
    comparison_text,
    improvement_of,
    interquartile_mean,
    last_tenth,
)
from fastppo.reports.run_table import read_runs
from fastppo.settings.values import digits_of, return_text


def runs(folder, scores, **others):
    return read_runs(str(write_runs(folder, scores, **others)))


def compared(tmp_path, a, b):
    return compare_runs(runs(tmp_path / "a", a), runs(tmp_path / "b", b))


# statistics

def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end():
    assert interquartile_mean(np.array([-1000.0, 1, 2, 3, 4, 5, 6, 900])) == 3.5
    assert interquartile_mean(np.array([0.0, 1, 5])) == 2  # no whole run is a quarter of three


def test_the_probability_of_improvement_is_mann_whitneys():
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, 6, 9).astype(float), rng.integers(0, 6, 7).astype(float)
    assert improvement_of(a, b) == pytest.approx(stats.mannwhitneyu(a, b).statistic / 63)
    assert improvement_of(a, b) + improvement_of(b, a) == pytest.approx(1)
    assert improvement_of(np.array([1.0, 2]), np.array([2.0, 0])) == 0.625  # a tie counts half


def test_resamples_are_compared_each_with_its_own():
    a, b = np.array([[1.0, 1], [5, 5]]), np.array([[3.0, 3, 3], [3, 9, 9]])
    assert improvement_of(a, b, axis=-1) == pytest.approx([0, 1 / 3])
    assert improvement_of(a.T, b.T, axis=0) == pytest.approx([0, 1 / 3])


def test_an_interval_holds_the_true_value_about_as_often_as_it_says():
    rng = np.random.default_rng(2)
    held = 0
    for _ in range(30):
        found = bootstrapped((rng.normal(size=40),), interquartile_mean)
        assert found.low <= found.value <= found.high
        held += found.low <= 0 <= found.high
    assert 24 <= held <= 30


def test_a_group_of_one_score_counts_once():
    found = bootstrapped((np.zeros(1), np.ones(3)), lambda *parts, axis=-1:
                         np.concatenate(parts, axis).mean(axis))
    assert found.value == 0.75


def test_the_same_runs_have_the_same_intervals():
    scores = np.arange(6.0) ** 2
    first, second = (bootstrapped((scores,), interquartile_mean) for _ in range(2))
    assert first == second and first.low < first.high


# scores

def test_a_score_is_the_evaluation_after_training(tmp_path):
    found = compared(tmp_path, [1.0, 2.0, 6.0], [3.0, 4.0])
    assert found.score == EVALUATION_SCORE and found.environments == ["CartPole-v1"]
    assert (found.a.runs, found.b.runs) == (3, 2)
    assert (found.a.iqm.value, found.a.mean, found.a.median) == (3, 3, 2)
    assert found.a.scores == [1, 2, 6]
    assert found.improvement.value == pytest.approx(1 / 3)


def test_without_evaluations_it_is_the_last_tenth_of_the_returns(tmp_path):
    for side in "ab":
        for seed in range(2):
            write_run(tmp_path / side / f"{seed}", [None, *range(19), 100.0 + seed])
    found = compare_runs(*(read_runs(str(tmp_path / side)) for side in "ab"))
    assert found.score == "charts/episodic_return, mean of the last tenth"
    assert found.a.scores == [(18 + 100) / 2, (18 + 101) / 2]


@pytest.mark.parametrize("count, wanted", [(1, 0.0), (4, 3.0), (10, 9.0), (30, 28.0)])
def test_the_last_tenth_is_one_value_at_least(count, wanted):
    assert last_tenth(np.arange(count, dtype=float)) == wanted


def test_scores_of_two_kinds_need_a_metric(tmp_path):
    a = runs(tmp_path / "a", [1.0, 2.0])
    b = [*runs(tmp_path / "b", [5.0]), *read_runs(str(write_run(tmp_path / "c", [6.0])))]
    with pytest.raises(ConfigError, match="1 of 4 runs have no evaluation") as caught:
        compare_runs(a, b)
    assert f"--metric={RETURN}" in caught.value.shell
    assert compare_runs(a, b, RETURN).b.scores == [5, 6]


@pytest.mark.parametrize("evaluation", [None, [], {}, {"mean": None}, {"mean": "many"}])
def test_a_damaged_summary_is_one_without_an_evaluation(tmp_path, evaluation):
    a, b = ([table._replace(summary={"evaluation": evaluation})
             for table in runs(tmp_path / name, [1.0, 2.0])] for name in "ab")
    assert compare_runs(a, b).score.startswith("charts/episodic_return")


def test_too_few_runs_and_scores_that_are_no_numbers_are_errors(tmp_path):
    one, two = runs(tmp_path / "a", [1.0]), runs(tmp_path / "b", [1.0, float("nan")])
    with pytest.raises(ConfigError, match="A has 1 run, .* needs 2 or more"):
        compare_runs(one, two)
    with pytest.raises(ConfigError, match="B has 1 run"):
        compare_runs(two, one)
    with pytest.raises(ConfigError, match="the score of .* is nan"):
        compare_runs(two, runs(tmp_path / "c", [1.0, 2.0]))


def test_a_run_is_in_one_of_the_groups(tmp_path):
    a, b = runs(tmp_path / "a", [1.0, 2.0]), runs(tmp_path / "b", [1.0, 2.0])
    with pytest.raises(ConfigError, match=f"{a[1].file} is in both groups"):
        compare_runs(a, [*b, a[1]])
    first, second, third, fourth = (
        table._replace(file=tmp_path / f"{i}.csv") for i, table in enumerate([*a, *b]))
    assert compare_runs([first, second], [third, fourth]).a.runs == 2  # files of one folder
    with pytest.raises(ConfigError, match="1.csv is in both groups"):
        compare_runs([first, second], [second, third])


# the text

def test_the_table_has_a_row_for_each_side(tmp_path):
    text = comparison_text(compared(tmp_path, [500.0] * 5, [450.0, 460, 470, 480, 490]),
                           ("runs/a", "runs/b"))
    rows = [line.split() for line in text.splitlines() if line.startswith(("A ", "B "))]
    assert rows[0][:4] == ["A", "runs/a", "5", "500.0"]
    assert rows[1][:4] == ["B", "runs/b", "5", "470.0"]
    assert rows[1][-2:] == ["470.0", "470.0"]
    assert "P(A > B) = 1.00, 95 % interval 1.00 to 1.00" in text
    assert text.endswith("the scores of A are higher than B's.")


def test_the_text_says_what_the_runs_do_not_show(tmp_path):
    names = "a", "b"
    alike = compared(tmp_path / "1", [1.0, 2, 3, 4, 5], [1.0, 2, 3, 4, 5])
    assert "do not show which" in comparison_text(alike, names)
    few = compared(tmp_path / "2", [1.0, 2, 3, 4], [9.0] * 5)
    assert "warning: 4 runs on a side are few" in comparison_text(few, names)
    lower = compared(tmp_path / "3", [1.0, 2, 3, 4, 5], [9.0] * 5)
    assert "scores of B are higher than A's" in comparison_text(lower, names)


def test_the_numbers_of_several_environments_are_means_over_them(tmp_path):
    def side(name, *scores):
        return [table for i, (env_name, part) in enumerate(scores)
                for table in runs(tmp_path / name / f"{i}", part, env_name=env_name)]
    a = side("a", ("CartPole-v1", [200.0, 201, 202, 203]), ("Acrobot-v1", [-60.0]))
    b = side("b", ("CartPole-v1", [100.0]), ("Acrobot-v1", [-90.0, -80, -80, -70]))
    found = compare_runs(a, b)
    assert found.improvement.value == 1 and found.environments == ["CartPole-v1", "Acrobot-v1"]
    cart, bot = 100 + np.array([1.0, 2]).mean(), np.array([10.0, 10]).mean()
    assert found.a.iqm.value == pytest.approx((cart / 103 + 1) / 2)
    assert found.b.iqm.value == pytest.approx((0 + bot / 30) / 2)
    assert found.a.scores == [200, 201, 202, 203, -60]
    assert found.as_dict()["warnings"] == [
        "1 runs on a side are few, and the intervals too narrow; use 5 or more on each side"]
    text = comparison_text(found, ("a", "b"))
    assert "means over environments" in " ".join(text.split()) and "P(A > B) = 1.00" in text
    with pytest.raises(ConfigError, match="Acrobot-v1 is in one group only"):
        compare_runs(a, b[:1] + runs(tmp_path / "c", [1.0]))


def test_lines_are_at_most_80_wide(tmp_path):
    found = compared(tmp_path, [-123456.7, 1.0, 2.5], [0.001, 5e6, 7.0])
    names = "runs/" + "long" * 30, "b," * 60
    lines = comparison_text(found, names).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("..." in line for line in lines) == 2


@pytest.mark.parametrize("scale, digits", [(0, 0), (0.0123, 5), (1, 3), (9.5, 3), (500, 1),
                                           (12_345, 0), (1e-12, 6)])
def test_numbers_have_four_digits(scale, digits):
    assert digits_of(scale) == digits


@pytest.mark.parametrize("value, scale, text", [
    (148.31, None, "148.3"), (-12345.67, None, "-12345.7"), (9.5, None, "9.50"),
    (0.9, None, "0.900"), (0.95, None, "0.950"), (-0.00123, None, "-0.00123"), (0.0, None, "0.0"),
    (-0.0, None, "0.0"), (-0.02, 200.0, "0.0"), (0.02, 0.9, "0.020"), (np.nan, None, "nan"),
    (np.inf, None, "inf")])
def test_a_return_has_three_digits_and_zero_no_sign(value, scale, text):
    assert return_text(value, scale) == text
