"""Environments that go wrong on purpose, workers without torch, and who is alive."""

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

ACTIONS = gym.spaces.Discrete(2)
TESTS = str(Path(__file__).parent)


class Calm(gym.Env):
    """Observations count steps; episodes end after `length`, in turn by term and by trunc."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = ACTIONS

    def __init__(self, length: int = 5):
        self.length, self.steps, self.episodes = length, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.episodes = 0, self.episodes + 1
        return self.observed(), {}

    def observed(self):
        """A vector that differs at every step of every episode."""
        return np.array([self.steps, self.np_random.random()], np.float32)

    def step(self, action):
        self.steps += 1
        ends, cut = self.steps >= self.length, self.episodes % 2 == 0
        return self.observed(), float(action), ends and not cut, ends and cut, {}


class Seeded(Calm):
    """Says in its observation which seed began the episode, in two halves that float32 keeps."""

    def __init__(self):
        super().__init__(4)

    def reset(self, *, seed=None, options=None):
        self.seed = seed
        return super().reset(seed=seed)

    def observed(self):
        return np.array(divmod(self.seed, 1 << 16), np.float32)


class Faulty(Calm):
    """Calm until step `at` of episode `episode` (both from 0), where `fault(self)` is the answer.

    at -1: the fault happens in that episode's reset.
    """

    def __init__(self, fault, at: int = 2, episode: int = 1, length: int = 5):
        super().__init__(length)
        self.fault, self.at, self.episode = fault, at, episode

    def due(self, step: int) -> bool:
        """Whether the fault is to happen now; in training's own episodes only, not in warm-up."""
        return step == self.at and self.episodes == self.episode + 1

    def reset(self, **kwargs):
        reply = super().reset(**kwargs)
        return self.fault(self) if self.due(-1) else reply

    def step(self, action):
        if self.due(self.steps):
            return self.fault(self)
        return super().step(action)


class Witness(Calm):
    """In a worker, writes to the file `path` what it finds around itself."""

    def __init__(self, path):
        super().__init__()
        if "fastppo.ppo" in sys.modules:
            return
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MY_API_KEY", "GH_TOKEN", "A_SECRET",
                 "PGPASSWORD", "PLAIN", "KEYMAP", "MUJOCO_PY_MJKEY_PATH", "LICENSE_KEY")
        found = {name: os.environ.get(name) for name in names}
        Path(path).write_text(json.dumps({
            **found, "stdin": sys.stdin.read(), "cwd": os.getcwd(), "argv": sys.argv,
            "torch": "torch" in sys.modules}))


class Loud(Calm):
    """Prints at every step a line of `width` dashes, in two parts."""

    def __init__(self, width: int = 600):
        super().__init__()
        self.half = "-" * (width // 2)

    def step(self, action):
        print("<" + self.half, end="")
        print(self.half + ">")
        return super().step(action)


def observing(obs):
    """The fault of answering a step with the observation `obs`."""
    return lambda env: (obs, 0.0, False, False, {})


def paying(rew):
    """The fault of answering a step with the reward `rew`."""
    return lambda env: (np.zeros(2, np.float32), rew, False, False, {})


def raising(error):
    """The fault of raising what `error()` makes."""
    def fault(env):
        raise error()
    return fault


class TwoPart(Exception):
    """Cannot be built again from its text alone."""

    def __init__(self, part, other):
        super().__init__(f"{part} and {other}")


class Unpicklable(Exception):
    """Holds what no pickle takes, and cannot even say what it is."""

    def __init__(self):
        self.held = lambda: sys._getframe()

    def __str__(self):
        raise RuntimeError("no words")


class Beyond(BaseException):
    """No Exception at all."""


def endless(env):
    """Recursion without end."""
    return endless(env)


def killed_by(number: int):
    """The fault of dying by a signal."""
    return lambda env: os.kill(os.getpid(), number)


def leaving(env):
    """Leave without a word, as native code may."""
    os._exit(3)


def hanging(env):
    """Wait for ever, as Python code may."""
    time.sleep(3600)


def hanging_with_the_gil(env):
    """Wait for ever inside a call that never gives up the interpreter."""
    ctypes.PyDLL(None).sleep(3600)


def make_workers(factories, workers: int, steps: int = 8, **timeouts):
    """Workers on `factories` and their arena, without torch: only warmup can be asked of them."""
    from fastppo.machine.shared_memory import Arena
    from fastppo.spaces.actions import ActionMapping
    from fastppo.spaces.observations import ObservationLayout
    from fastppo.stepping.actors import LocalActor
    from fastppo.stepping.environments import NO_RULES
    from fastppo.stepping.rollout_recorder import infos_spec
    from fastppo.vecenv import Serial
    from fastppo.workers.protocol import protocol_spec
    from fastppo.workers.team import WorkerTeam
    from fastppo.workers.worker import make_worker_serial
    from fastppo.workers.worker_vecenv import WorkerVecEnv
    envs, groups = len(factories), [range(len(factories))]
    te = (steps, envs)
    arena = Arena({"obs": ("<f4", (steps + 1, envs, 2)), "fin": ("<f4", (envs, 2)),
                   "act": ("<i8", te), "raw": ("<f4", te), "term": ("|b1", te),
                   "trunc": ("|b1", te), "total": ("<f8", te), "length": ("<i8", te),
                   "logp": ("<f4", te), "val": ("<f4", te), "nxt": ("<f4", te),
                   "rows": ("|u1", (envs, 0)), "valid": ("|b1", te),
                   "same_game": ("|b1", te), "acting": ("|b1", (steps + 1, envs)),
                   "duels": ("<f4", (0, envs, 2)), "against": ("|i1", (steps + 1, envs)),
                   "frames": ("|u1", (0, 0)), "stacks": ("<i8", (0, envs, 0)),
                   "times": ("<f8", (envs + 1, 3)),
                   **infos_spec(workers), **protocol_spec(workers, 1)})
    arena["length"].fill(0)
    seen, acts = ObservationLayout(Box(-np.inf, np.inf, (2,)), ACTIONS), ActionMapping(ACTIONS)
    make = partial(make_worker_serial, groups, None, seen, acts, 7, NO_RULES, None, 0, 1, Serial,
                   LocalActor)
    timeouts = {"step_timeout": 0, "reset_timeout": 0} | timeouts
    team = WorkerTeam(make, factories, workers, arena, 1, **timeouts)
    return WorkerVecEnv(team, steps, None), arena


@contextlib.contextmanager
def running_workers(factories, workers: int, steps: int = 8, **timeouts):
    """make_workers's Workers, closed at the end."""
    vec, arena = make_workers(factories, workers, steps, **timeouts)
    try:
        yield vec
    finally:
        vec.close()
        arena.close()


def children(pid: int | None = None) -> set[int]:
    """The processes whose parent is `pid` (default: this one), zombies too."""
    parent, found = pid or os.getpid(), set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) == parent:
                found.add(int(name))
    return found


def alive(pids) -> list[int]:
    """Those of `pids` that run or sleep; zombies do not count."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            if file.read().rpartition(")")[2].split()[0] not in "ZX":
                found.append(pid)
    return found


def holds(condition, seconds: float = 60.0) -> bool:
    """Whether `condition()` comes true within a guard of some seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@contextlib.contextmanager
def nothing_left():
    """Fails where the block leaves a process or named shared memory, or hangs."""
    before, names = children(), set(os.listdir("/dev/shm"))
    with guard():
        yield
    assert holds(lambda: children() <= before), children() - before
    # Other programs' names come and go: ours would stay.
    assert holds(lambda: set(os.listdir("/dev/shm")) <= names), set(os.listdir("/dev/shm")) - names


@contextlib.contextmanager
def guard(seconds: int = 60):
    """Turn a deadlock into a failure."""
    def late(number, frame):
        raise AssertionError(f"still at it after {seconds} s")
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
