"""A session: everything measured in turns, each time in fresh processes, and what it comes to."""

import contextlib
import json
import os
import pickle
import platform
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

from fastppo import errors
from fastppo.benchmark.measure_one import Measurement
from fastppo.benchmark.options import Bench
from fastppo.benchmark.peers import CHECKED, PEERS
from fastppo.config import default_of
from fastppo.envs.vector_source import check_processes
from fastppo.errors import ConfigError, Error
from fastppo.machine.child_env import THREAD_LIMITS
from fastppo.machine.limits import usable_cores
from fastppo.settings.fixes import flag
from fastppo.update.coefficients import scheduled_value
from fastppo.workers.count import worker_count

SESSION_PARTS = "environments", "acting", "update", "loop"
SCRIPT = str(Path(__file__).with_name("peers.py"))
PATIENCE = 300.0  # seconds that one small iteration of another system may take, and its start
PACKAGE = str(Path(__file__).parent.parent.parent)
WITHOUT_WORKERS = {"run_dir": None, "logger": "none", "progress": "none"}  # a measurement leaves no files


class Key(NamedTuple):
    """What a figure is of."""

    part: str  # one of PARTS, or a peer's name
    processes: int


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

    def ready(self) -> None:
        """Wait until it is warm, or has failed."""
        self.last = self.process.stdout.readline()

    def found(self) -> dict[str, Any]:
        """Have it begin, and wait for what it finds; raises the error that came instead."""
        lines, complaint = self.process.communicate("go\n" if self.last == "ready\n" else None)
        text = (lines or self.last).strip().rpartition("\n")[2]
        if self.process.returncode or not text.startswith("{"):
            raise Error(f"a measurement ended with code {self.process.returncode}\n"
                        + complaint[-4000:].rstrip(), "train once with the same settings")
        found = json.loads(text)
        if "error" in found:
            kind, what, fix = found["error"]
            raise getattr(errors, kind, Error)(what, fix)
        return found


def run_jobs(jobs: Sequence[Measurement]) -> list[dict[str, Any]]:
    """What some jobs find that begin at the same time."""
    children = []
    try:
        for job in jobs:
            children.append(Child(job))
        for child in children:
            child.ready()
        for child in children[:-1]:
            child.process.stdin.write("go\n")
            child.process.stdin.flush()
        return [child.found() for child in reversed(children)]
    finally:
        for child in children:
            child.process.kill()
            child.process.wait()


def peer(name: str, python: str | None, arguments: str, limit: float | None = PATIENCE
         ) -> dict[str, Any]:
    """What peers.py prints about system `name` in its Python, which may be why it `failed`.

    As it has where it takes longer than `limit`, s: a worker of theirs that failed is not always
    noticed. ConfigError where that Python cannot run.
    """
    env = {**os.environ, **dict.fromkeys(THREAD_LIMITS, "1")}
    command = [python or sys.executable, "-W", "ignore", SCRIPT, name, arguments]
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        try:
            process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, process_group=0)
        except OSError as error:
            raise ConfigError(f"cannot run {command[0]}: {error.strerror}",
                              f"--against_python={name}=path/to/venv/bin/python") from error
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"it did not end in {limit:g} s"}
        finally:
            with contextlib.suppress(ProcessLookupError, AttributeError):  # none is left; Windows
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            process.wait()
        out.seek(0)
        text = out.read().rstrip()
    answers = [line for line in text.splitlines()
               if line.startswith(('{"rate"', '{"missing"', '{"failed"'))]
    if process.returncode or not answers:
        last = text.rpartition("\n")[2]
        return {"failed": f"it ended with code {process.returncode}" + f": {last}" * bool(last)}
    return json.loads(answers[-1])


def check_peers(peers: dict[str, str | None], job: Measurement) -> None:
    """Raise ConfigError for the first system that cannot have what is measured.

    Because it is not installed in its Python, because it has no such setting, or because one small
    iteration of it fails.
    """
    check_installed(peers)
    facts = run_jobs([job._replace(part="facts")])[0]
    for name in peers:
        check_takes(name, facts["config"])
    for name, python in peers.items():
        rows = 4 * facts["config"]["num_envs"]
        small = {"num_steps": 4, "rows": rows, "minibatch": rows, "epochs": 1, "iterations": 1}
        found = peer(name, python, json.dumps(sizes_of(facts["config"], job) | small))
        if "failed" in found:
            raise ConfigError(f"{PEERS[name].title} cannot be measured on this:"
                              f" {found['failed']}", f"leave {name} out of --against")


def check_takes(name: str, config: dict[str, Any]) -> None:
    """Raise ConfigError for settings of a resolved `config` that system `name` cannot have."""
    known, others = PEERS[name], {}
    for setting in CHECKED[known.beside]:
        default = "mlp" if setting == "model" else default_of(setting)
        takes = known.takes.get(setting, [])
        if config[setting] != default and takes is not None and config[setting] not in takes:
            others[setting] = default
    if others:
        raise ConfigError(
            f"{known.title} cannot have {' '.join(flag(x, config[x]) for x in others)}",
            f"leave {name} out of --against; or {' '.join(flag(*one) for one in others.items())}")


def check_installed(peers: dict[str, str | None]) -> None:
    """Raise ConfigError for the first system that is not installed in its Python."""
    for name, python in peers.items():
        found = peer(name, python, "--check")
        if "failed" in found:
            raise ConfigError(f"{python or sys.executable}: {found['failed']}",
                              f"--against_python={name}=path/to/venv/bin/python")
        if missing := found["missing"]:
            raise ConfigError(
                f"{PEERS[name].title} cannot be measured: {python or sys.executable} has no"
                f" {' and no '.join(missing)}",
                f"pip install {PEERS[name].packages}; or, where that does not fit beside fastppo,"
                f" --against_python={name}=its/venv/bin/python")


def run_session(settings: dict[str, Any], options: Bench,
        told: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Measure all that `options` ask for of a PPO with `settings`; `told` hears what is under way.

    Returns what table.py shows and --json writes: figures in steps per second, costs in seconds.
    """
    check_counts(options, settings)
    settings = {"seed": 1, **settings, **WITHOUT_WORKERS}
    job = Measurement("", settings, options.seconds, options.iterations)
    if options.peers:
        told("the other systems")
        check_peers(options.peers, job._replace(settings=settings | {"num_workers": 0}))
    limits: list[dict[str, Any]] = []
    at_once: list[float] = []
    rounds: dict[Key, list[dict[str, Any]]] = {}
    for turn in range(options.rounds):
        told(f"round {turn + 1} of {options.rounds}: the limit")
        bare = job._replace(part="limit", settings=settings | {"num_workers": 0})
        limits += run_jobs([bare])
        facts = limits[0]["facts"]
        if usable_cores() > 1 and not facts["native"]:
            beside = run_jobs([bare] * usable_cores())
            at_once.append(sum(limits[-1]["cost"]["step"] / one["cost"]["step"] for one in beside))
        for count in processes(options, settings, facts):
            for part in SESSION_PARTS:
                several = f"{count} process{'es' * (count != 1)}" if count else "the main process"
                told(f"round {turn + 1} of {options.rounds}: {part}, {several}")
                found = run_jobs(plan_jobs(job, part, count, facts))
                rounds.setdefault(Key(part, count), []).append(together(found))
        for name, python in options.peers.items():
            told(f"round {turn + 1} of {options.rounds}: {PEERS[name].title}")
            sizes = json.dumps(sizes_of(facts["config"], job))
            found = peer(name, python, sizes, None if options.iterations else
                         PATIENCE + 100 * options.seconds)
            rounds.setdefault(Key(name, -1), []).append(found)
    return {"rounds": options.rounds, "machine": machine(), "facts": facts, "limits": limits,
            "settings": settings, "at_once": at_once,
            "measured": [{**key._asdict(), "rounds": found} for key, found in rounds.items()]}


def profile_trace(settings: dict[str, Any], options: Bench) -> dict[str, Any]:
    """The trace of some iterations, with the workers that the settings ask for."""
    settings = {"seed": 1, **settings, **WITHOUT_WORKERS}
    job = Measurement("profile", settings, options.seconds, options.iterations)
    return run_jobs([job])[0]["trace"]


def processes(options: Bench, settings: dict[str, Any], facts: dict[str, Any]) -> Sequence[int]:
    """The numbers of processes to measure: those asked for, else 1, 2, 4, ..., usable cores.

    As in training there are at most as many as environments.
    """
    from fastppo.machine import kernels
    envs = facts["config"]["num_envs"]
    cores = min(usable_cores(), envs)
    if facts["native"] or not kernels.COMPILED:
        return [0]
    if asked := asked_for(options, settings):
        return sorted({worker_count(count, envs, bool) for count in asked})
    return sorted({*(1 << i for i in range(cores.bit_length())), cores})


def check_counts(options: Bench, settings: dict[str, Any]) -> None:
    """Raise ConfigError for numbers of processes that cannot be had, as training does."""
    for count in asked_for(options, settings):
        check_processes(settings.get("vec", "auto"), count,
                        "processes" if options.processes else "num_workers")
        worker_count(count, count, bool)


def asked_for(options: Bench, settings: dict[str, Any]) -> Sequence[int]:
    """The numbers of processes that were asked for; none where that is left to us."""
    workers = settings.get("num_workers")
    return options.processes or ([] if workers in (None, "auto") else [workers])


def plan_jobs(job: Measurement, part: str, count: int, facts: dict[str, Any]) -> list[Measurement]:
    """The jobs that measure `part` with `count` processes, to begin together.

    Acting is measured in the main process alone; where every worker acts for itself, in as many of
    them as there are workers, each with its slice of the environments.
    """
    job = job._replace(part=part)
    if part != "acting":
        return [job._replace(settings=job.settings | {"num_workers": count})]
    config, parts = facts["config"], count if facts["config"]["acting"] == "local" else 1
    parts, envs = max(1, parts), config["num_envs"]
    slices = [envs * (w + 1) // parts - envs * w // parts for w in range(parts)]
    return [job._replace(settings=job.settings | {
        "num_workers": 0, "num_envs": size, "num_minibatches": 1}) for size in slices]


def together(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What several processes found that ran side by side: their rates add up."""
    return {**found[0], "rate": sum(one["rate"] for one in found)}


def sizes_of(config: dict[str, Any], job: Measurement) -> dict[str, Any]:
    """What another system must know to run at equal sizes.

    Of a schedule it has the first value. `config` is one that is shown, without passwords: those an
    environment is made with are in the job.
    """
    rows = config["num_envs"] * config["num_steps"]
    same = ("env_name", "max_episode_steps", "frame_stack", "num_envs", "num_steps", "epochs",
            "model", "hidden_sizes", "activation", "shared_critic", "norm_obs", "norm_rewards",
            "reward_scale", "clip_rewards", "gamma", "gae_lambda", "target_kl", "device")
    first = {name: scheduled_value(name, config[name], 1.0) for name in ("lr", "entropy_coef")}
    return {**{name: config[name] for name in same}, **first, **job.lap, "rows": rows,
            "env_kwargs": job.settings.get("env_kwargs") or {}, "cores": usable_cores(),
            "minibatch": rows // config["num_minibatches"]}


def machine() -> dict[str, Any]:
    """What is measured on."""
    name = platform.processor() or platform.machine()
    try:
        pairs = (line.split(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
        name = next(value[0].strip() for key, *value in pairs if key.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or a processor without a name
        pass
    return {"processor": name, "usable_cores": usable_cores(), "system": platform.system()}
