"""Measures all parts in turns, each time in fresh processes."""

import contextlib
import json
import os
import pickle
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Sequence

from fastppo.benchmark.measure_one import Measurement
from fastppo.benchmark.peers import ATARI_TAKES, PEERS
from fastppo.config import default_of, having
from fastppo.errors import ConfigError, Error, Set
from fastppo.machine import kernels, limits
from fastppo.machine.child_process import THREAD_LIMITS
from fastppo.machine.stderr import status_while
from fastppo.update.schedules import scheduled_value
from fastppo.workers.protocol import worker_slices

Round = dict[tuple[str, int], dict[str, Any]]  # results by part and number of processes
SESSION_PARTS = "environments", "acting", "update", "loop"
SCRIPT = str(Path(__file__).with_name("peers.py"))
PEER_TIMEOUT = 300.0  # seconds for another system's start and one small iteration
ROUNDS = 3
SESSION_SECONDS = 120.0  # after which there are fewer rounds, unless their number is given
PACKAGE = str(Path(__file__).parent.parent.parent)
# Settings that change the cost of an iteration, and that not all systems support beside their
# defaults: these and the wrappers of environments.
CHECKED = ("model", "activation", "layer_norm", "rnn", "distribution", "sde", "actor_keys",
           "critic_keys", "norm_values", "clip_rewards", "recompute_advantages", "target_kl",
           "device")


class Child:
    """A fresh process that measures one thing."""

    def __init__(self, job: Measurement):
        env = {**os.environ, **dict.fromkeys(THREAD_LIMITS, "1")}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [PACKAGE, env.get("PYTHONPATH")]))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", "-m", "fastppo.benchmark.measure_one"], env=env,
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.process.stdin.write(pickle.dumps(job).hex() + "\n")
        self.process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Starts the measurement and waits for its result; raises the error that ended it."""
        lines, stderr = self.process.communicate("go\n" if self.last == "ready\n" else None)
        text = (lines or self.last).strip().rpartition("\n")[2]
        if self.process.returncode or not text.startswith("{"):
            raise Error(f"a measurement ended with code {self.process.returncode}\n"
                        + stderr[-4000:].rstrip(), "train once with the same settings")
        found = json.loads(text)
        if "error" in found:
            raise pickle.loads(bytes.fromhex(found["error"]))
        return found


def run_jobs(jobs: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The results of some jobs that start at the same time."""
    children = []
    try:
        for job in jobs:
            children.append(Child(job))
        for child in children:
            child.last = child.process.stdout.readline()  # when it is warm, or has failed
        for child in children[:-1]:
            child.process.stdin.write("go\n")
            child.process.stdin.flush()
        return [child.result() for child in reversed(children)]
    finally:
        for child in children:
            child.process.kill()
            child.process.wait()


def peer(name: str, python: str | None, arguments: str, limit: float | None = PEER_TIMEOUT
         ) -> dict[str, Any]:
    """The result that peers.py prints about system `name` in its Python; `failed` is a reason.

    It has failed, too, after `limit` seconds: a system does not always notice that a worker of its
    own died.
    """
    env = {**os.environ, **dict.fromkeys(THREAD_LIMITS, "1")}
    command = [python or sys.executable, "-W", "ignore", SCRIPT, name, arguments]
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        try:
            process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, process_group=0)
        except OSError as error:
            return {"failed": str(error)}
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"it did not end in {limit:g} s"}
        finally:
            with contextlib.suppress(ProcessLookupError, AttributeError):  # ended already; Windows
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
        out.seek(0)
        text = out.read().rstrip()
    answers = [line for line in text.splitlines() if line.startswith(('{"rate"', '{"failed"'))]
    if process.returncode or not answers:
        last = text.rpartition("\n")[2]
        return {"failed": f"it ended with code {process.returncode}" + f": {last}" * bool(last)}
    return json.loads(answers[-1])


def check_takes(name: str, config: dict[str, Any]) -> None:
    """Raises ConfigError for settings of a resolved `config` that system `name` does not have."""
    system, defaults = PEERS[name], {}
    takes = system.takes | (ATARI_TAKES if config["preprocessing"] == "atari" else {})
    for setting in (*having("wrapper"), *CHECKED):
        default = "mlp" if setting == "model" else default_of(setting)
        values = takes.get(setting, [])
        if config[setting] != default and values is not None and config[setting] not in values:
            defaults[setting] = default
    if defaults:
        given = ", ".join(f"{setting}={config[setting]}" for setting in defaults)
        raise ConfigError(f"{system.title} does not support {given}", Set(**defaults))


def without_output(settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` with a seed, for runs that write and show nothing."""
    return {"seed": 1, **settings, "run_dir": None, "logger": "none", "progress": "none",
            "video_interval": None}


def run_session(settings: dict[str, Any], options: Any) -> dict[str, Any]:
    """Measures a PPO with `settings` as `options` say, and shows on stderr what is measured.

    Returns the session that figures.session_report takes; after a KeyboardInterrupt that of the
    rounds that are complete.
    """
    job = Measurement("", without_output(settings), options.seconds, options.iterations)
    rounds = measure_rounds(job, options)
    return {"rounds": len(rounds), "machine": machine(), "facts": rounds[0]["limit", 0]["facts"],
            "limits": [one.pop(("limit", 0)) for one in rounds],
            "measured": [{"part": part, "processes": count,
                          "rounds": [one[part, count] for one in rounds]}
                         for part, count in rounds[0]]}


def measure_rounds(job: Measurement, options: Any) -> list[Round]:
    """The rounds of a session: as many as are asked for, or as fit into SESSION_SECONDS.

    The first one is always complete; KeyboardInterrupt if it is interrupted.
    """
    rounds: list[Round] = []
    most, begun = options.rounds or ROUNDS, time.monotonic()
    while len(rounds) < most:
        try:
            rounds.append(measure_round(job, options, f"round {len(rounds) + 1} of {most}"))
        except KeyboardInterrupt:
            if not rounds:
                raise
            break
        each = (time.monotonic() - begun) / len(rounds)
        if options.rounds is None and each * (len(rounds) + 1) > SESSION_SECONDS:
            break
    return rounds


def measure_round(job: Measurement, options: Any, name: str) -> Round:
    """Measures everything once, in the round `name`."""
    with status_while(f"{name}: the limit"):
        limit, = run_jobs([job._replace(part="limit", settings=job.settings | {"num_workers": 0})])
    facts, found = limit["facts"], {("limit", 0): limit}
    for system in options.peers:
        check_takes(system, facts["config"])
    for count in processes(options, job.settings, facts):
        where = f"{count} process{'es' * (count != 1)}" if count else "the main process"
        for part in SESSION_PARTS:
            with status_while(f"{name}: {part}, {where}"):
                rates = run_jobs(plan_jobs(job, part, count, facts))
            found[part, count] = {**rates[0], "rate": sum(one["rate"] for one in rates)}
    for system, python in options.peers.items():
        with status_while(f"{name}: {PEERS[system].title}"):
            found[system, -1] = peer(
                system, python, json.dumps(sizes_of(facts["config"], job)),
                None if options.iterations else PEER_TIMEOUT + 100 * options.seconds)
    return found


def profile_trace(settings: dict[str, Any], options: Any) -> dict[str, Any]:
    """The trace of some iterations, with the number of workers of the settings."""
    job = Measurement("profile", without_output(settings), options.seconds, options.iterations)
    return run_jobs([job])[0]["trace"]


def processes(options: Any, settings: dict[str, Any], facts: dict[str, Any]) -> Sequence[int]:
    """The numbers of processes to measure: those chosen, else 1, 2, 4, ..., usable cores.

    At most one per environment, as in training.
    """
    envs, workers = facts["config"]["num_envs"], settings.get("num_workers")
    if facts["native"] or not kernels.COMPILED:
        return [0]
    if options.processes or workers not in (None, "auto"):
        return sorted({min(count, envs) for count in options.processes or [workers]})
    cores = min(limits.usable_cores(), envs)
    return sorted({*(1 << i for i in range(cores.bit_length())), cores})


def plan_jobs(job: Measurement, part: str, count: int, facts: dict[str, Any]) -> list[Measurement]:
    """The jobs that measure `part` with `count` processes, to be started together.

    Central acting is measured in one process; local acting in one process per worker, each with its
    slice of the environments.
    """
    job = job._replace(part=part)
    if part != "acting":
        return [job._replace(settings=job.settings | {"num_workers": count})]
    parts = max(1, count) if facts["config"]["acting"] == "local" else 1
    return [job._replace(settings=job.settings | {
        "num_workers": 0, "num_envs": last - first, "num_minibatches": 1})
        for first, last in worker_slices(facts["config"]["num_envs"], parts)]


def sizes_of(config: dict[str, Any], job: Measurement) -> dict[str, Any]:
    """The settings and sizes for another system; of a schedule the first value.

    `config` is a public one, without passwords; the environment's own arguments are in the job.
    """
    rows = config["num_envs"] * config["num_steps"]
    first = {name: scheduled_value(name, config[name], 1.0) for name in ("lr", "entropy_coef")}
    return {**config, **first, "seconds": job.seconds, "iterations": job.iterations, "rows": rows,
            "env_kwargs": job.settings.get("env_kwargs") or {}, "cores": limits.usable_cores(),
            "minibatch": rows // config["num_minibatches"]}


def machine() -> dict[str, Any]:
    """The processor, its usable cores, and the operating system."""
    return {"processor": limits.cpu_model(), "usable_cores": limits.usable_cores(),
            "system": platform.system()}
