"""command.txt and system.json in the folder of a run."""

import json
import shlex
import sys

import pytest

from fastppo.cli import run_folder
from fastppo.cli.run_folder import public_words, write_start_files
from fastppo.config import Config
from fastppo.errors import ConfigError
from fastppo.runs import facts
from fastppo.runs.folder import FolderLock


@pytest.fixture(autouse=True)
def started(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main.py"])


def test_the_command_can_be_pasted(tmp_path):
    argv = ["--env_name=CartPole-v1", "--name=a run's $HOME", '--env_kwargs={"level": 3}']
    write_start_files(tmp_path, argv, Config(env_kwargs={"level": 3}))
    line = (tmp_path / "command.txt").read_text()
    assert line.count("\n") == 1 and shlex.split(line) == ["python", "main.py", *argv]


def test_a_resume_adds_its_command_below(tmp_path):
    write_start_files(tmp_path, ["--seed=1"], Config())
    write_start_files(tmp_path, ["--resume=runs/latest"], Config())
    assert (tmp_path / "command.txt").read_text() == (
        "python main.py --seed=1\npython main.py --resume=runs/latest\n")


def test_the_machine_and_versions_are_stored(tmp_path):
    write_start_files(tmp_path, [], Config(torch_threads=3))
    found = json.loads((tmp_path / "system.json").read_text())
    assert found["fingerprint"]["torch_threads"] == 3 and found["torch"]["version"]
    assert found["python"]["version"] == sys.version.split()[0]


@pytest.mark.parametrize("argv, given, shown", [
    (["--env_kwargs", "..."], {"api_key": "abc", "level": 3},
     ['--env_kwargs={"api_key": "***", "level": 3}']),
    (["--env-kwargs=...", "--seed=1"], {"login": {"authToken": "abc"}},
     ["--seed=1", '--env_kwargs={"login": {"authToken": "***"}}']),
    (["--env_kwargs={api_key: abc}", '--env_kwargs={"level":3}'], {"level": 3},
     ['--env_kwargs={"level": 3}']),
    (['--name={"api_key": "mine"}'], {"of": "a resumed run"}, ['--name={"api_key": "mine"}']),
])
def test_passwords_in_the_command_are_hidden(argv, given, shown):
    assert public_words(argv, given) == shown


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), ValueError("odd")])
def test_what_cannot_be_written_is_a_warning(tmp_path, monkeypatch, caplog, error):
    def broken(*_):
        raise error
    monkeypatch.setattr(facts, "system_facts", broken)
    write_start_files(tmp_path, [], Config())
    assert caplog.messages == [
        f"{tmp_path} has no complete record of its start: {error.args[-1]}"]
    assert (tmp_path / "command.txt").exists()


def test_a_run_that_ends_before_it_has_a_folder_leaves_the_files_of_the_one_that_has_it(tmp_path):
    folder, held = tmp_path / "run", []
    with pytest.raises(ConfigError), run_folder.new_folder(folder, "run"):
        held.append(FolderLock(folder))  # another process's
        (folder / "config.json").write_text("{}")
        raise ConfigError("another run is writing into it", "wait")
    assert [path.name for path in folder.iterdir()] == ["config.json"]
    held[0].close()
    with pytest.raises(ConfigError), run_folder.new_folder(folder, "run", again=True):
        (folder / "command.txt").touch()
        raise ConfigError("the environment is wrong", "give another")
    assert [path.name for path in folder.iterdir()] == ["config.json"]
