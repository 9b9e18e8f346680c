"""Training with several seeds: processes, table, picture, failures, signals."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_folders import RETURN, write_run

from fastppo.cli import command_line, interrupts, seeds
from fastppo.cli.run_folder import new_folder
from fastppo.errors import ConfigError
from fastppo.machine import child_process, kernels
from fastppo.reports.run_table import read_table
from fastppo.terminal.progress_lines import progress_line

MAIN = Path(__file__).parents[2] / "main.py"
CARTPOLE = ["--env_name=CartPole-v1", "--preset=none", "--num_envs=4", "--num_steps=8",
            "--epochs=1", "--num_minibatches=1", "--hidden_sizes=8", "--eval_episodes=2"]
ENDLESS = [*CARTPOLE, "--total_steps=100M", "--name=long"]
SHOP = '''
import gymnasium as gym
import numpy as np
class Picky(gym.Env):
    """Refuses the seeds of a run with the seed 2."""
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
    def reset(self, seed=None, options=None):
        import os, sys
        if "--seed=2" in sys.argv:
            raise RuntimeError("not this one")
        return np.zeros(2, np.float32), {}
    def step(self, action):
        return np.zeros(2, np.float32), 1.0, True, False, {}
'''


@pytest.fixture
def command(command_read_by, capfd):
    """A function from argv to (exit code, stdout, stderr), those of child processes included."""
    return command_read_by(capfd)


def folders(seed="*"):
    return sorted(path for path in Path("runs").glob(f"CartPole-v1__*__{seed}__*"))


# the words

@pytest.mark.parametrize("text, wanted", [
    ("1..5", [1, 2, 3, 4, 5]), ("1,2,7", [1, 2, 7]), ("3", [3]), ("1..3,2..4", [1, 2, 3, 4]),
    ("0, 9..10", [0, 9, 10]), ("7..7", [7])])
def test_seeds_are_a_range_or_a_list(text, wanted):
    assert seeds.parse_seeds(text) == wanted


@pytest.mark.parametrize("text", ["1-5", "-1..2", "a", "1...3", "1.5", "1e3"])
def test_other_texts_are_no_seeds(text):
    with pytest.raises(ConfigError, match=re.escape(f'seeds is "{text}"')):
        seeds.parse_seeds(text)


@pytest.mark.parametrize("argv, says", [
    (["--seeds=5..1"], 'seeds is "5..1"'), (["--seeds=7,9..3"], 'seeds is "7,9..3"'),
    (["--seeds"], "--seeds: expected one argument"),
    (["--seeds=1..2000"], "at most 1,000 numbers"),
    (["--seeds=1..999999999999999999"], "at most 1,000 numbers"),
    (["--seeds=1..2", "--seed=3"], "leave --seed out"),
    (["--seeds=1..2", "--resume=runs/latest"], "leave --seeds out"),
    (["--seeds=1..2", "--resume=auto"], "--name=my_run"),
])
def test_wrong_options_are_an_error_and_nothing_is_started(command, monkeypatch, argv, says):
    monkeypatch.setattr(seeds, "start_command", None)
    code, out, err = command(*CARTPOLE, *argv)
    assert (code, out) == (2, "") and says in err and "Traceback" not in err
    assert os.listdir() == []


@pytest.mark.parametrize("argv, cores, wanted", [
    ([], 1, ["--progress=lines", "--num_workers=0", "--update_threads=1"]),
    ([], 4, ["--progress=lines", "--num_workers=4"]),
    (["--num_workers=1", "--torch_threads=2"], 1, ["--progress=lines"]),
    (["--step_timeout=9"], 1, ["--progress=lines", "--num_workers=1", "--update_threads=1"]),
    (["--vec=envpool"], 4, ["--progress=lines"])])
def test_each_seed_has_its_share_of_the_cores_unless_workers_are_given(
        monkeypatch, argv, cores, wanted):
    monkeypatch.setattr(kernels, "COMPILED", True)
    assert seeds.settings_of_each(command_line.read(argv), cores) == wanted


def test_seeds_get_no_workers_where_there_can_be_none(monkeypatch):
    monkeypatch.setattr(kernels, "COMPILED", False)
    request = command_line.read(["--env_name=CartPole-v1", "--seeds=1..2"])
    assert "--num_workers=0" in seeds.settings_of_each(request, cores=4)


def test_a_folder_with_the_output_of_its_run_alone_counts_as_empty(tmp_path):
    (tmp_path / "output.txt").touch()
    with new_folder(tmp_path, "x") as folder:
        assert folder == tmp_path
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match="is not empty"), new_folder(tmp_path, "x"):
        pass


# what is shown

class Ended:
    """A process that has ended."""

    returncode = 0


def test_the_state_of_a_run_is_its_share_of_the_steps_and_its_return(tmp_path):
    run = seeds.SeedRun(3, tmp_path, Ended(), time.monotonic() - 10)
    (tmp_path / "output.txt").write_text("device    cpu\n")
    assert seeds.state_text(run) == "seed 3   starting, 10 s"
    stats = {RETURN: 148.26, "charts/SPS": 9_000.0, "losses/approx_kl": 0.01}
    (tmp_path / "output.txt").write_text(progress_line(4_200, 10_000, stats) + "\na note\n")
    assert seeds.state_text(run) == "seed 3   42% return 148.3"


def test_the_table_has_the_mean_over_the_seeds_with_students_t(tmp_path):
    runs = []
    for seed, mean in enumerate([10.0, 20.0, 60.0]):
        folder = write_run(tmp_path / str(seed), [1.0])
        (folder / "summary.json").write_text(json.dumps(
            {"evaluation": {"mean": mean, "ci95": 1.5}, "seconds": 2.0, "episodic_return": 1.0}))
        runs.append(seeds.SeedRun(seed, folder, Ended()))
    *_, last_seed, mean = seeds.table_lines(runs)
    assert re.match(r" +2 +60.0 +2.0 ", last_seed)
    # mean 30, s = sqrt((400 + 100 + 900) / 2), t = 4.303 with two degrees of freedom
    assert mean.startswith("mean      30.0 ± 65.7, ")


# whole runs

@pytest.mark.full
def test_seeds_have_the_results_of_single_runs_in_folders_of_their_own(command):
    code, out, err = command(*CARTPOLE, "--total_steps=96", "--seeds=1,2")
    assert code == 0 and "failed" not in err
    assert [re.split(r"  +", line.strip())[0] for line in out.splitlines()[-6:-2]] == [
        "seed", "1", "2", "mean"]
    assert sorted(re.findall(r"(?m)^seed (\d)   done, \d+ s$", out)) == ["1", "2"]
    assert re.search(r"^   2 .*  runs/CartPole-v1__ppo__2__\d{8}-\d{6}$", out, re.M)
    picture, again = re.search(r"curves    (runs/seeds-\d{8}-\d{6}.png)\nnext .* main.py (.*)$",
                               out, re.S).groups()
    assert Path(picture).stat().st_size > 10_000
    assert again == f"plot {folders(1)[0]},{folders(2)[0]} --kind=density\n"
    assert command(*shlex.split(again))[0] == 0
    output = (folders(2)[0] / "output.txt").read_text()
    assert "seed 2" in output and "evaluation return" in output
    assert command(*CARTPOLE, "--total_steps=96", "--seed=2", "--run_dir=alone")[0] == 0
    one, two = (read_table(path / "metrics.csv").columns for path in (folders(2)[0], Path("alone")))
    assert list(one["losses/policy_loss"]) == list(two["losses/policy_loss"]) and len(one) > 10


@pytest.mark.full
def test_the_seeds_of_a_run_dir_are_folders_in_it_for_compare_and_plot(command):
    words = [*CARTPOLE, "--total_steps=64", "--run_dir=fast"]
    code, out, _ = command(*words, "--seeds=1,2")
    assert code == 0 and "curves    fast/seeds.png\n" in out
    assert out.endswith("main.py plot fast --kind=density\n")
    assert {*os.listdir("fast")} == {"1", "2", "seeds.png"}
    code, out, err = command("compare", "fast", "fast")
    assert (code, out) == (2, "") and "fast/1/metrics.csv is in both groups" in err
    code, out, err = command(*words, "--seeds=2..3")
    assert (code, out) == (2, "") and "the folder fast/2 is not empty" in err
    assert "fix: --run_dir=fast-2" in err and not Path("fast/3").exists()
    assert command(*words, "--seeds=2..3", "--resume=auto")[0] == 0 and Path("fast/3").exists()


@pytest.mark.full
def test_a_seed_that_fails_is_said_and_the_others_go_on(command):
    Path("picky.py").write_text(SHOP)
    code, out, err = command(*CARTPOLE[1:], "--env_name=picky:Picky", "--total_steps=64",
                             "--seeds=2..3")
    assert code == 1 and re.search(
        r"(?m)^seed 2 failed with exit code 1: runs/\S+/output.txt; the end", err)
    assert "RuntimeError: not this one" in err and "seed 3 failed" not in err
    assert re.findall(r"(?m)^   (\d)  ", out) == ["3"]


def test_an_error_of_all_seeds_ends_with_its_code(command):
    code, out, err = command("--env_name=CartPole-v1", "--precision=tf32", "--seeds=1..2")
    assert code == 2 and "which only GPUs compute in" in err and "seed   " not in out


def test_an_error_that_needs_no_torch_comes_before_any_seed_begins(command):
    code, out, err = command("--env_name=CartPol-v1", "--seeds=1..2")
    assert (code, out) == (2, "") and "no environment 'CartPol-v1'" in err
    assert not Path("runs").exists()


def test_settings_that_do_not_fit_the_spaces_are_refused_before_any_seed_begins(command):
    code, out, err = command("--env_name=CartPole-v1", "--std=0.5", "--seeds=1..2")
    assert (code, out) == (2, "") and "std is 0.5, but it is for Box actions" in err
    assert not Path("runs").exists()


def until(is_true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def started_seeds():
    """A command with two endless seeds that have begun to train, and the ids of its children."""
    process = subprocess.Popen([sys.executable, MAIN, *ENDLESS, "--seeds=1,2"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: len(folders()) == 2 and all(
        "\nstep " in path.read_text() for folder in folders()
        for path in [folder / "output.txt"] if path.exists()))
    tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return process, [int(child) for child in tasks.read_text().split()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.full
@pytest.mark.parametrize("signum", [
    signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="reads /proc")
def test_a_signal_stops_all_seeds_which_can_be_resumed(signum):
    process, children = started_seeds()
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signum and "Traceback" not in err
    assert len(children) == 2 and not any(map(is_running, children))
    for folder in folders():
        assert f"resume    python main.py --resume={folder}" in out
        assert json.loads((folder / "summary.json").read_text())["ended"] == "signal"
        assert any(folder.glob("checkpoint-*"))


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="reads /proc")
def test_no_seed_survives_a_parent_that_is_killed():
    process, children = started_seeds()
    assert len(children) == 2 and all(map(is_running, children))
    process.kill()
    process.communicate(timeout=60)
    until(lambda: not any(map(is_running, children)), 10.0)


@pytest.mark.full
def test_seeds_of_a_name_are_continued(command):
    named = [*CARTPOLE, "--name=mine", "--seeds=7", "--resume=auto"]
    assert command(*named, "--total_steps=64")[0] == 0
    folder, = folders()
    assert command(*named, "--total_steps=128")[0] == 0 and folders() == [folder]
    assert json.loads((folder / "summary.json").read_text())["resumed_at"] == 64
    assert "resumed at step 64" in (folder / "output.txt").read_text()


def test_the_output_of_a_process_is_not_added_to_what_a_link_names(tmp_path):
    (outside := tmp_path / "outside").write_text("mine")
    (tmp_path / "output.txt").symlink_to(outside)
    with pytest.raises(ConfigError):
        child_process.start_command(["--version"], tmp_path / "output.txt")
    assert outside.read_text() == "mine"


def test_a_process_that_cannot_be_started_is_an_error(command, monkeypatch):
    def broken(*_, **__):
        raise OSError(11, "Resource temporarily unavailable")
    monkeypatch.setattr(child_process.subprocess, "Popen", broken)
    code, _, err = command(*CARTPOLE, "--seeds=1,2")
    assert code == 2 and "cannot start a process: Resource temporarily unavailable" in err


def test_the_handler_of_a_signal_does_not_raise_while_seeds_run():
    with interrupts.Interrupts() as stopping, pytest.raises(interrupts.Stop):
        stopping.signum = signal.SIGTERM
        seeds.train_seeds([], command_line.read(["--seeds=1"]), stopping)
    assert not Path("runs").exists()
