"""What the pages say is true, as far as it can be counted, looked up or tried."""

import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from source_tree import CORE, PACKAGE, ROOT, code_lines

import fastppo
from fastppo import PPO, Config, Evaluation
from fastppo.cli import (
    command_line,
    compare,
    doctor,
    envs,
    eval,
    export,
    main,
    match,
    play,
    plot,
    replay,
    reproduce,
)
from fastppo.cli.bench import Bench
from fastppo.machine.shared_memory import Arena
from fastppo.trainer.policy_and_learner import build_policy
from fastppo.trainer.rollout_arrays import rollout_spec
from fastppo.trainer.setting_texts import ALIASES, settings
from fastppo.workers.protocol import ControlCells, protocol_spec
from fastppo.workers.worker import shards_spec

PAGES = [ROOT / "README.md", ROOT / "bench" / "LOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
README, LOG = PAGES[0].read_text(encoding="utf-8"), PAGES[1].read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PICTURE = ROOT / "docs" / "data.svg"


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_link_between_pages_leads_somewhere(path):
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert (path.parent / link).exists(), link


def test_every_package_is_in_the_table_of_packages():
    table = ARCHITECTURE.partition("## Packages")[2].partition("\n## ")[0]
    named = re.findall(r"\]\(\.\./fastppo/(\w+)/?\)", table)
    packages = {path.parent.name for path in PACKAGE} - {"fastppo"}
    assert sorted(named) == sorted(packages)  # each once


# The options of each verb without settings.
OPTIONS = {"export": export.Export, "replay": replay.Replay, "eval": eval.Eval, "play": play.Play,
           "plot": plot.Plot, "compare": compare.Compare, "envs": envs.Envs,
           "reproduce": reproduce.Reproduce, "doctor": doctor.Doctor, "match": match.Match}


def test_every_command_of_the_pages_is_understood():
    lines = [line.partition(" #")[0].strip() for page in PAGES if page.name != "LOG.md"
             for line in page.read_text(encoding="utf-8").splitlines()]
    found = [shlex.split(line.replace("$seed", "1"))[2:] for line in lines
             if line.startswith("python main.py ")]
    for verb, *rest in found:
        if verb in OPTIONS:
            command_line.words_and_options(rest, OPTIONS[verb])
        elif "--help" not in (verb, *rest):
            bench = verb == "bench"
            command_line.read(rest if bench else [verb, *rest], *[Bench] * bench)
    assert {*OPTIONS} <= {verb for verb, *_ in found} and len(found) > 12


def test_the_notebook_is_python_and_holds_no_output():
    cells = json.loads((ROOT / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code and all(compile("".join(cell["source"]), "notebook", "exec") for cell in code)
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda one: one.stem)
def test_every_example_runs(path, tmp_path):
    needed = {"search": "optuna", "jax_vector": "gymnax"}
    if path.stem in needed:
        pytest.importorskip(needed[path.stem])
    ran = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True,
                         timeout=600, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert ran.returncode == 0 and ran.stdout, ran.stderr


@pytest.mark.full
def test_the_search_without_optuna_says_how_to_install_it(tmp_path):
    (tmp_path / "optuna.py").write_text("raise ModuleNotFoundError('no optuna')")
    ran = subprocess.run([sys.executable, ROOT / "examples" / "search.py"], capture_output=True,
                         text=True, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"})
    assert (ran.returncode, ran.stderr) == (1, "this example needs Optuna: pip install optuna\n")


def test_the_readmes_extras_are_those_there_are():
    listed = re.search(r"Extras: ([^.]*)\.", README)[1]
    with open(ROOT / "pyproject.toml", "rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert sorted(re.findall(r"`([\w-]+)`", listed)) == sorted(extras)


def test_the_sizes_in_the_readme_are_those_of_the_code_within_a_tenth():
    core, rest, bench, csrc = map(number, re.search(
        r"at most ([\d,]+) code lines.* about ([\d,]+) \(([\d,]+) of them .* about ([\d,]+)",
        README, re.DOTALL).groups())
    sizes = {path: code_lines(path) for path in PACKAGE}
    ours = sum(sizes[ROOT / "fastppo" / f"{name}.py"] for name in CORE)
    sources = sorted((ROOT / "csrc").glob("*/*"))
    assert ours <= core
    assert sum(sizes.values()) - ours == pytest.approx(rest, rel=0.1)
    assert sum(n for path, n in sizes.items() if path.parent.name == "benchmark") \
        == pytest.approx(bench, rel=0.1)
    assert sum(map(c_lines, sources)) == pytest.approx(csrc, rel=0.1)


def c_lines(path: Path) -> int:
    """Lines of C or Cython that are neither blank nor comment."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return sum(1 for line in text.splitlines() if not re.match(r"\s*(#(?!\w)|$)", line))


def test_the_figures_in_the_readme_stand_in_the_log():
    table = re.findall(r"^\|.*", README.partition("\n## Speed")[2].partition("\n## ")[0], re.M)
    figures = re.findall(r"\d+(?:,\d{3})+", "".join(table))
    assert figures
    for figure in figures:
        assert re.search(rf"\b{figure}\b", LOG), figure
    low, high, middle = map(int, re.search(r"means range from (\d+) to (\d+), median (\d+)",
                                           README).groups())
    ten = re.search(r"README's picture\): (.*?); median", LOG, re.DOTALL)[1]
    scores = [float(score) for score in re.findall(r"\d+\.\d", ten)]
    assert len(scores) == 10 and min(scores) >= 200
    assert (low, high, middle) == tuple(map(round, (min(scores), max(scores),
                                                    statistics.median(scores))))


def test_a_runs_summary_holds_what_its_page_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main.main(["--env_name=CartPole-v1", "--preset=none", "--num_workers=0", "--num_envs=2",
              "--num_steps=8", "--num_minibatches=1", "--total_steps=16", "--eval_episodes=1",
              "--run_dir=run"])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    text = re.search(r"^\| `summary.json` \|(.*)\|$", page, re.MULTILINE)[1]
    inner = re.search(r"`evaluation` \(([^)]*)", text)[1]
    outer = text.replace(f"({inner})", "").replace("`learn()`", "")
    assert sorted(re.findall(r"`(\w+)`", outer)) == sorted(summary)
    assert sorted(re.findall(r"`(\w+)`", inner)) == sorted(summary["evaluation"])


def test_every_detail_names_a_test_that_exists_and_settings_that_exist():
    page = (ROOT / "docs" / "details.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\| (?!#|-|option|detail \|)", line)]
    numbers = [int(row.split("|")[1]) for row in rows if row.split("|")[1].strip().isdigit()]
    assert numbers == list(range(1, 38))
    for row in rows:
        named = re.findall(r"(test_\w+\.py)::(\w+)", row)
        assert len(named) == 1 or (not named and "not yet" in row), row
        for file, name in named:
            assert f"\ndef {name}(" in next((ROOT / "tests").rglob(file)).read_text("utf-8"), name
        for name in re.findall(r"`(\w+)[`=]", row):
            assert name in settings(), name


def test_the_vocabulary_has_every_array_of_a_rollout_with_its_dtype():
    policy = build_policy(Box(-1, 1, (2,)), Discrete(2), Config(seed=1, model="mlp"))
    page = (ROOT / "docs" / "vocabulary.md").read_text(encoding="utf-8")
    table = page.partition("## Arrays of a rollout")[2].partition("\n## ")[0]
    rows = [re.findall(r"`(\w+)`", cells[1]) + [cells[-2]] for cells in
            (line.split("|") for line in table.splitlines() if line.startswith("| `"))]
    dtypes = {name: row[-1] for row in rows for name in row[:-1]}
    spec = rollout_spec(policy, 1, 1)
    assert sorted(dtypes) == sorted(spec)
    dtypes |= {name: dtypes[name].replace("as `obs`", dtypes["obs"]) for name in ("fin", "frames")}
    for name, (dtype, _) in spec.items():
        dtype = np.dtype(dtype)
        wanted = "bool" if dtype.kind == "b" else f"{dtype.kind}{8 * dtype.itemsize}"
        assert wanted in dtypes[name], name


def test_the_picture_names_arrays_and_cells_that_there_are():
    pytest.importorskip("fastppo._cells")
    policy = build_policy(Box(-1, 1, (2,)), Discrete(2), Config(seed=1, model="mlp"))
    spec = {**rollout_spec(policy, 1, 1), **shards_spec(1, 1),
            **protocol_spec(2, 1)}
    there = {*spec, *vars(ControlCells(Arena(spec), 1)), "params", "mean", "scale", "env", "step"}
    texts = [node for node in ElementTree.parse(PICTURE).iter() if node.tag.endswith("text")]
    names = [node.text for node in texts if node.get("class") == "m"]
    assert len(names) > 5
    for text in names:
        assert set(re.findall(r"[a-z]+", re.sub(r"\[[^]]*\]", "", text))) <= there, text


def test_the_picture_keeps_its_spaces():
    keep = "{http://www.w3.org/XML/1998/namespace}space"
    for node in ElementTree.parse(PICTURE).iter():
        assert "  " not in (node.text or "").strip() or node.get(keep) == "preserve" \
            or node.tag.endswith("style"), node.text


def test_every_test_that_the_page_on_reliability_names_exists():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    named = {*re.findall(r"`(test_\w+)`", page)}
    there = {name for path in (ROOT / "tests").rglob("test_*.py")
             for name in re.findall(r"(?m)^def (test_\w+)", path.read_text(encoding="utf-8"))}
    assert named - there == set()
    assert sorted(map(int, re.findall(r"(?m)^\| F(\d+) \|", page))) == [*range(1, 41)]
    for path in re.findall(r"tests/[\w/.]+", page):
        assert (ROOT / path).exists(), path


def test_the_page_for_users_of_other_libraries_names_settings_that_there_are():
    page = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
    rows = re.findall(r"(?m)^\| (`.*?) \| (.*?) \|$", page)
    ours = {name: right for left, right in rows for name in re.findall(r"`(\w+)`", left)}
    for name, own in {**ALIASES, "num_iterations": "total_steps"}.items():
        assert own in ours[name], name
    known = {*settings(), *settings(command_line.Train), *command_line.VERBS, *dir(PPO),
             *dir(fastppo), *Evaluation._fields, "episodes", "none", "cpu", "cuda"}
    for name, right in ours.items():
        assert {*re.findall(r"`([a-z_]+)`", right)} <= known, name
    for name, right in ours.items():
        assert right != "the same names" or name in settings(), name
