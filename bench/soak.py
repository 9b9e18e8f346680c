"""Trains under random kills, resuming each time, and compares the result with an undisturbed run.

    python bench/soak.py --minutes=20 --env_name=LunarLander-v3 --total_steps=2M

The command `python main.py ... --resume=auto` is started again and again. After a random time the
main process or one of its workers gets SIGKILL. When the run is complete, its weights are compared
with those of a run of the same settings that nothing disturbed, bit for bit. Prints the kills, what
was left behind after each (processes, files that are no checkpoint), and the result. Other settings
are passed on to the command.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from fastppo import load

MAIN = Path(__file__).parents[1] / "main.py"
SETTLED = 2.0  # seconds after which nothing may be left of a process that was killed


def command(settings: list[str], folder: Path) -> list[str]:
    """The command that starts a run in `folder`, or continues it."""
    return [sys.executable, str(MAIN), *settings, f"--run_dir={folder}", "--resume=auto",
            "--checkpoint_interval=0.5", "--eval_episodes=0"]


def children(pid: int) -> list[int]:
    """The processes that `pid` has started."""
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return list(map(int, found.stdout.split()))


def alive(pids: list[int]) -> list[int]:
    """Those of `pids` that are still running."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()
            and "Z (zombie)" not in Path(f"/proc/{pid}/status").read_text()]


def disturbed(settings: list[str], folder: Path, rng: random.Random, deadline: float) -> dict:
    """Runs to the end under random kills until `deadline`; the counts of what happened."""
    counts = {"main killed": 0, "worker killed": 0, "left processes": 0, "left files": 0}
    while True:
        process = subprocess.Popen(command(settings, folder), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        late = time.monotonic() > deadline
        try:
            process.wait(None if late else rng.uniform(0.5, 10.0))
        except subprocess.TimeoutExpired:
            workers = children(process.pid)
            victim = rng.choice([process.pid, *workers])
            counts["main killed" if victim == process.pid else "worker killed"] += 1
            os.kill(victim, signal.SIGKILL)
            process.wait()
            time.sleep(SETTLED)
            counts["left processes"] += len(alive(workers))
        if process.returncode == 0:
            counts["left files"] = len(list(folder.glob(".*")))
            return counts


def weights(folder: Path) -> list[torch.Tensor]:
    """The weights and moments of a run's policy."""
    return list(load(folder / "model.safetensors").state_dict().values())


def main() -> None:
    """Prints the counts, and whether both runs have the same weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--kills_seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("runs/soak"))
    options, settings = parser.parse_known_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    settings = ["--seed=1", *settings]
    counts = disturbed(settings, options.folder / "disturbed", random.Random(options.kills_seed),
                       time.monotonic() + 60 * options.minutes)
    subprocess.run(command(settings, options.folder / "undisturbed"), check=True,
                   stdout=subprocess.DEVNULL)
    one, two = (weights(options.folder / name) for name in ("disturbed", "undisturbed"))
    equal = len(one) == len(two) and all(map(torch.equal, one, two))
    print(*(f"{name} {count}" for name, count in counts.items()), sep="\n")
    print("the weights are", "equal" if equal else "DIFFERENT")
    raise SystemExit(not equal or counts["left processes"] or counts["left files"])


if __name__ == "__main__":
    main()
