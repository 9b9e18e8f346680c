"""docs/environments.md: its table is that of the files, and each row that is installed trains."""

import importlib.util
import os
import re
import subprocess
import sys

import pytest
from source_tree import ROOT

from fastppo.cli import command_line
from fastppo.envs.families import family_of_id
from fastppo.errors import fix_text

sys.path.append(str(ROOT / "bench"))
import packages  # noqa: E402

PAGE = packages.PAGE.read_text(encoding="utf-8")


def test_the_table_is_made_from_the_files_of_what_was_measured():
    assert PAGE.partition(packages.BEGIN)[2].partition(packages.END)[0] == packages.table()


@pytest.mark.parametrize("row", packages.ROWS, ids=lambda row: row.name)
def test_the_command_of_a_row_is_understood_and_installs_what_the_error_says(row):
    assert command_line.read(row.arguments).given["env_name"] == row.env_name
    family = family_of_id(row.env_name)
    if family:
        assert (family.package, row.install.partition(" (")[0]) == (
            row.package, fix_text(family.fix, shell=True))


def test_the_page_names_all_packages_of_the_table_and_no_row_twice():
    assert len({row.name for row in packages.ROWS}) == len(packages.ROWS)
    assert len(re.findall("^\\| `", PAGE, re.MULTILINE)) >= len(packages.ROWS)


@pytest.mark.packages
@pytest.mark.parametrize("row", packages.ROWS, ids=lambda row: row.name)
def test_a_row_that_is_installed_trains_for_two_iterations(row, tmp_path):
    if importlib.util.find_spec(row.package) is None:
        pytest.skip(f"needs {row.package}")
    variable = dict([row.variable.split("=")] if row.variable else [])
    command = [sys.executable, "-W", "ignore", ROOT / "main.py", *row.arguments,
               "--eval_episodes=0", "--progress=none", f"--run_dir={tmp_path}/run"]
    small = {"num_steps": 8, "num_minibatches": 2, "epochs": 1, "total_steps": 128}
    command = [word for word in command if str(word).lstrip("-").partition("=")[0] not in small]
    command += [f"--{name}={value}" for name, value in small.items()]
    env = variable | os.environ
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), env.get("PYTHONPATH", "")])
    ran = subprocess.run(command, cwd=tmp_path, env=env, text=True, timeout=300,
                         capture_output=True)
    assert ran.returncode == 0, ran.stderr
    assert "trained   128 steps" in ran.stdout
