"""Trains under random faults, resuming each time, and compares the result with an undisturbed run.

    python bench/soak.py --minutes=20 --env_name=LunarLander-v3 --total_steps=20M

A command with `--resume=auto` and `--on_worker_failure=restart` is started again and again. After
random times something happens to it from outside:

    main      the main process gets SIGKILL
    worker    a worker gets SIGKILL
    crash     a worker gets SIGSEGV
    hang      a worker gets SIGSTOP, until step_timeout is over
    raise     the next step of some environment raises
    disk      for some seconds no file can be written (RLIMIT_FSIZE 0)

When the run is complete, its weights and its metrics are compared with those of a run of the same
settings that nothing disturbed. Prints what happened, what was left behind (processes, files that
are no checkpoint), the most seconds of training that a kill of the main process cost, the growth
of memory, descriptors, threads and processes within the longest life of a main process, and the
result. Other settings are passed on to the command.
"""

import argparse
import collections
import csv
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import torch

from fastppo import load
from fastppo.runs.checkpoint import checkpoints_in, step_of

HERE = Path(__file__).resolve().parent
SETTLED = 2.0  # seconds after which nothing may be left of a process that was killed
INTERVAL = 0.5  # seconds between checkpoints
FAULT_FILE = "FASTPPO_SOAK_FAULT"  # a file of this name in the environment lets a step raise
FAULTS = {"main": 2, "worker": 3, "crash": 1, "hang": 1, "raise": 2, "disk": 1}  # and weights
# The budget of restarts is for faults that come from within; these come from outside.
LAUNCH = """import sys
from fastppo.workers import team
team.RESTARTS, team.PAUSES = 10**6, (0.0,)
from fastppo.cli.main import main
main(sys.argv[1:])"""


class Raising(gym.Wrapper):
    """Raises where the fault file is found, which is looked for in every 64th step; removes it."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.path, self.steps = Path(os.environ[FAULT_FILE]), 0

    def step(self, action):
        """The environment's own step."""
        self.steps += 1
        if self.steps % 64 == 0 and self.path.exists():
            self.path.unlink(missing_ok=True)
            raise OSError("a fault from outside")
        return self.env.step(action)


def make(env_id: str = "LunarLander-v3") -> gym.Env:
    """The environment of the soak."""
    return Raising(gym.make(env_id))


def command(settings: list[str], folder: Path) -> list[str]:
    """The command that starts a run in `folder`, or continues it."""
    return [sys.executable, "-c", LAUNCH, *settings, f"--run_dir={folder}", "--resume=auto",
            f"--checkpoint_interval={INTERVAL}", "--eval_episodes=0", "--step_timeout=3",
            "--reset_timeout=10", "--on_worker_failure=restart"]


def children(pid: int) -> list[int]:
    """The processes that `pid` has started."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return list(map(int, found.stdout.split()))


def alive(pids: list[int]) -> list[int]:
    """Those of `pids` that are still running."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()
            and "Z (zombie)" not in Path(f"/proc/{pid}/status").read_text()]


def usage(pid: int) -> dict[str, int]:
    """Resident memory in KB, descriptors, threads and children of a process."""
    lines = dict(line.split(":", 1) for line in
                 Path(f"/proc/{pid}/status").read_text().splitlines())
    return {"KB": int(lines["VmRSS"].split()[0]), "threads": int(lines["Threads"]),
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")), "children": len(children(pid))}


def last_row(folder: Path) -> tuple[int, float]:
    """(step, steps per second) of the last whole row of a run's metrics."""
    path = folder / "metrics.csv"
    if not path.exists():
        return 0, 1.0
    rows = [row for row in csv.DictReader(path.open()) if None not in row.values()]
    return (int(rows[-1]["global_step"]), float(rows[-1]["charts/SPS"])) if rows else (0, 1.0)


def newest_checkpoint(folder: Path) -> int:
    """The step of the newest checkpoint of a run."""
    return max(map(step_of, checkpoints_in(folder)), default=0)


class Soak:
    """A run that is disturbed until a deadline; `counts` says what happened."""

    def __init__(self, settings: list[str], folder: Path, rng: random.Random, deadline: float):
        self.settings, self.folder, self.rng, self.deadline = settings, folder, rng, deadline
        self.counts, self.lost = collections.Counter(), 0.0
        self.longest: tuple[int, dict, dict] = (0, {}, {})

    def run(self) -> None:
        """Starts the command until it has ended well."""
        while True:
            log = self.folder.with_suffix(".log").open("a")
            process = subprocess.Popen(command(self.settings, self.folder), stdout=log, stderr=log)
            self._disturb(process)
            if process.returncode == 0:
                break
            self.counts["ended with an error"] += process.returncode > 0
        self.counts["files left"] = len([path for path in self.folder.glob(".*")])

    def _disturb(self, process: subprocess.Popen) -> None:
        """Does something to a process at random times until it ends."""
        samples = []
        while process.poll() is None:
            late = time.monotonic() > self.deadline
            try:
                process.wait(None if late else self.rng.uniform(1.0, 8.0))
                break
            except subprocess.TimeoutExpired:
                if len(workers := children(process.pid)) and last_row(self.folder)[0]:
                    samples.append(usage(process.pid))
                    self._do(process, workers)
        if len(samples) > self.longest[0]:
            settled = samples[len(samples) // 4:]
            self.longest = len(samples), settled[0], settled[-1]

    def _do(self, process: subprocess.Popen, workers: list[int]) -> None:
        """One of FAULTS."""
        fault, = self.rng.choices(list(FAULTS), list(FAULTS.values()))
        self.counts[fault] += 1
        if fault == "main":
            process.kill()
            process.wait()
            step, speed = last_row(self.folder)
            self.lost = max(self.lost, (step - newest_checkpoint(self.folder)) / speed)
            time.sleep(SETTLED)
            self.counts["processes left"] += len(alive(workers))
        elif fault == "raise":
            Path(os.environ[FAULT_FILE]).touch()
        elif fault == "disk":
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
            time.sleep(3.0)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        else:
            number = {"worker": signal.SIGKILL, "crash": signal.SIGSEGV, "hang": signal.SIGSTOP}
            os.kill(self.rng.choice(workers), number[fault])


def weights(folder: Path) -> list[torch.Tensor]:
    """The weights and moments of a run's policy."""
    return list(load(folder / "model.safetensors").state_dict().values())


def metrics(folder: Path) -> list[dict[str, str]]:
    """The rows of a run's metrics, without those that are times or counts of faults."""
    with (folder / "metrics.csv").open() as file:
        return [{name: value for name, value in row.items()
                 if not name.startswith(("time/", "charts/SPS", "faults/"))}
                for row in csv.DictReader(file)]


def main() -> None:
    """Prints the counts, and whether both runs have the same weights and metrics."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--faults_seed", type=int, default=1)
    parser.add_argument("--env_name", default="LunarLander-v3")
    parser.add_argument("--folder", type=Path, default=Path("runs/soak"))
    options, settings = parser.parse_known_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    os.environ[FAULT_FILE] = str((options.folder / "fault").resolve())
    os.environ["PYTHONPATH"] = f"{HERE.parent}:{HERE}"
    settings = ["--seed=1", "--env_name=soak:make", "--preset=lunarlander",
                f'--env_kwargs={{"env_id": "{options.env_name}"}}', *settings]
    soak = Soak(settings, options.folder / "disturbed", random.Random(options.faults_seed),
                time.monotonic() + 60 * options.minutes)
    soak.run()
    Path(os.environ[FAULT_FILE]).unlink(missing_ok=True)
    subprocess.run(command(settings, options.folder / "undisturbed"), check=True,
                   stdout=subprocess.DEVNULL)
    one, two = (weights(options.folder / name) for name in ("disturbed", "undisturbed"))
    equal = len(one) == len(two) and all(map(torch.equal, one, two))
    rows = metrics(options.folder / "disturbed") == metrics(options.folder / "undisturbed")
    print(*(f"{name:20} {count}" for name, count in sorted(soak.counts.items())), sep="\n")
    print(f"lost by a kill       {soak.lost:.2f} s of training at most; checkpoints every"
          f" {INTERVAL} s")
    print(f"longest life         {soak.longest[0]} faults: {soak.longest[1]} -> {soak.longest[2]}")
    print("the weights are     ", "equal" if equal else "DIFFERENT")
    print("the metrics are     ", "equal" if rows else "DIFFERENT")
    raise SystemExit(not (equal and rows) or soak.counts["processes left"]
                     or soak.counts["files left"])


if __name__ == "__main__":
    main()
