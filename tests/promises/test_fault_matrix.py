"""Faults of processes, terminals, disks, memory and loggers: what each of them costs, and what not.

The rows F1 to F40 of the project's fault matrix that no other file of tests shows.
"""

import ast
import contextlib
import errno
import fcntl
import gc
import importlib
import io
import itertools
import json
import logging
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
import warnings
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from asked_of_runs import assert_advantages, table, weights
from fault_envs import (
    TESTS,
    Calm,
    Faulty,
    alive,
    children,
    guard,
    hanging,
    hanging_with_the_gil,
    holds,
    killed_by,
    nothing_left,
    observing,
    paying,
    raising,
    running_workers,
)
from source_tree import PACKAGE, module_of
from test_embedding import host

from fastppo import PPO, load
from fastppo.cli import main
from fastppo.errors import ConfigError, EnvError, KernelError, WorkerError, fix_text
from fastppo.learner import Learner
from fastppo.loggers import background, csv_files
from fastppo.machine import kernels
from fastppo.policy import Policy
from fastppo.runs import checkpoint
from fastppo.workers import team

MAIN = Path(__file__).parents[2] / "main.py"
TINY = ["--preset=none", "--num_envs=4", "--num_steps=8", "--epochs=1", "--num_minibatches=1",
        "--hidden_sizes=8", "--eval_episodes=0", "--run_dir=run", "--seed=1"]
ENVS = """
import sys
import time
from fault_envs import Calm, hanging_with_the_gil, killed_by, raising

def reach(fault, env):
    open("reached", "w").close()
    return fault(env)

class AtLast(Calm):
    '''Has a fault in the 20th step of its life, in training or in a worker.'''
    lived = 0
    def fault(self):
        raise ValueError("boom")
    def step(self, action):
        self.lived += 1
        if self.lived == 20:
            reach(type(self).fault, self)
        return super().step(action)

class Killed(AtLast):
    fault = killed_by(9)

class Hanging(AtLast):
    fault = hanging_with_the_gil

class Slow(Calm):
    '''Takes `seconds` for a step.'''
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)

class NeverMade(Calm):
    '''Hangs in its constructor in a worker.'''
    def __init__(self, fault=hanging_with_the_gil):
        super().__init__()
        if "fastppo.cli.main" not in sys.modules:
            reach(fault, self)
"""
STUCK = """
import sys
from fault_envs import Calm, hanging, hanging_with_the_gil
class Mine(Calm):
    pass
if "fastppo.cli.main" not in sys.modules:  # in a worker
    open("reached", "w").close()
    {fault}(None)
"""
PATCHED = """
import os, signal, sys, time
sys.path[:0] = {paths!r}
from fastppo.cli import main
{patch}
main.main(sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Every test has a working directory with a module `odd` of environments that go wrong."""
    (tmp_path / "odd.py").write_text(ENVS)
    monkeypatch.setenv("PYTHONPATH", TESTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "odd", raising=False)
    monkeypatch.chdir(tmp_path)


@contextlib.contextmanager
def started(*argv, patch="", env="CartPole-v1", until="step", **options):
    """The command in a process group of its own, once a line of it begins with `until`.

    `patch` is code that runs before it. At the end nobody of the group may be left.
    """
    paths = [str(MAIN.parent), TESTS]
    program = ["-c", PATCHED.format(paths=paths, patch=patch)] if patch else [MAIN]
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE) | options
    names = set(os.listdir("/dev/shm"))
    with guard(), subprocess.Popen(
            [sys.executable, *program, f"--env_name={env}", *TINY, *argv], text=True,
            start_new_session=True, **pipes) as process:
        try:
            while until and not process.stdout.readline().startswith(until):
                assert process.poll() is None, process.stderr.read()
            yield process
            process.wait()
            assert holds(lambda: not alive(group(process.pid)), 5)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert holds(lambda: set(os.listdir("/dev/shm")) <= names)  # those of others come and go


def group(leader: int) -> list[int]:
    """The processes of the group of `leader`."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getpgid(int(name)) == leader:
                found.append(int(name))
    return found


def finished(*argv, **options):
    """(exit code, stdout, stderr) of the command in a process of its own."""
    with started(*argv, until="", **options) as process:
        out, err = process.communicate()
    return process.returncode, out, err


def command(*argv, env="CartPole-v1"):
    """The exit code of the command in this process."""
    try:
        main.main([f"--env_name={env}", *TINY, *argv])
    except SystemExit as end:
        return end.code
    return 0


def resumed_steps(env=None) -> int:
    """The step of the newest checkpoint of the run, which loads."""
    with PPO.resume("run", env, run_dir=None) as ppo:
        return ppo.step


def summary():
    return json.loads(Path("run/summary.json").read_text())


def settings(**changes):
    """Keywords of a small trainer without workers."""
    return dict(preset="none", seed=1, num_workers=0, num_envs=4, num_steps=8, epochs=1,
                num_minibatches=1, hidden_sizes=(8,)) | changes


# Environments that raise, die or hang


@pytest.mark.some(1)
@pytest.mark.parametrize("env, said", [
    ("AtLast", "ValueError: boom"), ("Killed", "was killed by SIGKILL")])
def test_a_fault_in_a_worker_ends_the_command_with_a_checkpoint_and_few_lines(env, said, capsys):
    with nothing_left():
        assert command("--num_workers=2", "--no-norm-obs", env=f"odd:{env}") == 1
    out, err = capsys.readouterr()
    assert said in err and "environment " in err and err.count("\n  fix: ") == 1
    assert len([line for line in err.splitlines() if line[0] not in " T"]) <= 15  # no Traceback
    assert resumed_steps(f"odd:{env}") == summary()["steps"] == 64
    assert out.splitlines()[-1].startswith("resume ")


def test_without_workers_the_exception_itself_is_the_cause():
    error = KeyError("mine")

    def fault(env):
        raise error
    with PPO(lambda: Faulty(fault, 2, 0), **settings(norm_obs=False)) as ppo:
        with pytest.raises(EnvError) as caught:
            ppo.learn(64)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("number, says", [
    (signal.SIGKILL, "SIGKILL, but not by the system for lack of memory"),
    (signal.SIGBUS, "SIGBUS"), (signal.SIGSEGV, "SIGSEGV")])
def test_the_error_of_a_worker_that_died_names_its_signal(number, says):
    def env():
        return Faulty(killed_by(number), 2, 0)
    with nothing_left(), running_workers([env], 1) as vec:
        with pytest.raises(WorkerError) as caught:
            vec.warmup(8)
    assert f"was killed by {says}" in caught.value.what
    assert "run the environment alone" in fix_text(caught.value.fix, shell=True)


@pytest.fixture
def stuck(tmp_path, monkeypatch):
    """A function that makes an environment whose module hangs while a worker imports it."""
    def make(fault):
        (tmp_path / "stuck.py").write_text(STUCK.format(fault=fault.__name__))
        monkeypatch.delitem(sys.modules, "stuck", raising=False)
        return importlib.import_module("stuck").Mine
    return make


def hang_text(factory):
    """The error of a worker that hangs in its start; the time is stopped once it does."""
    with nothing_left(), running_workers([Calm, factory], 2) as vec:
        team = vec.team
        assert holds(Path("reached").exists)
        assert holds(lambda: team._late(team.cells.done, team.posted.generation) == [1])
        team.reset_timeout = 0.3
        with pytest.raises(WorkerError) as caught:
            vec.warmup(1)
    assert "--reset_timeout=3" in fix_text(caught.value.fix, shell=True)
    assert "worker 1 (environment 1, starting) has not answered" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("fault", [hanging, hanging_with_the_gil])
def test_a_hang_in_a_constructor_is_reported_with_the_workers_stack(fault):
    text = hang_text(partial(importlib.import_module("odd").NeverMade, fault))
    assert f"in {fault.__name__}" in text and "in __init__" in text


@pytest.mark.parametrize("fault", [hanging, hanging_with_the_gil])
def test_a_hang_while_a_worker_imports_is_reported_with_its_stack(fault, stuck):
    text = hang_text(stuck(fault))
    assert f"in {fault.__name__}" in text and "stuck.py" in text


def test_closing_does_not_wait_for_a_worker_that_still_imports(stuck, monkeypatch):
    monkeypatch.setattr(team, "CLOSE_SECONDS", 0.1)
    with nothing_left(), running_workers([Calm, stuck(hanging_with_the_gil)], 2):
        assert holds(Path("reached").exists)


def test_a_worker_that_is_frozen_is_reported_and_ends():
    with nothing_left(), running_workers([Calm, Calm], 2) as vec:
        vec.warmup(8)
        os.kill(vec.team.workers[1].process.pid, signal.SIGSTOP)
        vec.team.step_timeout = 0.3
        with pytest.raises(WorkerError, match="worker 1 .*has not answered"):
            vec.warmup(7)


@pytest.mark.parametrize("acting", ["local", "central"])
def test_one_slow_environment_of_eight_is_no_hang_and_gets_its_steps(acting):
    slow = importlib.import_module("odd").Slow
    envs = [partial(slow, 0.001)] * 7 + [partial(slow, 0.1)]
    with nothing_left():  # its rollout takes longer than a step may
        with PPO(envs, **settings(num_envs=8, num_workers=2, num_steps=16, step_timeout=1.2,
                                  norm_obs=False, acting=acting)) as ppo:
            obs = ppo.collect().obs
            assert (obs[:, :, 0] == obs[:, :1, 0]).all() and obs[1, 7, 0] == 1


# Signals and terminals


@pytest.mark.full
def test_ctrl_c_in_a_terminal_stops_the_group_with_a_checkpoint():
    with started("--num_workers=2", "--total_steps=100M") as process:
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
    assert process.returncode == 130
    assert len(err.splitlines()) <= 5 and "Traceback" not in err
    assert out.splitlines()[-1] == "resume    python main.py --resume=run"
    assert resumed_steps() == summary()["steps"]


def test_ctrl_c_while_a_worker_starts_reaches_the_main_process_alone(tmp_path, monkeypatch):
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with nothing_left(), running_workers([Calm], 1) as vec:
        vec.warmup(8)


@pytest.mark.full
@pytest.mark.parametrize("env, steps", [("Hanging", 64), ("NeverMade", None)])
def test_sigterm_waits_neither_for_a_step_nor_for_a_worker_that_starts(env, steps):
    with started("--num_workers=2", "--no-norm-obs", "--step_timeout=0", "--reset_timeout=0",
                 "--total_steps=100M", until="kernels", env=f"odd:{env}") as process:
        assert holds(Path("reached").exists)
        time.sleep(0.1)  # the main process waits for its workers
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate()
    assert process.returncode == 143 and "Traceback" not in err
    assert f"stopped   at step {steps}: " in out if steps else "stopped   before the first" in out
    assert not steps or resumed_steps(f"odd:{env}") == steps


# One long sleep would miss a signal that arrives just before the system call.
LONG = "any(time.sleep(0.01) for _ in range(360_000))"
THIRD_UPDATE = """
from fastppo.compiled.learner import CompiledLearner
from fastppo.learner import Learner
kind = CompiledLearner if "update" in vars(CompiledLearner) else Learner
def told(*args, update=kind.update, calls=iter(range(9))):
    if next(calls) == 2:
        print("updating", flush=True)
        {action}
    return update(*args)
kind.update = told
"""


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_for_the_whole_group_lets_an_update_end_that_workers_share(number):
    with started("--num_workers=2", "--total_steps=10k", "--epochs=300", "--num_steps=128",
                 patch=THIRD_UPDATE.format(action="pass"), until="updating") as process:
        os.killpg(process.pid, number)
        out, err = process.communicate()
    assert (process.returncode, summary()["iterations"]) == (128 + number, 3)
    assert len(err.splitlines()) == 1 and "stopping; another signal" in err


@pytest.mark.full
def test_a_second_ctrl_c_ends_an_update_that_takes_too_long():
    with started("--num_workers=2", "--checkpoint_interval=1e-9", "--total_steps=10k",
                 patch=THIRD_UPDATE.format(action=LONG),
                 until="updating") as process:
        os.killpg(process.pid, signal.SIGINT)
        assert "another signal ends the process at once" in process.stderr.readline()
        time.sleep(1.1)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "")
    assert resumed_steps() == 64


def test_ctrl_c_during_the_write_of_a_checkpoint_lets_it_end(monkeypatch):
    real, sent = os.fsync, []

    def interrupted(fd):
        if "checkpoint-000000000064" in os.readlink(f"/proc/self/fd/{fd}") and not sent:
            sent.append(fd)
            os.kill(os.getpid(), signal.SIGINT)
        real(fd)
    monkeypatch.setattr(os, "fsync", interrupted)
    assert command("--num_workers=0", "--checkpoint_interval=1e-9", "--total_steps=320") == 130
    assert resumed_steps() == summary()["steps"] == 64
    assert not [*Path("run").glob(".*")]


@pytest.mark.full
def test_a_second_ctrl_c_during_the_write_of_a_checkpoint_leaves_the_one_before():
    patch = """
real = os.fsync
def interrupted(fd):
    if "checkpoint-000000000064" in os.readlink(f"/proc/self/fd/{fd}"):
        os.kill(os.getpid(), signal.SIGINT)
        any(time.sleep(0.01) for _ in range(110))  # a signal is heard between two calls
        os.kill(os.getpid(), signal.SIGINT)
    real(fd)
os.fsync = interrupted
"""
    code, _, err = finished("--num_workers=0", "--checkpoint_interval=1e-9", patch=patch)
    assert (code, len(err.splitlines())) == (130, 1)
    assert [*Path("run").glob(".*.part*")]
    assert command("--resume=auto", "--total_steps=96", "--num_workers=0") == 0
    assert summary()["steps"] == 96 and not [*Path("run").glob(".*.part*")]
    assert [row["global_step"] for row in table("run/metrics.csv")] == ["32", "64", "96"]


@pytest.mark.full
@pytest.mark.parametrize("apart", [0.001, 0.005, 0.02, 0.1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_two_signals_at_once_are_one_stop(number, apart):
    with started("--num_workers=2", "--total_steps=100M", until="step") as process:
        process.send_signal(number)
        time.sleep(apart)
        os.killpg(process.pid, number)
        out, err = process.communicate()
    assert process.returncode == 128 + number and err.count("stopping; another signal") == 1
    assert Path("run/model.safetensors").is_file() and resumed_steps() == summary()["steps"]
    assert not [*Path("run").glob(".*.part*")]


@pytest.mark.full
def test_timeout_stops_a_run_with_a_checkpoint():
    ran = subprocess.run(["timeout", "-s", "TERM", "8", sys.executable, MAIN, *TINY,
                          "--env_name=CartPole-v1", "--num_workers=2", "--total_steps=100M",
                          "--run_dir=run"], timeout=60)
    assert ran.returncode == 124 and resumed_steps() == summary()["steps"]


def terminal_of_its_own():
    """Makes stdin the terminal of this session, which is hung up when its other end closes."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.full
def test_a_terminal_that_closes_stops_the_command_with_a_checkpoint():
    ours, theirs = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with started("--num_workers=2", "--total_steps=100M", until="", **streams,
                 preexec_fn=terminal_of_its_own) as process:
        os.close(theirs)
        seen = b""
        while b"steps/s" not in seen:
            seen += os.read(ours, 1000)
        os.close(ours)
        assert process.wait() == 129
    assert resumed_steps() == summary()["steps"] and summary()["ended"] == "signal"


@pytest.mark.full
def test_a_reader_that_leaves_after_a_line_ends_the_command_without_a_traceback():
    with started("--num_workers=2", "--total_steps=20k", until="kernels") as process:
        process.stdout.close()
        err = process.stderr.read()
        assert (process.wait(), err) == (141, "")
    assert resumed_steps() == summary()["steps"]


@pytest.mark.full
def test_a_command_without_any_standard_stream_trains_to_the_end():
    argv = " ".join([*TINY, "--num_workers=2", "--total_steps=320"])
    shell = f"exec '{sys.executable}' '{MAIN}' --env_name=CartPole-v1 {argv} <&- >&- 2>&-"
    assert subprocess.run(["sh", "-c", shell], timeout=60).returncode == 0
    assert summary()["ended"] == "done" and len(table("run/metrics.csv")) == 10


def fill_disk(ppo):
    """Makes the table of a run a file that takes no byte; it has all its columns by now."""
    os.symlink("/dev/full", "full")
    os.replace("full", "run/metrics.csv")


class Gone(io.StringIO):
    """A stream whose other end is closed."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, ""), OSError(errno.EIO, "")])
def test_a_note_that_nobody_can_read_stops_no_training(error, monkeypatch):
    with PPO(Calm, run_dir="run", **settings()) as ppo:
        fill_disk(ppo.learn(32))
        monkeypatch.setattr(sys, "stderr", Gone(error))
        assert ppo.learn(96).step == 96


@pytest.mark.full
def test_a_group_that_is_killed_leaves_nothing_and_goes_on_where_it_was():
    with started("--num_workers=2", "--total_steps=100M", "--checkpoint_interval=0.1") as process:
        assert holds(lambda: len([*Path("run").glob("checkpoint-*")]) == 2)
        os.killpg(process.pid, signal.SIGKILL)
    before = resumed_steps()
    assert command("--resume=auto", "--num_workers=0", f"--total_steps={before + 64}") == 0
    rows = [int(row["global_step"]) for row in table("run/metrics.csv")]
    assert rows == list(range(32, before + 65, 32))


# What environments answer


class Twice(Faulty):
    """Has its fault in the second rollout of eight steps."""

    def __init__(self, fault):
        super().__init__(fault, 3, 2)  # after two episodes of five steps


@pytest.mark.parametrize("fault", [
    observing(np.array([0, np.nan], np.float32)), observing(np.array([np.inf, 0], np.float32)),
    paying(np.nan), paying(-np.inf), paying(None), paying(np.ones(2)),
    raising(lambda: ValueError("boom"))],
    ids=["obs nan", "obs inf", "nan", "-inf", "None", "array", "raised"])
@pytest.mark.parametrize("learner", ["kernel", "torch"])
def test_a_fault_of_an_environment_changes_no_weight(fault, learner):
    with PPO(lambda: Twice(fault), **settings(learner=learner, norm_obs=False)) as ppo:
        ppo.learn(32)
        before = weights(ppo).clone()
        with pytest.raises(EnvError, match="episode 2, step 3"):
            ppo.learn(640)
        assert torch.equal(weights(ppo), before) and ppo.complete_steps == 32


class Bytes(Calm):
    """Observes bytes, and answers its third step with `obs`."""

    observation_space = gym.spaces.Box(0, 255, (2,), np.uint8)

    def __init__(self, obs):
        super().__init__()
        self.obs = obs

    def observed(self):
        return self.obs if self.steps == 3 else np.zeros(2, np.uint8)


@pytest.mark.parametrize("obs", [[0.5, 1.0], [300, 1], [-1, 1]], ids=str)
def test_what_bytes_do_not_hold_is_refused_and_never_cut_off(obs):
    with PPO(lambda: Bytes(np.array(obs)), **settings()) as ppo:
        with pytest.raises(EnvError, match="step 2.*which uint8 does not keep"):
            ppo.collect()


def test_observations_beyond_their_bounds_are_told_once_and_taken(caplog):
    class Beyond(Calm):
        observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    with PPO(Beyond, **settings()) as ppo, caplog.at_level(logging.WARNING, "fastppo"):
        ppo.learn(64)
    assert caplog.text.count("leaves the bounds") == 1


class BothAtOnce(Calm):
    """Every episode ends by term and trunc at once, after `length` steps."""

    def step(self, action):
        obs, reward, term, trunc, info = super().step(action)
        return obs, reward, term or trunc, term or trunc, info


@pytest.mark.parametrize("length", [1, 3])
def test_an_episode_that_ends_both_ways_at_once_has_no_value_after_it(length):
    with PPO(lambda: BothAtOnce(length), **settings(norm_rewards=False)) as ppo:
        rollout = ppo.collect()
        assert torch.equal(rollout.term, rollout.trunc) and rollout.term.any()
        assert torch.equal(rollout.nxt.isnan(), rollout.term)
        assert_advantages(ppo, rollout)


def test_an_episode_without_end_shows_no_return_rather_than_nan():
    with PPO(lambda: Calm(10**9), run_dir="run", **settings()) as ppo:
        seen = []
        ppo.learn(96, lambda _, stats: seen.append(stats))
    for stats in seen:
        assert "charts/episodic_return" not in stats and np.isfinite([*stats.values()]).all()
    assert {row["charts/episodic_return"] for row in table("run/metrics.csv")} == {""}


# Memory and devices


def failing_update(monkeypatch, fail):
    """Makes the third update call `fail`."""
    real, calls = Learner.update, itertools.count()

    def update(*args):
        if next(calls) == 2:
            fail()
        return real(*args)
    monkeypatch.setattr(Learner, "update", update)


def out_of_memory():
    raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_an_update_without_memory_ends_the_command_with_a_checkpoint(monkeypatch, capsys):
    failing_update(monkeypatch, out_of_memory)
    with nothing_left():
        try:
            code = command("--num_workers=2", "--learner=torch")
        except torch.cuda.OutOfMemoryError:
            code = 1  # of a process
    assert (code, resumed_steps(), summary()["ended"]) == (1, 64, "error")
    ended, _, resume = capsys.readouterr().out.splitlines()[-3:]
    assert ended.startswith("failed ") and resume.startswith("resume ")


def test_an_update_without_memory_is_an_error_whose_fix_is_a_flag(monkeypatch, capsys):
    failing_update(monkeypatch, out_of_memory)
    assert command("--num_workers=0", "--learner=torch") == 1
    flag = re.search(r"\n  fix: .*--(num_m\w+|num_envs|num_steps)=(\d+)", capsys.readouterr().err)
    assert flag


def lost_device(monkeypatch):
    """Makes the third update fail, and every later look at a tensor, as after CUDA's assert."""
    def broken(*_, **__):
        raise RuntimeError("CUDA error: device-side assert triggered")

    def fail():
        for name in ("cpu", "numpy", "tolist", "item", "clone"):
            monkeypatch.setattr(torch.Tensor, name, broken)
        broken()
    failing_update(monkeypatch, fail)


def test_a_device_that_is_lost_leaves_the_last_checkpoint_and_its_own_error(monkeypatch):
    with nothing_left(), monkeypatch.context() as patch:
        lost_device(patch)
        with pytest.raises(RuntimeError, match="device-side assert triggered"):
            command("--num_workers=2", "--learner=torch", "--checkpoint_interval=1e-9")
    assert resumed_steps() == 64


def test_a_device_that_is_lost_ends_the_run_with_its_summary(monkeypatch, capsys):
    with monkeypatch.context() as patch:
        lost_device(patch)
        with contextlib.suppress(RuntimeError):
            command("--num_workers=0", "--learner=torch")
    out, err = capsys.readouterr()
    assert "\nfailed " in out and "cannot be saved" in err
    assert summary()["ended"] == "error"


@pytest.mark.parametrize("how", ["command", "script"])
def test_a_gpu_that_is_lost_leaves_the_policy_that_was_copied_last(monkeypatch, capsys, how):
    def train():
        if how == "command":
            return command("--num_workers=0", "--learner=torch")
        with PPO("CartPole-v1", num_envs=4, num_steps=8, learner="torch", num_workers=0,
                 run_dir="run") as ppo:
            ppo.learn(256)

    def lose():
        def broken(*_, **__):
            raise RuntimeError("CUDA error: device-side assert triggered")
        patch.setattr(Policy, "state_dict", broken)
        broken()

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "can_lose_memory", lambda ppo: True)
        patch.setattr(checkpoint, "COPY_SECONDS", 0.0)
        patch.setattr(torch.Tensor, "cpu", torch.Tensor.clone)  # as it is for a tensor of a GPU
        failing_update(patch, lose)
        with contextlib.suppress(RuntimeError):
            train()
    out, err = capsys.readouterr()
    assert err.count("is lost, and that of step 64 is saved: CUDA error: device-side assert") == 1
    assert how == "script" or "\nfailed " in out and summary()["ended"] == "error"
    assert load("run/model.safetensors").predict(np.zeros(4, "f4")) in (0, 1)


def test_a_checkpoint_that_fails_leaves_the_policy_that_was_saved(monkeypatch, capsys):
    def fail(*_):
        raise RuntimeError("CUDA out of memory")

    def stop():
        monkeypatch.setattr(checkpoint, "write_checkpoint", fail)
        raise KeyError("of the update")

    failing_update(monkeypatch, stop)
    monkeypatch.setattr(checkpoint, "can_lose_memory", lambda ppo: True)
    monkeypatch.setattr(checkpoint, "save_policy", fail)  # only of the weights that were copied
    with pytest.raises(KeyError):
        command("--num_workers=0", "--learner=torch")
    err = capsys.readouterr().err
    assert "no checkpoint is written: CUDA out of memory" in err and "is lost" not in err
    assert load("run/model.safetensors").predict(np.zeros(4, "f4")) in (0, 1)


@pytest.mark.full
def test_a_tiny_dev_shm_is_no_hindrance():
    argv = [*TINY, "--env_name=CartPole-v1", "--num_workers=2", "--num_envs=64", "--num_steps=512",
            "--total_steps=32768"]  # 2 MiB of shared memory
    shell = "mount -t tmpfs -o size=1m none /dev/shm && exec \"$@\""
    if not shutil.which("unshare") or subprocess.run(
            ["unshare", "-m", "sh", "-c", shell, "-", "true"], capture_output=True).returncode:
        pytest.skip("this user may not mount")
    done = subprocess.run(["unshare", "-m", "sh", "-c", shell, "-", sys.executable, MAIN, *argv],
                          capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


FEW_FILES = dict(preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (64, 64)))
MANY_WORKERS = "--num_workers=30", "--num_envs=30"


@pytest.mark.full
def test_too_few_descriptors_are_one_error_with_a_fix_and_leave_nobody():
    code, out, err = finished(*MANY_WORKERS, **FEW_FILES)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: cannot start worker \d+: .* Too many open files.*\n"
                        r"  fix: --num_workers=0; or use fewer workers\n", err)


def test_a_limit_of_processes_is_one_error_and_leaves_nobody(monkeypatch):
    real, calls = subprocess.Popen, itertools.count()

    def limited(*args, **kwargs):
        if next(calls):  # the first is worker 0
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return real(*args, **kwargs)
    monkeypatch.setattr(subprocess, "Popen", limited)
    with nothing_left():
        with pytest.raises(ConfigError, match="cannot start worker 1: .*\n  fix: .*num_workers=0"):
            PPO(Calm, **settings(num_workers=2))


def test_a_limit_of_threads_is_one_error_too(monkeypatch):
    real, calls, kind, before = threading.Thread.start, itertools.count(), None, children()

    def limited(thread):
        if next(calls):
            raise RuntimeError("can't start new thread")
        real(thread)
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of what is left open
        patch.setattr(threading.Thread, "start", limited)
        try:
            PPO(Calm, **settings(num_workers=2)).close()
        except Exception as error:
            kind = type(error)
        gc.collect()
        assert holds(lambda: subprocess._cleanup() or children() <= before)
    assert kind is ConfigError


# Logs


@pytest.mark.parametrize("why", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_table_that_cannot_be_written_is_noted_once_and_training_goes_on(
        why, monkeypatch, capsys):
    def refused(*_, **__):
        raise OSError(why, os.strerror(why))
    with PPO(Calm, **settings()) as ppo:
        alone = weights(ppo.learn(64).learn(128)).clone()
    with PPO(Calm, run_dir="run", **settings()) as ppo:
        ppo.learn(64)
        monkeypatch.setattr(csv_files, "open", refused, raising=False)
        assert torch.equal(weights(ppo.learn(128)), alone)
    noted = [line.partition(";")[0] for line in capsys.readouterr().err.splitlines()]
    assert noted == [f"note: run/{name}.csv: {os.strerror(why)}"
                     for name in ("metrics", "episodes")]
    assert len(table("run/metrics.csv")) == 2 and resumed_steps(Calm) == 128


def test_a_disk_that_is_really_full_costs_a_run_its_table_alone(capsys, monkeypatch):
    monkeypatch.setattr("fastppo.loggers.csv_files.open_regular", os.open)  # the disk is /dev/full
    with PPO(Calm, run_dir="run", **settings()) as ppo:
        fill_disk(ppo.learn(32))
        ppo.learn(96)
    assert capsys.readouterr().err == (
        "note: run/metrics.csv: No space left on device; metrics from step 64 on wait until they"
        " can be written\n")
    assert resumed_steps(Calm) == 96


FAKE_WANDB = """
import threading
free = threading.Event()
def fault(where):
    if FAULT == where + " raises":
        raise OSError(where)
    if FAULT == where + " blocks":
        free.wait()
FAULT = {fault!r}
fault("import")
Settings = Histogram = dict
def setup(settings):
    fault("setup")
def login(**_):
    return True
def init(mode, **_):
    if mode == "online" or FAULT == "init blocks":
        fault("init")
    return Run()
class Run:
    def log(self, row, step):
        fault("log")
    def finish(self):
        fault("finish")
"""


@pytest.fixture(scope="module")
def without_wandb():
    """The weights of a run that logs nowhere."""
    with PPO(Calm, **settings()) as ppo:
        return weights(ppo.learn(96)).clone()


@pytest.mark.parametrize("fault", [
    f"{where} {how}" for where in ("import", "setup", "init", "log", "finish")
    for how in ("raises", "blocks")])
def test_no_fault_of_wandb_changes_a_bit_or_says_more_than_a_line(
        fault, without_wandb, tmp_path, monkeypatch, capsys):
    (tmp_path / "wandb.py").write_text(FAKE_WANDB.format(fault=fault))
    if not fault.startswith("setup"):  # which the mode decides
        monkeypatch.setenv("WANDB_MODE", "online")  # without a look at the network
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(background, "FINISH_SECONDS", 0.2)
    before = set(threading.enumerate())
    with PPO(Calm, run_dir="run", logger="wandb", **settings()) as ppo:
        assert torch.equal(weights(ppo.learn(96)), without_wandb)
    assert len(table("run/metrics.csv")) == 3
    assert capsys.readouterr().err.count("note: ") == 1
    if "blocks" in fault:
        sys.modules["wandb"].free.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)


@pytest.mark.full
def test_wandb_that_blocks_for_a_minute_holds_up_no_process(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "online")
    (tmp_path / "wandb.py").write_text(FAKE_WANDB.format(fault="log blocks"))
    patch = "from fastppo.loggers import background\nbackground.FINISH_SECONDS = 0.2"
    code, out, err = finished("--logger=wandb", "--num_workers=0", "--total_steps=96",
                              "--eval_episodes=1", patch=patch, cwd=tmp_path)
    assert code == 0 and "\nevaluation return" in out
    assert len(err.splitlines()) == 1 and "the run ends without it" in err


# The host


def use(workers, seen):
    """A trainer whose callback raises."""
    def fail(ppo, stats):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        with PPO("CartPole-v1", **settings(num_workers=workers)) as ppo:
            ppo.learn(640, fail)
    seen.append(ppo.step)


@pytest.mark.full
@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_exception_in_a_callback_leaves_nothing_of_the_host_changed(workers, threaded):
    use(0, [])  # what is imported late
    gc.collect()
    before, seen = host(), []
    with nothing_left():
        for _ in range(2):
            if threaded:
                thread = threading.Thread(target=use, args=(workers, seen))
                thread.start()
                thread.join()
            else:
                use(workers, seen)
        gc.collect()
        holds(lambda: threading.active_count() == before["threads"])
    after = host()
    assert seen == [32, 32]
    assert {name for name in before if after[name] != before[name]} == set()


def test_an_exception_in_a_callback_comes_after_a_checkpoint():
    def fail(ppo, stats):
        if ppo.step == 64:
            raise ZeroDivisionError
    with PPO("CartPole-v1", run_dir="run", **settings()) as ppo:
        with pytest.raises(ZeroDivisionError):
            ppo.learn(640, fail)
    assert resumed_steps() == 64


def test_a_trainer_with_workers_lives_in_a_thread_of_the_host():
    with PPO("CartPole-v1", **settings(num_workers=2)) as ppo:
        alone = weights(ppo.learn(64)).clone()

    def live():
        with PPO("CartPole-v1", **settings(num_workers=2)) as ppo:
            made.append(weights(ppo.learn(64)).clone())
    made, thread = [], threading.Thread(target=live)
    with nothing_left():
        thread.start()
        thread.join()
    assert torch.equal(*made, alone)


@pytest.mark.full
def test_without_the_extension_training_needs_no_home_and_no_cache(tmp_path, monkeypatch):
    for name in ("HOME", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/nonexistent")
    patch = "sys.modules['fastppo._kernels'] = sys.modules['fastppo._cells'] = None"
    code, out, err = finished("--total_steps=64", patch=patch)
    assert (code, err) == (0, "") and out.startswith("kernels   numba: no compiled extension")
    assert not [*tmp_path.rglob("*.nb[ic]")] and summary()["steps"] == 64


@pytest.mark.parametrize("t, e", [(1, 1), (0, 3), (3, 0), (0, 0)])
def test_the_smallest_and_the_emptiest_arrays_are_computed_or_refused(t, e):
    rew, val, nxt = np.ones((3, t, e), np.float32)
    term = np.zeros((t, e), bool)
    adv, out = np.full((t, e), 9, np.float32), np.full((t, e), 9.0)
    try:
        kernels.gae(rew, val, nxt, term, term, ~term, 0.5, 1.0, adv)
        kernels.discounted(rew, term, ~term, 0.5, np.zeros(e), out)
    except KernelError:
        assert not t * e
    assert (adv == 0.5).all() and (out == 1.0).all()


# Clocks


def test_no_clock_that_can_be_set_is_read_but_for_a_name():
    wall = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("date", "today")}
    for path in PACKAGE:
        if module_of(path).startswith("benchmark.") or module_of(path) == "cli.run_folder":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in wall, f"{path}:{node.lineno}"


def test_a_clock_that_jumps_changes_nothing(monkeypatch):
    jumps = itertools.cycle([0.0, 4e9, -1e6])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    with PPO("CartPole-v1", run_dir="run", **settings(num_workers=2, step_timeout=60)) as ppo:
        ppo.learn(96)
    for row in table("run/metrics.csv"):
        assert 0 < float(row["charts/SPS"]) < 1e7
        assert 0 <= float(row["time/collect"]) <= 1
