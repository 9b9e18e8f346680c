"""Groups of runs: their labels, and the mean over runs with its interval."""

import numpy as np
import pytest
from run_folders import RETURN, write_run, write_runs
from scipy import stats

from fastppo.config import having
from fastppo.errors import ConfigError
from fastppo.reports.run_table import (
    LABELLED,
    group_runs,
    mean_curve,
    mean_ends_early,
    read_runs,
    run_labels,
)


def curve(steps, values):
    return np.array(steps, float), np.array(values, float)


# the mean

def test_runs_with_other_steps_are_interpolated():
    found = mean_curve([curve([0, 10, 20], [0, 10, 20]), curve([0, 20], [4, 4])])
    assert found.steps.tolist() == [0, 10, 20]
    assert found.mean.tolist() == [2, 7, 12]


def test_the_mean_is_only_where_every_run_has_data():
    found = mean_curve([curve([0, 10, 20, 30], [1, 1, 1, 1]), curve([10, 25], [3, 3])])
    assert found.steps.tolist() == [10, 20, 25]
    assert found.mean.tolist() == [2, 2, 2]


def test_runs_without_a_common_step_have_an_empty_mean():
    assert len(mean_curve([curve([0, 10], [1, 1]), curve([20, 30], [3, 3])]).mean) == 0


def test_the_interval_is_that_of_students_t():
    values = [1.0, 2.0, 4.0, 9.0, 5.0, 3.0, 8.0]
    found = mean_curve([curve([5], [value]) for value in values])
    low, high = stats.t.interval(0.95, 6, np.mean(values), stats.sem(values))
    assert (found.low[0], found.high[0]) == pytest.approx((low, high))


def test_the_interval_is_cut_at_the_lowest_and_the_highest_run():
    found = mean_curve([curve([5], [value]) for value in (500, 500, 320)])
    assert (found.low[0], found.high[0]) == (320, 500)


def test_the_interval_of_one_run_is_the_run():
    found = mean_curve([curve([1, 2], [3, 5])])
    assert found.low.tolist() == found.mean.tolist() == found.high.tolist() == [3, 5]


# labels

def labels_of(*folders):
    return run_labels([table for folder in folders for table in read_runs(str(folder))])


def test_seeds_of_one_environment_have_its_name(tmp_path):
    assert set(labels_of(write_runs(tmp_path / "a", [1.0, 2.0]))) == {"CartPole-v1"}


def test_settings_that_differ_are_the_label(tmp_path):
    slow = write_runs(tmp_path / "a", [1.0], settings={"lr": 1e-4, "hidden_sizes": [64, 64]})
    fast = write_runs(tmp_path / "b", [1.0], settings={"lr": 1e-3, "hidden_sizes": [64, 64],
                                                       "num_workers": 3, "device": "cuda"})
    assert labels_of(slow, fast) == ["lr=0.0001", "lr=0.001"]


def test_settings_are_compared_within_an_environment(tmp_path):
    places = [write_runs(tmp_path / "a", [1.0], settings={"lr": 1e-4}),
              write_runs(tmp_path / "b", [1.0], settings={"lr": 1e-3}),
              write_runs(tmp_path / "c", [1.0], env_name="Acrobot-v1", settings={"lr": 0.1})]
    assert labels_of(*places) == ["CartPole-v1, lr=0.0001", "CartPole-v1, lr=0.001", "Acrobot-v1"]


def test_the_address_of_a_function_is_no_difference(tmp_path):
    places = [write_runs(tmp_path / name, [1.0], settings={"loss": f"<function own at 0x7f{name}>"})
              for name in "ab"]
    assert labels_of(*places) == ["CartPole-v1"] * 2


def test_only_settings_that_change_what_is_learnt_are_in_labels():
    assert {"lr", "hidden_sizes", "num_envs", "env_kwargs", "gamma"} <= {*LABELLED}
    assert not {*LABELLED} & ({*having("resumable")} | {"seed", "preset", "env_name"})


def test_tables_without_a_config_are_not_taken_for_one_group(tmp_path):
    for name in "ab":
        folder = write_run(tmp_path / name, [1.0])
        (folder / "config.json").unlink()
        (folder / "summary.json").unlink()
    assert labels_of(tmp_path / "a", tmp_path / "b") == ["a", "b"]


# groups

def test_given_labels_join_the_runs_of_their_paths(tmp_path):
    places = [read_runs(str(write_runs(tmp_path / name, [1.0] * count)))
              for name, count in (("a", 2), ("b", 1), ("c", 3))]
    groups = group_runs(places, ("x", "y", "x"))
    assert [(group.label, len(group.tables)) for group in groups] == [("x", 5), ("y", 1)]
    with pytest.raises(ConfigError, match="2 labels were given for 3 paths") as caught:
        group_runs(places, ("x", "y"))
    assert "--labels=A,B,C" in caught.value.shell


def test_a_run_that_is_named_twice_counts_once(tmp_path):
    folder = write_runs(tmp_path / "a", [1.0, 2.0])
    places = [read_runs(str(path)) for path in (folder, folder / "seed0")]
    group, = group_runs(places, None)
    assert [table.seed for table in group.tables] == [0, 1]


def test_a_mean_that_ends_early_is_said(tmp_path):
    write_run(tmp_path / "runs" / "long", [1.0] * 20)
    write_run(tmp_path / "runs" / "short", [1.0] * 4)
    group, = group_runs([read_runs(str(tmp_path / "runs"))], None)
    text = mean_ends_early(group, RETURN)
    assert text.startswith("the mean of CartPole-v1 ends at 400 of 2,000 steps") and "short" in text
    assert mean_ends_early(group._replace(tables=group.tables[:1]), RETURN) == ""
