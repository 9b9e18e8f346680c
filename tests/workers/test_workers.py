"""Workers change nothing but the speed, start from anywhere, and die with whom they serve."""

import gc
import io
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import types
import weakref

import pytest
import torch
from envs_for_workers import Counted
from fault_envs import (
    TESTS,
    Calm,
    Faulty,
    Loud,
    Witness,
    alive,
    children,
    guard,
    holds,
    make_workers,
    nothing_left,
    running_workers,
)
from optional_packages import NEEDS_BOX2D, NEEDS_EXTENSION

from fastppo import PPO
from fastppo.envs.make import make_envs, make_factory
from fastppo.errors import ConfigError, WorkerError
from fastppo.machine import limits
from fastppo.workers import protocol, team
from fastppo.workers.protocol import WARMUP, worker_slices

# name: longest episode, steps a rollout; so that episodes end in all ways they can within three.
pytestmark = NEEDS_EXTENSION
TASKS = {
    "CartPole-v1": (20, 32), "Acrobot-v1": (30, 24), "MountainCarContinuous-v0": (30, 24),
    "Pendulum-v1": (30, 24), "LunarLander-v3": (90, 64), "BipedalWalker-v3": (70, 48),
}
NAMES = [pytest.param(name, marks=NEEDS_BOX2D) if name in ("LunarLander-v3", "BipedalWalker-v3")
         else name for name in TASKS]
TERMINATING = ("CartPole-v1", "LunarLander-v3", "BipedalWalker-v3")
QUICK = dict(preset="general", seed=3, num_minibatches=2, epochs=2, hidden_sizes=(16,))


def trained(name, workers, acting, envs=5, learner="auto"):
    """(bytes of everything learnt and of the last rollout, ends seen) after three iterations."""
    limit, steps = TASKS[name]
    ends = set()
    with guard(120), PPO(name, num_envs=envs, num_steps=steps, num_workers=workers, acting=acting,
                         max_episode_steps=limit, norm_rewards=True, learner=learner,
                         **QUICK) as ppo:
        for _ in range(3):
            rollout = ppo.collect()
            ends |= {kind for kind in ("term", "trunc") if getattr(rollout, kind).any()}
            ppo.update(rollout)
        record = [ppo.policy.state_dict()[key].numpy().tobytes() for key in ppo.policy.state_dict()]
        return record + [array.numpy().tobytes() for array in rollout], ends


@pytest.mark.parametrize("name, acting, learner, workers", [
    ("CartPole-v1", "local", "kernel", 2), ("Pendulum-v1", "central", "torch", 4)])
def test_the_number_of_workers_changes_no_bit(name, acting, learner, workers):
    alone, ends = trained(name, 0, acting, learner=learner)
    assert "trunc" in ends
    assert trained(name, workers, acting, learner=learner) == (alone, ends)


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["kernel", "torch"])
@pytest.mark.parametrize("acting", ["local", "central"])
@pytest.mark.parametrize("name", NAMES)
def test_the_number_of_workers_changes_no_bit_anywhere(name, acting, learner):
    alone, ends = trained(name, 0, acting, learner=learner)
    assert ends == ({"term", "trunc"} if name in TERMINATING else {"trunc"})
    for workers in (1, 2, 4):
        assert trained(name, workers, acting, learner=learner) == (alone, ends), workers


@pytest.mark.parametrize("name", NAMES)
def test_an_episode_is_a_pure_function_of_its_seed_and_actions(name):
    def play(env, seed, actions):
        trace = [env.reset(seed=seed)[0].tobytes()]
        for action in actions:
            obs, rew, term, trunc, _ = env.step(action)
            trace.append((obs.tobytes(), float(rew), term, trunc))
            if term or trunc:
                break
        return trace
    used, *fresh = make_envs([make_factory(name)] * 6)
    used.action_space.seed(1)
    for seed, env in enumerate(fresh):
        actions = [used.action_space.sample() for _ in range(150)]
        assert play(used, seed, actions) == play(env, seed, actions)


@pytest.mark.parametrize("envs, workers, parts", [
    (5, 2, [(0, 2), (2, 5)]), (4, 4, [(0, 1), (1, 2), (2, 3), (3, 4)]), (3, 1, [(0, 3)])])
def test_slices_cover_every_environment_once(envs, workers, parts):
    assert worker_slices(envs, workers) == parts


@pytest.mark.parametrize("cores, wanted", [(4, (protocol.SPIN_NS, 7)), (3, (protocol.SPIN_NS, 7)),
                                           (2, (0, 0)), (1, (0, 0))])
def test_workers_that_outnumber_the_cores_sleep_at_once(monkeypatch, cores, wanted):
    monkeypatch.setattr(limits, "usable_cores", lambda: cores)
    assert protocol.spin_times(3, 7) == wanted


@pytest.mark.parametrize("acting, busy", [("local", 2), ("central", 3)])
def test_the_main_process_needs_a_core_too_where_it_acts(trainer, monkeypatch, acting, busy):
    asked, real = [], protocol.spin_times
    monkeypatch.setattr(protocol, "spin_times", lambda *args: asked.append(args) or real(*args))
    trainer(Calm, num_workers=2, acting=acting).collect()
    assert asked == [(busy, 0)]


def test_more_workers_than_environments_are_not_started():
    with PPO(Calm, num_envs=2, num_workers=7, preset="none", num_steps=8, seed=1,
             num_minibatches=2) as ppo:
        assert ppo.config.num_workers == 2


# Starting


SCRIPT = """
import sys; sys.path.append({tests!r})
import numpy as np
import envs, kernels, worker
from fault_envs import Calm, nothing_left, running_workers
print("main is run")
class Own(envs.Mine):
    pass
def local(level):
    class Local(Calm):
        def reset(self, **kwargs):
            assert (envs.LEVEL, kernels.LEVEL, worker.LEVEL) == (7, 8, 9)
            return super().reset(**kwargs)
    return lambda: Local(level)
with nothing_left(), running_workers([envs.Mine, Own, local(3), lambda: Own()], 2) as vec:
    vec.warmup(8)
    print("steps", np.isfinite(vec.team.arena["obs"]).all(), vec.team.arena["length"].max())
"""


def run(*command, **options):
    """The standard output of a Python process that must end well."""
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=120,
                          **options)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


@pytest.fixture
def folder(tmp_path):
    """A user's folder, whose modules have the names of ours."""
    (tmp_path / "envs.py").write_text("from fault_envs import Calm\nLEVEL = 7\n"
                                      "class Mine(Calm):\n    pass\n")
    (tmp_path / "kernels.py").write_text("LEVEL = 8\n")
    (tmp_path / "worker.py").write_text("LEVEL = 9\n")
    (tmp_path / "script.py").write_text(SCRIPT.format(tests=TESTS))
    return tmp_path


@pytest.mark.some(1)
@pytest.mark.parametrize("how", [
    pytest.param(["script.py"], id="script"), pytest.param(["-"], id="stdin"),
    pytest.param(["-c", SCRIPT.format(tests=TESTS)], id="-c", marks=pytest.mark.slow)])
def test_workers_start_without_a_main_guard_and_find_the_users_modules(folder, how):
    out = run(*how, cwd=folder, input=SCRIPT.format(tests=TESTS) if how == ["-"] else None)
    assert out == ["main is run", "steps True 5"]


def test_workers_start_in_a_daemonic_child_process(folder):
    (folder / "child.py").write_text(textwrap.dedent(f"""
        import multiprocessing, sys; sys.path.append({TESTS!r})
        from fault_envs import Calm, running_workers
        def work():
            with running_workers([Calm, Calm], 2) as vec:
                vec.warmup(8)
                print("steps", vec.team.arena["length"].max(), flush=True)
        process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
        process.start()
        process.join()
        """))
    assert run("child.py", cwd=folder) == ["steps 5"]


def test_workers_outlive_the_thread_that_started_them():
    made = []
    thread = threading.Thread(target=lambda: made.append(make_workers([Calm, Calm], 2)))
    thread.start()
    thread.join()
    vec, arena = made[0]
    with nothing_left():
        vec.warmup(8)
        vec.close()
        arena.close()


def test_workers_start_while_torch_has_threads_running():
    class Local(Calm):
        """Defined in a function, as in a notebook."""
    def busy():
        while not done.is_set():
            torch.ones(300, 300) @ torch.ones(300, 300)
    done, thread = threading.Event(), threading.Thread(target=busy)
    thread.start()
    try:
        envs = [Local, lambda: Local(3), Calm]
        with guard(), PPO(envs, num_workers=2, num_steps=8, **QUICK) as ppo:
            assert ppo.learn(24).step == 24
    finally:
        done.set()
        thread.join()


def test_an_environment_may_be_named_by_module_and_callable():
    with PPO("fault_envs:Calm", num_envs=2, num_workers=1, num_steps=8, **QUICK) as ppo:
        assert ppo.collect().obs[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3]


def test_a_factory_that_cannot_travel_is_an_error_and_leaves_no_process():
    lock = threading.Lock()
    before = children()
    with pytest.raises(ConfigError, match="cannot be sent to a worker.*\n.*fix: ") as caught:
        PPO(lambda: Calm(5 if lock else 6), num_envs=2, num_workers=2, num_steps=8, **QUICK)
    assert children() == before and caught.value.__traceback__  # which keeps the trainer alive


def test_a_worker_that_never_reads_its_job_is_reported_however_large_that_is(
        tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(team, "STACK_SECONDS", 0.0)
    large = bytes(1 << 20)
    with nothing_left(), running_workers([lambda: Calm(len(large))], 1, reset_timeout=0.5) as vec:
        with pytest.raises(WorkerError, match=r"starting\) has not answered .*reset_timeout"):
            vec.warmup(1)


# What a worker sees and says


def test_a_worker_has_one_thread_a_library_and_no_credentials_and_no_input(tmp_path, monkeypatch):
    secrets, plain = ("MY_API_KEY", "GH_TOKEN", "A_SECRET", "PGPASSWORD"), (
        "PLAIN", "KEYMAP", "MUJOCO_PY_MJKEY_PATH", "LICENSE_KEY")
    for name in (*secrets, *plain, "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("FASTPPO_WORKER_ENV", "LICENSE_KEY,OTHER_KEY")
    path = str(tmp_path / "seen")
    with running_workers([lambda: Witness(path)], 1) as vec:
        vec.warmup(1)
    seen = json.loads((tmp_path / "seen").read_text())
    assert (seen["OMP_NUM_THREADS"], seen["MKL_NUM_THREADS"]) == ("1", "1")
    assert [seen[name] for name in plain] == ["7"] * 4
    assert [seen[name] for name in secrets] == [None] * 4
    assert (seen["stdin"], seen["cwd"], seen["argv"]) == ("", os.getcwd(), sys.argv)
    assert seen["torch"] is False


def test_a_worker_never_searches_what_was_there_at_its_start_and_the_main_process_as_ever():
    frozen = gc.get_freeze_count()
    for workers in (0, 1):
        with PPO(Counted, num_envs=2, num_workers=workers, num_steps=8, **QUICK) as ppo:
            raw = ppo.collect().raw
        assert (raw > 10_000).all() if workers else (raw == frozen).all()


def test_what_an_environment_prints_comes_out_as_whole_lines(capfd):
    with running_workers([Loud, Loud], 2, steps=100) as vec:
        vec.warmup(100)
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 200
    assert set(err.split("\n")) == {"<" + "-" * 600 + ">", ""}


def test_a_warning_in_a_worker_says_that_it_is_one(capfd):
    class Careful(Calm):
        def step(self, action):
            logging.getLogger("fastppo").warning("careful")
            return super().step(action)
    with running_workers([Careful], 1, steps=1) as vec:
        vec.warmup(1)
    assert capfd.readouterr().err == "warning: careful\n"


def test_even_a_long_line_of_a_worker_comes_out_in_one_piece(capfd):
    with running_workers([lambda: Loud(60_000)] * 2, 2, steps=3) as vec:
        vec.warmup(3)
    assert set(capfd.readouterr().err.split("\n")) == {"<" + "-" * 60_000 + ">", ""}


def test_of_what_a_worker_wrote_the_last_64_kb_are_kept_for_an_error():
    lines = "".join(f"{i:09d}\n" for i in range(20_000))
    for written, kept in ((lines, lines[-65_536:]), ("the end", "the end\n"),
                          ("x" * 65_536 + "y" * 65_535, "y" * 65_535 + "\n")):
        stream = io.BytesIO(written.encode())
        worker = types.SimpleNamespace(process=types.SimpleNamespace(stdout=stream), output="",
                                       echo=False)
        team._copy_output(worker)
        assert worker.output == kept


def test_a_closed_stderr_stops_no_worker(monkeypatch):
    with open(os.devnull, "w") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", closed)
    with guard(), running_workers([Loud], 1, steps=300) as vec:
        vec.warmup(300)


# Ending


ORPHANS = """
import os, signal, sys, time; sys.path.append({tests!r})
from fault_envs import Calm, Faulty, hanging_with_the_gil, make_workers
from fastppo.workers.protocol import WARMUP
def spinning(env):
    while True:
        pass
faults = dict(idle=None, stepping=spinning, gil=hanging_with_the_gil)
fault = faults[sys.argv[1]]
make = (lambda: Faulty(fault, 1, 0)) if fault else Calm
vec, arena = make_workers([make, make], 2)
if fault:
    vec.team.post(WARMUP, 8)
    while any(cell.where[0] != 1 for cell in vec.team.cells.done):
        time.sleep(0.01)
else:
    vec.warmup(8)
print(*[worker.process.pid for worker in vec.team.workers], flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(("doing", "kill"), [
    ("idle", os.kill), ("stepping", os.kill), ("gil", os.kill), ("stepping", os.killpg)])
def test_no_worker_outlives_a_main_process_that_is_killed(doing, kill):
    names = set(os.listdir("/dev/shm"))
    main = subprocess.Popen([sys.executable, "-c", ORPHANS.format(tests=TESTS), doing],
                            stdout=subprocess.PIPE, start_new_session=True)
    with main, guard():
        pids = list(map(int, main.stdout.readline().split()))
        assert len(alive(pids)) == 2
        kill(main.pid, signal.SIGKILL)
        assert holds(lambda: not alive(pids))
    assert holds(lambda: set(os.listdir("/dev/shm")) <= names)


def test_workers_amid_a_step_die_with_the_main_process_though_a_fork_of_it_lives_on():
    fork = "if not os.fork():\n    os.close(1)\n    time.sleep(60)\nprint(*["
    code = ORPHANS.format(tests=TESTS).replace("print(*[", fork)
    main = subprocess.Popen([sys.executable, "-W", "ignore", "-c", code, "stepping"],
                            stdout=subprocess.PIPE, start_new_session=True)
    with main, guard():
        pids = list(map(int, main.stdout.readline().split()))
        assert len(alive(pids)) == 2
        main.kill()
        gone = holds(lambda: not alive(pids))
        os.killpg(main.pid, signal.SIGKILL)
    assert gone


def test_a_main_process_that_dies_while_its_workers_start_leaves_none():
    code = ORPHANS.replace("vec.warmup(8)", "pass").format(tests=TESTS)
    main = subprocess.Popen([sys.executable, "-c", code, "idle"], stdout=subprocess.PIPE)
    with main, guard():
        pids = list(map(int, main.stdout.readline().split()))
        main.kill()
        assert holds(lambda: not alive(pids))


def test_close_in_the_middle_of_a_rollout_returns():
    def endless(env):
        while True:
            pass
    with nothing_left():
        vec, arena = make_workers([lambda: Faulty(endless, 1, 0), Calm], 2)
        vec.team.post(WARMUP, 8)
        with pytest.raises(KeyboardInterrupt):
            timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
            timer.start()
            vec.warmup(8)
        vec.close()
        vec.close()
        arena.close()
        arena.close()


def test_a_trainer_that_nobody_closed_takes_its_workers_with_it():
    with nothing_left():
        ppo = PPO(Calm, num_envs=2, num_workers=2, num_steps=8, **QUICK)
        ppo.learn(16)
        fds, gone = len(os.listdir("/proc/self/fd")), weakref.ref(ppo)
        del ppo
        gc.collect()
        assert gone() is None
    assert holds(lambda: len(os.listdir("/proc/self/fd")) < fds - 4)


def cycle(count):
    """What is open after each of `count` trainers was made, used and closed."""
    found, threads = [], threading.active_count()
    for i in range(count):
        with PPO(Calm, num_envs=2, num_workers=1, num_steps=8, **QUICK) as ppo:
            if i % 2:
                ppo.learn(16)
        del ppo
        gc.collect()
        holds(lambda: threading.active_count() <= threads)
        found.append((len(os.listdir("/proc/self/fd")), threading.active_count(), len(children())))
    return found


@pytest.mark.full
def test_making_and_closing_trainers_leaves_nothing_open():
    found = cycle(4)
    assert set(found[2:]) == {found[2]}


@pytest.mark.slow
def test_making_and_closing_a_hundred_trainers_leaves_nothing_open():
    found = cycle(100)
    assert set(found[2:]) == {found[2]}
