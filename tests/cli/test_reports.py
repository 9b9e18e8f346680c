"""The verbs plot and compare: options, output, errors, and the page about them."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from run_folders import RETURN, write_run, write_runs

from fastppo.cli import compare, plot, reproduce
from fastppo.cli.command_line import words_and_options
from fastppo.errors import ConfigError

PAGE = Path(__file__).parents[2] / "docs" / "reports.md"


@pytest.fixture(autouse=True)
def runs(tmp_path):
    """Every test has runs in its working directory."""
    write_runs(tmp_path / "a", [1.0, 2.0, 3.0])
    write_runs(tmp_path / "b", [4.0, 5.0], settings={"lr": 1e-3})


# words

@pytest.mark.parametrize("argv, options", [
    (["a", "b/c", "--labels", "x", "y"], {"labels": ("x", "y")}),
    (["--labels=x,y", "a", "b/c"], {"labels": ("x", "y")}),
    (["a", "--kind", "density", "b/c"], {"kind": "density"}),
    (["--output=c.svg", "a", "--kind=curve", "b/c"], {"output": "c.svg"})])
def test_words_that_are_no_values_of_options_are_paths(argv, options):
    assert words_and_options(argv, plot.Plot) == (["a", "b/c"], plot.Plot(**options))


def test_a_switch_takes_no_word_but_true_and_false():
    for argv in (["--json", "a", "b"], ["a", "b", "--json=True"], ["a", "--json", "true", "b"]):
        assert words_and_options(argv, compare.Compare) == (["a", "b"], compare.Compare(json=True))


def test_a_verb_of_one_file_refuses_a_second():
    with pytest.raises(ConfigError, match="takes RUN .* not a b\n  fix: .* reproduce --help"):
        words_and_options(["a", "b"], reproduce.Reproduce)


# plot

def test_plot_prints_the_path_of_its_picture(command):
    assert command("plot", "a", "b") == (0, "picture   plot.png\n", "")
    assert Path("plot.png").stat().st_size > 10_000
    write_run(Path("c"), [1.0], episodes=[(50, 9.0, 9), (90, 11.0, 11)])
    assert command("plot", "c", "--kind=density", "--output=d.svg") == (0, "picture   d.svg\n", "")


def test_plot_replaces_an_older_picture(command):
    Path("plot.png").touch()
    assert command("plot", "a") == (0, "picture   plot.png\n", "")
    assert Path("plot.png").stat().st_size


def test_plot_writes_through_no_link_and_no_device(command):
    Path("to.png").touch()
    Path("link.png").symlink_to("to.png")
    assert command("plot", "a", "--output=link.png")[0] == 0
    assert Path("link.png").stat().st_size > 10_000 and not Path("to.png").stat().st_size
    code, out, err = command("plot", "a", "--output=/dev/null")
    assert (code, out) == (2, "") and "is a device or pipe" in err
    assert not Path(os.devnull).is_file()


def test_a_list_of_runs_may_be_longer_than_the_name_of_a_file(command):
    assert command("plot", ",".join(["a"] * 200)) == (0, "picture   plot.png\n", "")


def test_plot_prints_a_path_that_can_be_opened(command, monkeypatch, tmp_path):
    monkeypatch.chdir("a")
    for path in ("../b/seed0/p.svg", f"{tmp_path}/a/seed0/p.svg"):
        assert command("plot", ".", f"--output={path}")[1] == f"picture   {path}\n"
        assert Path(path).exists()


@pytest.mark.parametrize("words", [
    ["a", "--metric=foo"], ["a", "--output=p.jpeg"], ["a", "--labels=a,b"], ["nope"]])
def test_plot_refuses_what_is_wrong_before_matplotlib_is_imported(words):
    code = ("import sys; from fastppo.cli.main import main\ntry: main(['plot', *sys.argv[1:]])\n"
            "except SystemExit as end: print(end.code, 'matplotlib' in sys.modules)")
    out = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True,
                         check=True).stdout
    assert out == "2 False\n"


def test_a_pattern_names_the_runs_that_it_fits(command):
    write_run(Path("runs/CartPole-v1__fast__1__20260101-000000"), [1.0])
    assert command("plot", "runs/*__fast__*")[0] == 0


def test_a_pattern_leaves_pictures_out(command):
    Path("a/seeds.png").touch()
    assert command("plot", "a/*")[0] == 0


def test_plot_says_where_a_mean_ends_early(command):
    write_run(Path("a/longer"), [1.0] * 30)
    code, out, err = command("plot", "a", "--output=c.svg")
    assert (code, out) == (0, "picture   c.svg\n")
    assert err.startswith("note: the mean of CartPole-v1 ends at 200 of 3,000 steps")


@pytest.mark.parametrize("argv, says", [
    ([], "fix: python main.py plot --help"),
    (["--metric=charts/SPS"], "plot takes RUN [RUN ...] beside its options, not nothing"),
    (["--out", "x.png"], "plot has no option --out"),
    (["a", "--xyzzy"], "fix: python main.py plot --help lists them"),
    (["gone"], "there is no folder gone"),
    (["a", "--metric=charts/episodic_retrun"], f"fix: choose one of global_step, {RETURN}"),
    (["a", "--kind=curves"], "must be one of curve, seconds, density"),
    (["a", "--output=curve.gif"], "ends with .png or .svg or .pdf"),
    (["a", "--output=gone/curve.png"], "there is no folder gone"),
    (["a", "b", "--labels=x"], "fix: --labels=A,B"),
    (["a", "--lables=x"], "did you mean --labels?"),
    (["a", "b", "--kind=density"], "shows one group of runs, and there are 2"),
    (["a", "--kind=density"], "fix: train it again, or leave --kind out"),
])
def test_a_wrong_plot_is_an_error(command, argv, says):
    code, out, err = command("plot", *argv)
    assert (code, out) == (2, "") and says in err and "Traceback" not in err
    assert not Path("plot.png").exists()


# compare

def test_compare_prints_a_table(command):
    code, out, err = command("compare", "a", "b")
    assert (code, err) == (0, "")
    assert re.search(r"^A  a +3 +2\.000 ", out, re.M) and "warning: 2 runs on a side are few" in out


def test_compare_reads_lists_and_patterns(command):
    code, out, _ = command("compare", "a/seed[01]", "b/seed0,b/seed1", "--json")
    found = json.loads(out)
    assert code == 0 and found["names"] == ["a/seed[01]", "b/seed0,b/seed1"]
    assert found["a"]["scores"] == [1, 2] and found["b"]["scores"] == [4, 5]
    assert found["improvement"] == {"value": 0, "low": 0, "high": 0}
    assert found["a"]["iqm"] == {"value": 1.5, "low": 1, "high": 2}


@pytest.mark.parametrize("argv, says", [
    (["a"], "compare takes A B beside its options, not "),
    (["a", "b", "c"], "compare takes A B beside its options, not "),
    (["a", "b/seed0"], "B has 1 run"),
    (["a", "b*x"], 'nothing fits the pattern "b*x"'),
    (["a", "b", "--metric=kl"], 'no metric "kl"'),
    (["a", "b", "--jsn"], "did you mean --json?"),
])
def test_a_wrong_comparison_is_an_error_with_a_fix(command, argv, says):
    code, out, err = command("compare", *argv)
    assert (code, out) == (2, "") and says in err and "fix:" in err and "Traceback" not in err


# help

@pytest.mark.parametrize("verb", ["plot", "compare"])
def test_help_is_light_and_shows_an_example(verb):
    code = ("import sys; from fastppo.cli import main\n"
            "try: main.main([sys.argv[1], '--help'])\nexcept SystemExit: pass\n"
            "print([m for m in ('torch', 'numpy', 'gymnasium', 'matplotlib') if m in sys.modules])")
    out = subprocess.run([sys.executable, "-c", code, verb], capture_output=True, text=True,
                         check=True).stdout
    assert out.endswith("[]\n") and f"fastppo {verb} runs/" in out and "{0}" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_every_command_of_the_page_is_understood():
    options = {"plot": plot.Plot, "compare": compare.Compare, "reproduce": reproduce.Reproduce}
    lines = re.findall(r"(?m)^python main.py (\w+) (.*)$", PAGE.read_text(encoding="utf-8"))
    assert {verb for verb, _ in lines} == {*options}
    for verb, words in lines:
        words_and_options(shlex.split(words), options[verb])


def test_a_run_without_a_value_is_left_out_of_a_picture_of_several(command):
    write_run(Path("none"), [float("nan")])
    code, out, err = command("plot", "a", "none")
    assert (code, out) == (0, "picture   plot.png\n")
    assert err == f"note: none/metrics.csv has no value of {RETURN} and is left out\n"
    code, _, err = command("plot", "none")
    assert code == 2 and "no finite value" in err
