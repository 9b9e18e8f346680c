"""A run's folder after kills, damage and full disks: the newest whole checkpoint, or one error.

Never half of a file, and never a run from scratch.
"""

import io
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from fault_envs import guard
from tiny_settings import TINY

from fastppo import PPO
from fastppo.errors import CheckpointError
from fastppo.runs.checkpoint import CHECKPOINT_FORMAT, checkpointer_of, find_checkpoint
from fastppo.runs.folder import checkpoints_in
from fastppo.runs.tensor_file import read_tensor_file, write_tensor_file

MAIN = Path(__file__).parents[2] / "main.py"
GUARD = 120  # seconds
ROWS = TINY["num_envs"] * TINY["num_steps"]  # steps of an iteration


def hidden_in(folder):
    """The names of the files that a killed process may have left half written."""
    return [path.name for path in folder.glob(".*")]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_after(ppo, *steps):
    """Trains up to each of `steps`, and writes a checkpoint there."""
    for step in steps:
        ppo.learn(step)
        checkpointer_of(ppo.sinks).write(ppo)


# ---- kills -------------------------------------------------------------------------------------

LARGE = TINY | dict(hidden_sizes=(512, 512), total_steps=10**9)
CYCLE, OPEN = 0.06, 0.006  # seconds: an iteration and its checkpoint of 6 MB take 27 ms, of which
# the file is open for 6 ms

# Forks a trainer for each line, which names a run's folder: so PyTorch is imported once. A line of
# a trainer is one write, of which a kill leaves no half.
NURSERY = """
import os, sys
from pathlib import Path
from fastppo import PPO
from fastppo.runs.folder import checkpoints_in
from fastppo.runs.checkpoint import checkpointer_of

def write(ppo, stats):
    sink = checkpointer_of(ppo.sinks)
    sink.write(ppo)
    assert not sink.failed and str(ppo.step) in sink.newest.name
    print("wrote", ppo.step, flush=True)

def train(folder):
    old = any(checkpoints_in(folder))
    start = dict(checkpoint=folder) if old else dict(env="CartPole-v1", **{settings!r})
    with PPO(**start, run_dir=str(folder), checkpoint_interval=0) as ppo:
        print("begun", ppo.step, len(list(folder.glob(".*"))), flush=True)
        ppo.learn(callbacks=write)

for line in sys.stdin:
    child = os.fork()
    if not child:
        try:
            train(Path(line.strip()))
        finally:
            os._exit(1)
    print("born", child, flush=True)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


class Nursery:
    """A process that forks one trainer after the other, all of them in the folder of one run."""

    def __init__(self, folder):
        code = NURSERY.format(settings=LARGE)
        self.folder, self.process = folder, subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        assert self.process.wait(GUARD) == 0
        self.process.stdout.close()

    def line(self):
        """The next line: a word, and numbers."""
        word, *numbers = self.process.stdout.readline().split()
        return word, *map(int, numbers)

    def killed(self, amid, seconds):
        """The life of a trainer, which SIGKILL ends `seconds` after its first checkpoint.

        Or, `amid` a write, after a file was opened. The step it began at, the hidden files that
        it then saw, and the steps it has written.
        """
        print(self.folder, file=self.process.stdin, flush=True)
        (born, pid), (begun, step, hidden) = self.line(), self.line()
        assert (born, begun) == ("born", "begun")
        lines = [] if amid else [self.line()]
        while amid and not any(self.folder.glob(".checkpoint-*")):
            pass  # for some milliseconds; a sleep might miss the file
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        lines += iter(self.line, ("dead",))
        assert {word for word, *_ in lines} <= {"wrote"}
        return step, hidden, [step for _, step in lines]


@pytest.mark.full
@pytest.mark.parametrize(("kills", "seed"), [
    (10, 1), *[pytest.param(50, seed, marks=pytest.mark.faults) for seed in (2, 3, 4, 5)]])
def test_a_kill_at_any_instant_costs_no_checkpoint_that_was_written(kills, seed, tmp_path, caplog):
    rng, newest, torn, written = random.Random(seed), 0, 0, 0
    with guard(GUARD), Nursery(tmp_path) as nursery:
        for _ in range(kills):
            amid = rng.random() < 0.6
            begun, hidden, steps = nursery.killed(amid, rng.uniform(0.0, OPEN if amid else CYCLE))
            assert (begun, hidden) == (newest, 0)  # goes on from the newest, and has swept
            written, torn = written + len(steps), torn + bool(hidden_in(tmp_path))
            if checkpoints_in(tmp_path) or steps:
                newest = find_checkpoint(tmp_path).step
            assert newest >= max(steps, default=begun)
    assert caplog.text == ""  # where a damaged one would be named
    assert written >= kills // 4
    assert torn >= kills // 10  # so kills did fall into writing
    with PPO.resume(tmp_path, run_dir=str(tmp_path)) as ppo:
        assert ppo.step == newest and hidden_in(tmp_path) == []
        write_after(ppo, newest + ROWS)
    assert find_checkpoint(tmp_path).step == newest + ROWS and len(checkpoints_in(tmp_path)) == 2


# ---- damage ------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with two checkpoints of a run and its policy."""
    folder = tmp_path_factory.mktemp("written")
    with PPO("CartPole-v1", **TINY, hidden_sizes=(8,), run_dir=str(folder)) as ppo:
        write_after(ppo, 2 * ROWS, 4 * ROWS)
        ppo.save(folder / "policy.safetensors")
    return folder


@pytest.fixture
def run(written, tmp_path):
    """(folder of a run, its newest checkpoint, the one before), which a test may damage."""
    for path in checkpoints_in(written):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path, *checkpoints_in(tmp_path)


def places(data):
    """Twenty places in a file: where its parts meet, and others."""
    tensors = 8 + int.from_bytes(data[:8], "little")
    borders = [1, 7, 8, 9, tensors - 1, tensors, tensors + 1, len(data) - 1]
    return borders + random.Random(1).sample(range(10, len(data)), 12)


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1:]


def of_torch():
    """A file as torch.save writes it."""
    file = io.BytesIO()
    torch.save({"weights": torch.ones(9)}, file)
    return file.getvalue()


def of_the_future(folder):
    """A file of another format, under a checksum that is right."""
    tensors, texts = read_tensor_file(checkpoints_in(folder)[0], CHECKPOINT_FORMAT)
    write_tensor_file(folder / "future", "fastppo checkpoint 99", tensors, texts)
    return (folder / "future").read_bytes()


DAMAGES = {
    "truncated": lambda data, folder: [data[:place] for place in places(data)],
    "flipped": lambda data, folder: [flipped(data, place) for place in places(data)],
    "empty": lambda data, folder: [b""],
    "zeros": lambda data, folder: [bytes(len(data))],
    "doubled": lambda data, folder: [data + data],
    "a policy": lambda data, folder: [(folder / "policy.safetensors").read_bytes()],
    "a pickle": lambda data, folder: [pickle.dumps({"step": 64, "weights": [1.0] * 99})],
    "torch's": lambda data, folder: [of_torch()],
    "a text": lambda data, folder: [b"step 64\n" * 99],
    "of the future": lambda data, folder: [of_the_future(folder)],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_one_error_and_the_one_before_is_taken_and_named(
        damage, run, written, caplog):
    folder, newest, older = run
    for data in DAMAGES[damage](newest.read_bytes(), written):
        newest.write_bytes(data)
        with pytest.raises(CheckpointError) as caught:
            find_checkpoint(newest)
        assert caught.value.what.count(newest.name) == str(caught.value).count("\n  fix: ") == 1
        assert len(str(caught.value)) < 1000
        caplog.clear()
        assert find_checkpoint(folder).path == older
        (warning,) = caplog.messages
        assert newest.name in warning and older.name in warning


@pytest.mark.parametrize("damage", DAMAGES)
def test_where_all_checkpoints_are_damaged_there_is_an_error_and_nothing_is_written(
        damage, run, written):
    folder, newest, older = run
    for path in (newest, older):
        path.write_bytes(DAMAGES[damage](path.read_bytes(), written)[-1])
    before = contents(folder)
    for find in (find_checkpoint, lambda folder: PPO.resume(folder, run_dir=str(folder))):
        with pytest.raises(CheckpointError, match=newest.name):
            find(folder)
    assert contents(folder) == before


@pytest.mark.full
@pytest.mark.parametrize("damage", [
    "truncated", *[pytest.param(name, marks=pytest.mark.faults) for name in [*DAMAGES][1:]]])
def test_the_command_never_begins_anew_where_all_checkpoints_are_damaged(damage, run, written):
    folder, newest, older = run
    for path in (newest, older):
        path.write_bytes(DAMAGES[damage](path.read_bytes(), written)[-1])
    before = contents(folder)
    done = subprocess.run(
        [sys.executable, str(MAIN), "--env_name=CartPole-v1", "--total_steps=64", "--preset=none",
         "--num_workers=0", "--eval_episodes=0", "--resume=auto", f"--run_dir={folder}"],
        capture_output=True, text=True, timeout=GUARD)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("error:") == done.stderr.count("\n  fix: ") == 1
    assert newest.name in done.stderr and "Traceback" not in done.stderr
    assert contents(folder) == before


@pytest.mark.parametrize("stranger", ["a folder", "a pipe", "a link to nothing", "a loop"])
def test_what_is_no_file_under_the_name_of_a_checkpoint_is_passed_over(stranger, run, caplog):
    folder, _, older = run
    path = folder / "checkpoint-000000009999.safetensors"
    {"a folder": path.mkdir, "a pipe": lambda: os.mkfifo(path),
     "a link to nothing": lambda: path.symlink_to("nowhere"),
     "a loop": lambda: path.symlink_to(path.name)}[stranger]()
    assert find_checkpoint(folder).step == 4 * ROWS
    assert len(caplog.messages) == 1 and path.name in caplog.text
    with pytest.raises(CheckpointError):
        find_checkpoint(path)
    with PPO.resume(folder, run_dir=str(folder)) as ppo:
        write_after(ppo, 5 * ROWS)
        assert find_checkpoint(folder).step == 5 * ROWS


# ---- disks -------------------------------------------------------------------------------------

# No file may be longer than the limit, which says the same as a full disk: the write fails midway.
FULL = """
import resource, sys
from pathlib import Path
from fastppo import PPO
from fastppo.runs.checkpoint import find_checkpoint
from fastppo.runs.folder import checkpoints_in
folder, rows = Path(sys.argv[1]), {rows}
changes = dict.fromkeys((3, 9), 20_000) | dict.fromkeys((6, 12), resource.RLIM_INFINITY)

def after(ppo, stats):
    assert find_checkpoint(folder).step > 0
    print(ppo.step // rows, *[int(path.name[11:23]) // rows for path in checkpoints_in(folder)])
    assert not list(folder.glob(".*"))
    if ppo.step // rows in changes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (changes[ppo.step // rows], -1))

with PPO("CartPole-v1", **{settings!r}, run_dir=str(folder), checkpoint_interval=1e-9) as ppo:
    ppo.learn(14 * rows, after)
print(len((folder / "metrics.csv").read_text().splitlines()))
"""


@pytest.mark.full
def test_a_full_disk_costs_no_run_and_no_older_checkpoint_and_is_written_to_when_it_has_room(
        tmp_path):
    code = FULL.format(rows=ROWS, settings=TINY | dict(hidden_sizes=(64, 64)))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True,
                          text=True, timeout=GUARD)
    lines = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    kept = [(1,), (2, 1), (3, 2), (3, 2), (3, 2), (3, 2), (7, 3), (8, 7), (9, 8), (9, 8), (9, 8),
            (9, 8), (13, 9), (14, 13)]
    assert lines[:-1] == [[i, *there] for i, there in enumerate(kept, 1)], done.stderr
    assert lines[-1] == [15]  # a row for each iteration, and the names
    notes = done.stderr.splitlines()
    assert len(notes) == 2 and all("File too large; training goes on" in one for one in notes)


def assert_missed_and_made_up(folder, hinder, allow, capsys):
    """A run goes on while checkpoints cannot be written, says so once, and then writes again."""
    with PPO("CartPole-v1", **TINY, hidden_sizes=(8,), run_dir=str(folder)) as ppo:
        write_after(ppo, ROWS, 2 * ROWS)
        before = {one.name: one.read_bytes() for one in checkpoints_in(folder)}
        hinder()
        write_after(ppo, 3 * ROWS, 4 * ROWS)
        assert capsys.readouterr().err.count("; training goes on and tries again") == 1
        allow()
        assert {one.name: one.read_bytes() for one in checkpoints_in(folder)} == before
        write_after(ppo, 5 * ROWS)
    assert [one.name[11:23] for one in checkpoints_in(folder)] == [
        f"{step:012d}" for step in (5 * ROWS, 2 * ROWS)]
    assert find_checkpoint(folder).step == 5 * ROWS and hidden_in(folder) == []


def test_a_folder_in_whose_place_is_a_file_costs_no_run(tmp_path, capsys):
    folder, aside = tmp_path / "run", tmp_path / "aside"

    def hinder():
        folder.rename(aside)
        folder.write_text("no folder")

    def allow():
        folder.unlink()
        aside.rename(folder)
    assert_missed_and_made_up(folder, hinder, allow, capsys)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_costs_no_run(tmp_path, capsys):
    folder = tmp_path / "run"
    assert_missed_and_made_up(folder, lambda: folder.chmod(0o555),
                              lambda: folder.chmod(0o755), capsys)
