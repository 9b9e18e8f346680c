"""Runs whose files are pipes, devices or nonsense: each verb says so, and none waits."""

import json
import os
import signal
from pathlib import Path

import pytest
from run_folders import write_run

STRANGERS = {
    "a pipe": os.mkfifo,
    "zeros without end": lambda path: os.symlink("/dev/zero", path),
    "lists without end": lambda path: path.write_text("[" * 100_000),
    "objects in objects": lambda path: path.write_text('{"env_kwargs": ' * 99 + "1" + "}" * 99),
}
SHORT = ("--total_steps=8", "--num_envs=1", "--num_steps=8", "--num_minibatches=1",
         "--hidden_sizes=8", "--num_workers=0", "--eval_episodes=0", "--progress=none")
VERBS = (("plot", "run"), ("compare", "run", "other"), ("reproduce", "run", "--total_steps=8"),
         ("train", "--resume=run"), ("train", "--resume=auto", "--run_dir=run", *SHORT),
         ("train", "--preset=run/config.json", *SHORT))


@pytest.fixture(autouse=True)
def patience():
    """A verb that waits is a TimeoutError after 30 seconds."""
    def late(*_):
        raise TimeoutError
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", STRANGERS)
@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.csv",
                                  "checkpoint-000000000064.safetensors", "model.safetensors"])
def test_a_strange_file_of_a_run_is_one_error_or_passed_over(name, kind, command):
    for folder in ("run", "other"):
        write_run(Path(folder), [1.0, 2.0], steps=[8, 16], settings={"num_steps": 8, "num_envs": 1,
                                                                   "num_minibatches": 1})
    Path("run", name).unlink(missing_ok=True)
    STRANGERS[kind](Path("run", name))
    for argv in VERBS:
        code, _, err = command(*argv)
        assert "Traceback" not in err and (code == 2) <= err.count("error:") <= 1, (argv, err)


def test_a_folder_whose_name_a_terminal_would_obey_is_refused(command):
    Path("runs").mkdir()
    write_run(Path("runs", "CartPole-v1__x__1__2026\x1b[2J"), [1.0])
    Path("runs", "latest").symlink_to("CartPole-v1__x__1__2026\x1b[2J")
    for argv in (("train", "--resume=auto", "--name=x", *SHORT),
                 ("train", "--resume=runs/latest")):
        code, *texts = command(*argv, "--env_name=CartPole-v1")
        assert code and "\x1b" not in "".join(texts)


def test_a_password_of_a_preset_is_not_printed(command):
    Path("own.json").write_text(json.dumps({"env_kwargs": {"password": "hunter2"}}))
    Path("guarded.py").write_text("import gymnasium as gym\n"
                               "def env(password):\n    return gym.make('CartPole-v1')\n")
    code, *texts = command("train", "--preset=own.json", "--env_name=guarded:env", "--run_dir=r",
                           *[word for word in SHORT if "progress" not in word])
    assert code == 0 and "preset    own.json" in texts[0] and "hunter2" not in "".join(texts)


def test_a_setting_of_another_type_is_one_error(command):
    write_run(Path("run"), [1.0, 2.0], settings={"num_workers": "a"})
    code, _, err = command("reproduce", "run")
    assert code == 2 and "num_workers is 'a'" in err


def test_the_escapes_of_a_terminal_in_names_from_files_are_not_printed(command):
    name = "\x1b]0;mine\x07\x1b[2J\x9b2J"
    write_run(Path("run"), [1.0], env_name=name)
    write_run(Path("other"), [1.0], env_name=name)
    stored = {"__metadata__": {"format": "fastppo policy 1", name: name,
                               "config": json.dumps({"env_name": name})}}
    header = json.dumps(stored).encode()
    Path("model").write_bytes(len(header).to_bytes(8, "little") + header)
    Path("names.csv").write_text(f"global_step,{name}\n8,1\n")
    for argv in (*VERBS, ("plot", "names.csv", "--metric=x"), ("eval", "model")):
        _, *texts = command(*argv)
        assert not {*"\x1b\x07\x9b"} & {*"".join(texts)}, argv
