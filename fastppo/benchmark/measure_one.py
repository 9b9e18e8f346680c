"""One measurement in a process of its own: `python -m fastppo.benchmark.measure_one`.

The first line of stdin is the pickled Measurement. The process prints `ready` after warming up,
starts at the next line of stdin, and prints a line of JSON: the result, or an error. A timeline of
the processes is a trace file for ui.perfetto.dev [Google, Trace Event Format, 2016].

The limit is the time of a step with nothing but the environment and the network's arithmetic:

    seconds per step = environment + (FLOPs to act + FLOPs to update) / GEMM peak of one core
    limit = cores / seconds per step

A GPU is one device: there the limit is 1 / (environment / cores + FLOPs / GEMM peak of the GPU).
The environment's time is measured in one process, by replaying recorded episodes without
Gymnasium's wrappers, or of compiled environments recorded actions in many rows; the FLOPs are
counted from the network; the peak is that of a matrix product.
"""

import json
import os
import pickle
import sys
import time
from typing import Any, Callable, NamedTuple, Sequence

import gymnasium as gym
import numpy as np
import torch

from fastppo.benchmark.peers import Laps
from fastppo.config import default_of
from fastppo.envs.make import make_envs
from fastppo.errors import Error
from fastppo.machine import kernels, limits
from fastppo.machine.child_process import public_config
from fastppo.machine.kernels import Purpose
from fastppo.ppo import PPO
from fastppo.terminal.banner import network_text
from fastppo.update import arithmetic
from fastppo.workers.protocol import COMMANDS, STAMPS

WRAPPERS = (gym.wrappers.TimeLimit, gym.wrappers.OrderEnforcing, gym.wrappers.PassiveEnvChecker)
Span = tuple[int, str, int, int]  # worker (-1: main process), command, begin, end in monotonic_ns


class Recorder:
    """The episodes of a run by environment, from its rollouts in order."""

    def __init__(self, ppo):
        self.config, self.arena = ppo.config, ppo.arena
        self.to_env = ppo.policy.actions.to_env(ppo.config.agents)
        self.rollouts: list[tuple[np.ndarray, ...]] = []

    def take(self, rollout) -> None:
        """Adds a rollout, before the next one overwrites it."""
        act, ended = rollout.act.numpy().copy(), (rollout.term | rollout.trunc).numpy()
        if (agents := self.config.agents) > 1:  # a step has the actions of all agents
            act = act.reshape(len(act), -1, agents, *act.shape[2:])
            ended = (self.arena["length"] > 0) & ~self.arena["same_game"]
            ended = ended.reshape(len(act), -1, agents).any(2)
        self.rollouts.append((act, ended, rollout.valid.numpy().copy()))

    def episodes(self, e: int) -> list[tuple[int, Any]]:
        """(seed, actions) of all episodes of environment `e`; the last one may be unfinished."""
        act, ended = (np.concatenate([one[i][:, e] for one in self.rollouts]) for i in (0, 1))
        parts = np.split(act, np.flatnonzero(ended) + 1)
        return [(kernels.episode_seed(self.config.seed, Purpose.ENV_SEED, e, number),
                 self.to_env(part)) for number, part in enumerate(parts) if len(part)]


def without_wrappers(env: gym.Env) -> gym.Env:
    """`env` without the wrappers that gymnasium.make puts around every environment."""
    while isinstance(env, WRAPPERS):
        env = env.env
    return env


def time_episodes(env: gym.Env, episodes: Sequence[tuple[int, Any]]) -> tuple[float, float]:
    """Mean seconds of one step and of one reset over `episodes`, each (seed, actions)."""
    step_seconds, reset_seconds = 0.0, 0.0
    for seed, actions in episodes:
        start = time.perf_counter()
        env.reset(seed=seed)
        begin = time.perf_counter()
        for action in actions:
            env.step(action)
        step_seconds += time.perf_counter() - begin
        reset_seconds += begin - start
    steps = sum(len(actions) for _, actions in episodes)
    return step_seconds / steps, reset_seconds / len(episodes)


def env_cost(ppo, recorder: Recorder, seconds: float) -> dict[str, float]:
    """The median seconds of a core for a step and a reset of the recorded episodes, replayed."""
    envs = [without_wrappers(env) for env in make_envs(ppo.source.factories)][::ppo.config.agents]
    costs, end = [], time.perf_counter() + seconds
    while not costs or time.perf_counter() < end:
        e = len(costs) % len(envs)
        costs.append(time_episodes(envs[e], recorder.episodes(e)))
    for env in envs:
        env.close()
    step, reset = np.median(costs, axis=0)
    rows = 1.0 if ppo.config.agents == 1 else ppo.config.agents * np.mean(
        [valid for *_, valid in recorder.rollouts])  # a step of a game is one of all who act
    return {"step": float(step) / rows, "reset": float(reset) / rows}


def vector_cost(ppo, recorder: Recorder, env: gym.vector.VectorEnv, seconds: float, cores: int
                ) -> dict[str, float]:
    """The median cost of a row of a vector environment, which steps on `cores` and autoresets.

    A row in which an environment begins its next episode counts as a step.
    """
    act, _, valid = recorder.rollouts[-1]
    act[~valid] = act[valid][0]  # these steps are resets, but their actions must be legal, too
    rows = [ppo.policy.actions.stacked(recorder.to_env(np.repeat(
        row, env.num_envs // len(row), 0))) for row in act]
    costs, end = [], 0.0
    env.reset(seed=ppo.config.seed)
    while not costs or time.perf_counter() < end:
        start = time.perf_counter()
        for row in rows:
            env.step(row)
        end = end or time.perf_counter() + seconds
        costs.append((time.perf_counter() - start) * cores / (len(rows) * env.num_envs))
    return {"step": float(np.median(costs)), "reset": 0.0}


class Stamps:
    """The commands that a trainer's workers have completed."""

    def __init__(self, ppo):
        self.team = getattr(ppo.collector.vec, "team", None)
        self.arena = ppo.arena
        self.last = self.team.posted.generation if self.team else 0

    def new(self) -> list[Span]:
        """The spans of the commands since the last call, at most the last STAMPS of them."""
        if self.team is None:
            return []
        before, self.last = self.last, self.team.posted.generation
        return [(w, COMMANDS[command], start, end)
                for generation in range(max(before, self.last - STAMPS) + 1, self.last + 1)
                for w, (command, start, end) in enumerate(
                    self.arena["stamps"][:, generation % STAMPS].tolist())]


def events(spans: Sequence[Span], workers: int) -> dict[str, Any]:
    """The trace of `spans`, with a track for each process: 0 is the main one."""
    trace: list[dict[str, Any]] = []
    for i, name in enumerate(["main", *(f"worker {w}" for w in range(workers))]):
        trace += [{"ph": "M", "name": "process_name", "pid": i, "args": {"name": name}},
                  {"ph": "M", "name": "process_sort_index", "pid": i, "args": {"sort_index": i}}]
    zero = min((start for _, _, start, _ in spans), default=0)
    for worker, name, start, end in spans:
        trace.append({"ph": "X", "name": name, "cat": "fastppo", "pid": worker + 1, "tid": 0,
                      "ts": (start - zero) / 1000, "dur": (end - start) / 1000})
    return {"traceEvents": trace, "displayTimeUnit": "ms"}


class Measurement(NamedTuple):
    """One measurement: a part of training, its settings, and the length."""

    part: str  # a name in MEASUREMENTS
    settings: dict[str, Any]  # of the PPO
    seconds: float
    iterations: int | None  # instead of seconds


def measure_loop(ppo, job: Measurement) -> dict[str, Any]:
    """Steps per second of the whole training, and seconds per step of its parts."""
    laps, marks, stamps = Laps(job._asdict()), [], Stamps(ppo)

    def mark(ppo, stats) -> bool:
        rollouts = [end - start for _, name, start, end in stamps.new() if name == "rollout"]
        marks.append((ppo.clock.seconds["collect"], ppo.clock.seconds["update"],
                      sum(rollouts) / max(1, ppo.config.num_workers) / 1e9,
                      ppo.episodes.count, stats.get("losses/epochs", ppo.config.epochs)))
        return not laps.over(ppo.step)
    signal_ready()
    ppo.learn(10**15, [mark])
    marks = np.array(marks)
    collect, update, _, episodes, _ = (marks[-1] - marks[0]) / (laps.laps[-1][1] - laps.laps[0][1])
    busy, epochs = marks[1:, 2].mean() / rollout_rows(ppo), marks[1:, 4].mean()
    return {"rate": laps.rate(), "collect": collect, "update": update, "resets": episodes,
            "busy": busy if ppo.config.num_workers else collect, "epochs": epochs}


def measure_environments(ppo, job: Measurement) -> dict[str, Any]:
    """Steps per second of the environments under random actions, in their processes."""
    laps, vec = Laps(job._asdict()), ppo.collector.vec
    length, valid, steps, resets = ppo.arena["length"], ppo.arena["valid"], 0, 0

    def play() -> None:
        length.fill(0)
        valid.fill(True)
        vec.begin()  # workers ignore a command that equals the last one
        type(vec).warmup(vec, ppo.config.num_steps)  # without copies to a device
    play()  # starts the workers
    signal_ready()
    while not laps.over(steps):
        play()
        steps += int(valid.sum())
        resets += int((length > 0).sum()) + 2 * ppo.config.num_envs
    return {"rate": laps.rate(), "resets": resets / max(1, steps)}


def measure_acting(ppo, job: Measurement) -> dict[str, Any]:
    """Actions per second on recorded observations, in this process."""
    ppo.collect()
    vec = ppo.collector.vec
    actor = getattr(vec, "actor", None) or vec.central
    groups = getattr(vec, "groups", [range(ppo.config.rows)])  # a native vector has one group
    actor.start(0)
    signal_ready()
    laps, steps = Laps(job._asdict()), 0
    while not laps.over(steps):
        for t in range(ppo.config.num_steps):
            for group in groups:
                actor.act(t, group)
        steps += rollout_rows(ppo)
    return {"rate": laps.rate()}


def measure_update(ppo, job: Measurement) -> dict[str, Any]:
    """Steps per second of updates on one recorded rollout."""
    rollout, laps, steps, epochs = ppo.collect(), Laps(job._asdict()), 0, []
    signal_ready()
    while not epochs or not laps.over(steps):
        stats = ppo.update(rollout)
        epochs.append(stats.get("losses/epochs", ppo.config.epochs))
        steps += int(rollout.valid.sum())
    return {"rate": laps.rate(), "epochs": float(np.mean(epochs[1:]))}


def measure_limit(ppo, job: Measurement) -> dict[str, Any]:
    """The costs of environment and network on one core or the GPU, and the facts of the run."""
    recorder, start = Recorder(ppo), time.perf_counter()
    for _ in range(2):
        rollout = ppo.collect()
        recorder.take(rollout)
        ppo.update(rollout)
        if time.perf_counter() - start > job.seconds:
            break
    signal_ready()
    if ppo.source.vector is not None:
        cost = vector_cost(ppo, recorder, ppo.source.vector, job.seconds, limits.usable_cores())
    elif ppo.source.row_bytes and ppo.policy.observer.layout.mask is None:
        one = make_envs(ppo.source.factories[:1])[0].unwrapped
        rows = one.vector(ppo.config.num_envs * -(-1024 // ppo.config.num_envs), **one.options)
        cost = vector_cost(ppo, recorder, rows, job.seconds, 1)
    else:
        cost = env_cost(ppo, recorder, job.seconds)
    act, both = arithmetic.flops(ppo.policy)
    return {"cost": cost, "act_flops": act, "update_flops": both,
            "peak": arithmetic.peak(ppo.config.device, ppo.config.precision),
            "facts": run_facts(ppo)}


def run_facts(ppo) -> dict[str, Any]:
    """The resolved settings, the network, and the versions."""
    policy = ppo.policy
    return {"config": public_config(ppo.config), "network": network_text(policy, ppo.config),
            "parameters": sum(param.numel() for param in policy.parameters()),
            "native": ppo.source.vector is not None, "kernels": kernels.backend(),
            "versions": {"Python": sys.version.split()[0], "torch": torch.__version__,
                         "numpy": np.__version__, "Gymnasium": gym.__version__}}


def measure_profile(ppo, job: Measurement) -> dict[str, Any]:
    """A trace of some iterations after the first one."""
    laps, stamps, spans, over = Laps(job._asdict()), Stamps(ppo), [], False
    signal_ready()
    while not over:
        start = time.monotonic_ns()
        rollout = ppo.collect()
        middle = time.monotonic_ns()
        ppo.update(rollout)
        spans += [(-1, "collect", start, middle), (-1, "update", middle, time.monotonic_ns()),
                  *stamps.new()]
        spans, over = [] if not laps.laps else spans, laps.over(ppo.step)
    return {"trace": events(spans, ppo.config.num_workers)}


MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "environments": measure_environments, "acting": measure_acting, "update": measure_update,
    "loop": measure_loop, "limit": measure_limit, "profile": measure_profile}


def rollout_rows(ppo) -> int:
    """The number of steps of one rollout."""
    return ppo.config.num_steps * ppo.config.rows


def signal_ready() -> None:
    """Prints that warming up is done, and waits for the line that starts the measurement."""
    print("ready", flush=True)
    sys.stdin.readline()


def measure(job: Measurement) -> dict[str, Any]:
    """The result of `job`."""
    with PPO(**{"env_name": default_of("env_name")} | job.settings) as ppo:
        if ppo.config.learner != "kernel":
            limits.keep_freed_memory()  # as the command that trains does
        return MEASUREMENTS[job.part](ppo, job)


def main() -> None:
    """Runs the job from stdin; prints its result, or the error of fastppo that ended it."""
    job = pickle.loads(bytes.fromhex(sys.stdin.readline()))
    sys.path.append(os.getcwd())  # --env_name=my_module:MyEnv
    try:
        found = measure(job)
    except Error as error:
        found = {"error": pickle.dumps(error).hex()}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
