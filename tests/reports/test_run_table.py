"""The tables of runs: what is read, what is left out, and which files are none."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from run_folders import KL, RETURN, write_run, write_runs

from fastppo.errors import ConfigError
from fastppo.reports.run_table import read_runs, read_table


def only(text):
    table, = read_runs(str(text))
    return table


def test_a_run_is_read_with_its_environment_seed_and_columns(tmp_path):
    table = only(write_run(tmp_path / "run", [None, 2.5], env_name="Acrobot-v1", seed=7))
    assert (table.env_name, table.seed, table.file.parent) == ("Acrobot-v1", 7, tmp_path / "run")
    assert table.columns["global_step"].tolist() == [100, 200]
    assert np.isnan(table.columns[RETURN][0]) and table.columns[RETURN][1] == 2.5


def test_a_curve_has_the_rows_with_a_finite_value(tmp_path):
    table = only(write_run(tmp_path / "run", [None, 2.0, float("inf"), 4.0]))
    steps, values = table.curve(RETURN)
    assert steps.tolist() == [200, 400] and values.tolist() == [2, 4]


@pytest.mark.parametrize("half", ["300,9", "300,9,9,9,9,0.0", "\0\0\0", "x,1,1,1,1,1\r\n"])
def test_a_half_row_is_left_out(tmp_path, half):
    file = write_run(tmp_path / "run", [1.0, 2.0]) / "metrics.csv"
    file.write_text(file.read_text() + half)
    assert only(file.parent).columns["global_step"].tolist() == [100, 200]


def test_a_file_of_another_program_is_a_table_if_it_has_steps(tmp_path):
    (tmp_path / "other.csv").write_text("global_step,reward,name\n10.0,1,a\n20.0,2,b\n")
    table = only(tmp_path / "other.csv")
    assert (table.title, table.seed, table.settings) == ("other", None, {})
    assert table.curve("reward")[0].tolist() == [10, 20]


def test_an_older_table_in_a_folder_is_not_taken_for_the_folders_run(tmp_path):
    folder = write_run(tmp_path / "run", [1.0], evaluation=5.0)
    (folder / "metrics.csv").rename(folder / "metrics-1.csv")
    table = read_table(folder / "metrics-1.csv")
    assert table.summary == {} and table.env_name == ""


def test_a_folder_of_runs_stands_for_each_of_them_once(tmp_path):
    folder = write_runs(tmp_path / "runs", [1.0, 2.0, 3.0])
    (folder / "latest").symlink_to("seed1", target_is_directory=True)
    (folder / "notes").mkdir()
    assert [table.seed for table in read_runs(str(folder))] == [0, 1, 2]
    assert only(folder / "latest").seed == 1


@pytest.mark.parametrize("text", ["seed0,seed2", "seed[02]", "seed0, seed2, seed0", "seed?,seed1"])
def test_runs_may_be_listed_or_given_by_a_pattern(tmp_path, monkeypatch, text):
    write_runs(tmp_path / "runs", [1.0, 2.0, 3.0])
    monkeypatch.chdir(tmp_path / "runs")
    seeds = [table.seed for table in read_runs(text)]
    assert seeds == ([0, 1, 2] if "?" in text else [0, 2])


def test_a_folder_may_have_a_name_that_looks_like_a_list_or_a_pattern(tmp_path):
    assert only(write_run(tmp_path / "lr=[1,2]*", [1.0], seed=5)).seed == 5


def test_of_several_runs_those_without_a_row_are_left_out_with_a_note(tmp_path, capsys):
    folder = write_runs(tmp_path / "runs", [1.0])
    write_run(folder / "stopped", [])
    assert only(folder).seed == 0
    assert "stopped/metrics.csv has no complete row and is left out" in capsys.readouterr().err


def test_what_is_no_run_is_left_out_of_a_pattern_with_a_note(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_run(Path("fast"), [1.0], seed=5)
    Path("far").mkdir()
    Path("f.txt").touch()
    assert only("f*").seed == 5
    assert capsys.readouterr().err == "note: far is no run and is left out\n"
    with pytest.raises(ConfigError, match="neither far nor a folder in it"):
        read_runs("far, fast")
    with pytest.raises(ConfigError, match="names no run"):
        read_runs("fa[r]")


def test_a_run_that_failed_in_its_first_iteration_is_said_to_have(
        tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs/good"), [1.0])
    write_run(Path("runs/latest"), [])
    with pytest.raises(ConfigError, match="failed or been stopped in the first iter") as caught:
        read_runs("runs/latest")
    assert "such as runs/latest, or" in caught.value.fix


@pytest.mark.parametrize("name, data, says", [
    ("metrics.csv", b"", "no column global_step"),
    ("metrics.csv", b"a,b\n1,2\n", "no column global_step"),
    ("metrics.csv", b"global_step,x\n", "no complete row"),
    ("metrics.csv", b"\xff\xfe\x00\n", "another kind of file"),
    ("metrics.csv", b"global_step,x\n1," + b"9" * 200_000 + b"\n", "another kind of file"),
    ("metrics.csv", b"global_step,x\n5,1\n9,2\n5,3\n", "rows of several runs"),
    ("config.json", b"{", "cannot read"),
    ("config.json", b"[1]", "no JSON object"),
    ("summary.json", b"\xff", "cannot read"),
])
def test_a_broken_file_is_named(tmp_path, name, data, says):
    folder = write_run(tmp_path / "run", [1.0])
    (folder / name).write_bytes(data)
    with pytest.raises(ConfigError, match=says) as caught:
        read_runs(str(folder))
    assert str(folder / name) in str(caught.value) and caught.value.fix


@pytest.mark.parametrize("text, says", [
    ("nothing", "no folder nothing"),
    ("empty", "neither empty nor a folder in it has a file metrics.csv"),
    ("no*thing", "nothing fits the pattern"),
    (", ", "names no run"),
    ("dangling", "no folder dangling"),
])
def test_a_path_without_a_run_is_an_error(tmp_path, monkeypatch, text, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to("gone")
    with pytest.raises(ConfigError, match=says):
        read_runs(text)


def test_an_unknown_metric_and_one_without_values_are_errors(tmp_path):
    table = only(write_run(tmp_path / "run", [None, None]))
    with pytest.raises(ConfigError, match="episodic_return has no finite value in any row"):
        table.curve(RETURN)
    with pytest.raises(ConfigError, match='has no metric "approx_lk"') as caught:
        table.curve("approx_lk")
    assert KL in caught.value.fix


def test_reading_and_drawing_runs_needs_no_torch():
    code = ("import sys, fastppo.reports.curves, fastppo.reports.density, fastppo.reports.run_table"
            ", fastppo.reports.comparison, fastppo.reports.comparison;"
            "print([m for m in ('torch', 'scipy', 'matplotlib.pyplot') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
