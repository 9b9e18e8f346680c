"""Faults of environments, kills of main processes, and closing, a hundred times each, counted.

Once each of them is in test_faults.py, test_workers.py and test_vector_env.py.
"""

import contextlib
import gc
import os
import pty
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from fault_envs import (
    TESTS,
    Beyond,
    Calm,
    Faulty,
    TwoPart,
    Unpicklable,
    alive,
    children,
    guard,
    holds,
    killed_by,
    leaving,
    make_workers,
    nothing_left,
    observing,
    paying,
    raising,
)

from fastppo import make_vec
from fastppo.errors import Error

pytestmark = pytest.mark.faults
NAN = np.array([0.0, np.nan], np.float32)
SECONDS = 5  # a guard: a fault is an error within 0.1 s
GONE = 2.0  # seconds after which nothing may be left of a main process that was killed


def fds():
    """The number of open file descriptors."""
    return len(os.listdir("/proc/self/fd"))


def resident():
    """MB of memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


# ---- faults ------------------------------------------------------------------------------------

ANYWHERE = {
    "percent": (raising(lambda: ValueError("100 %s %d %")), "ValueError: 100 %s %d %"),
    "two parts": (raising(lambda: TwoPart(1, 2)), "TwoPart: 1 and 2"),
    "unpicklable": (raising(Unpicklable), "Unpicklable"),
    "10 MB": (raising(lambda: ValueError("x" * 10_000_000)), "ValueError: xxxx"),
    "sys.exit": (raising(lambda: SystemExit(3)), "SystemExit: 3"),
    "BaseException": (raising(lambda: Beyond("far")), "Beyond: far"),
    "SIGKILL": (killed_by(signal.SIGKILL), "killed by SIGKILL"),
    "SIGSEGV": (killed_by(signal.SIGSEGV), "killed by SIGSEGV"),
    "SIGBUS": (killed_by(signal.SIGBUS), "killed by SIGBUS"),
    "_exit": (leaving, "exited with code 3"),
    "nothing": (lambda env: None, "return (obs, "),
}
IN_STEP = {
    "shape": (observing(np.zeros(3, np.float32)), "observation has shape (3,)"),
    "NaN": (observing(NAN), "observation[1] is nan"),
    "no reward": (paying(None), "reward is None"),
}
IN_RESET = {
    "shape": (lambda env: (np.zeros(3, np.float32), {}), "observation has shape (3,)"),
    "NaN": (lambda env: (NAN, {}), "observation[1] is nan"),
}
FAULTS = {**{f"step, {name}": (2, *fault) for name, fault in (ANYWHERE | IN_STEP).items()},
          **{f"reset, {name}": (-1, *fault) for name, fault in (ANYWHERE | IN_RESET).items()}}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_worker_is_one_error_each_time_and_leaves_nothing(name, capfd):
    at, fault, text = FAULTS[name]
    caught, open_before, threads = 0, fds(), threading.active_count()
    for _ in range(100):
        with nothing_left():
            vec, arena = make_workers([Calm, lambda: Faulty(fault, at)], 2)
            assert holds(vec.team.is_idle)
            with guard(SECONDS):
                with pytest.raises(Error) as error:
                    vec.warmup(8)
                vec.close()
            arena.close()
        said = str(error.value)
        assert text in said and said.count("\n  fix: ") == 1 and len(said) < 70_000
        assert said.count("environment 1 ") == 1 or said.count("(environment 1, ") == 1
        caught += 1
        del error, vec, arena
    assert caught == 100
    gc.collect()
    assert (fds(), threading.active_count()) == (open_before, threads)
    capfd.readouterr()  # what the workers had to say


# ---- kills of the main process -----------------------------------------------------------------

MAIN = """
import ctypes, fcntl, sys, termios, time; sys.path.append({tests!r})
from fault_envs import Calm, Faulty, hanging_with_the_gil, make_workers
from fastppo.workers.protocol import WARMUP
def spinning(env):
    while True:
        pass
doing = sys.argv[1]
if doing == "at a terminal":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if doing == "starting":
    print("ready", flush=True)
fault = {{"stepping": spinning, "in a group": spinning, "in C": hanging_with_the_gil}}.get(doing)
make = (lambda: Faulty(fault, 1, 0)) if fault else Calm
vec, arena = make_workers([make, make], 2)
if fault:
    vec.team.post(WARMUP, 8)
    while any(cell.where[0] != 1 for cell in vec.team.cells.done):
        time.sleep(0.001)
else:
    vec.warmup(8)
print("ready", flush=True)
if doing == "in C":
    ctypes.PyDLL(None).sleep(60)
if fault:
    vec.warmup(8)  # the same command: waits for its end
time.sleep(60)
"""
ENDS = {"idle": os.kill, "stepping": os.kill, "starting": os.kill, "in C": os.kill,
        "in a group": os.killpg, "at a terminal": None}


def in_session(leader):
    """The processes of a session that run or sleep."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[3]) == leader:
                found.append(int(name))
    return alive(found)


def main_process_ends(doing, seconds):
    """The code with which a main process ends, by a signal or as its terminal closes.

    That happens some `seconds` after it began to do what it does. Nothing may be left of it.
    """
    ours, theirs = pty.openpty()
    main = subprocess.Popen([sys.executable, "-c", MAIN.format(tests=TESTS), doing], stdin=theirs,
                            stderr=theirs, stdout=subprocess.PIPE, start_new_session=True)
    os.close(theirs)
    with main, guard():
        assert main.stdout.readline() == b"ready\n"
        assert doing == "starting" or len(in_session(main.pid)) == 3
        time.sleep(seconds)
        if ENDS[doing]:
            ENDS[doing](main.pid, signal.SIGKILL)
        os.close(ours)
        assert holds(lambda: not in_session(main.pid), GONE)
    return main.returncode


@pytest.mark.parametrize("doing", ENDS)
def test_nothing_is_left_of_a_main_process_that_ends_at_any_instant(doing):
    names, rng = set(os.listdir("/dev/shm")), random.Random(1)
    codes = [main_process_ends(doing, rng.uniform(0.0, 0.2)) for _ in range(20)]
    assert codes == [-(signal.SIGKILL if ENDS[doing] else signal.SIGHUP)] * 20
    assert holds(lambda: set(os.listdir("/dev/shm")) <= names)


# ---- making and closing ------------------------------------------------------------------------

def test_a_thousand_vector_environments_leave_nothing_open_and_no_memory():
    found, memory = [], []
    for i in range(1010):
        with guard():
            env = make_vec([Calm, Calm], num_workers=1)
            env.reset(seed=i)
            assert env.step([0, 1])[1].tolist() == [0.0, 1.0]
            env.close()
            del env
        found.append((fds(), threading.active_count(), len(children())))
        memory.append(resident())
    assert set(found[10:]) == {found[9]}
    assert memory[-1] - memory[9] < 20, memory[9::100]
