"""Compares one run on several processes of torchrun, some cores each, with a run of one process.

    python bench/ranks.py --rounds 3                                       # LunarLander, two ranks
    python bench/ranks.py --rounds 3 --num_envs=256 --num_minibatches=4    # other settings follow
    python bench/ranks.py --ranks 4 --cores 16 --device=cuda --env_name=PongNoFrameskip-v4 \\
        --preset=none --model=cnn --num_envs=512 --num_steps=32 --total_steps=2m   # on four GPUs

Each round runs both in turns, one process on the first `cores` cores and the others on as many
each, and takes the steps per second of the whole run from summary.json, without start-up.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def speed(ranks: int, cores: int, settings: list[str]) -> float:
    """Steps per second of a run on `ranks` processes with `cores` cores each."""
    start = [sys.executable] if ranks == 1 else [
        str(Path(sys.executable).parent / "torchrun"), "--standalone", f"--nproc_per_node={ranks}"]
    with tempfile.TemporaryDirectory() as folder:
        words = [*start, str(ROOT / "main.py"), *settings, "--seed=1", "--eval_episodes=0",
                 "--progress=none", f"--run_dir={folder}/run",
                 f"--num_workers={0 if ranks == cores == 1 else cores}"]
        subprocess.run(["taskset", "-c", f"0-{ranks * cores - 1}", *words], check=True, cwd=folder,
                       stdout=subprocess.DEVNULL)
        return json.loads(Path(folder, "run/summary.json").read_text())["steps_per_second"]


def main() -> None:
    """Print the speeds of every round, and the ratio of the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--cores", type=int, default=1, help="of each rank")
    options, settings = parser.parse_known_args()
    settings = ["--env_name=LunarLander-v3", "--total_steps=200k", *settings]
    found = []
    for _ in range(options.rounds):
        found.append([speed(count, options.cores, settings) for count in (1, options.ranks)])
        print("{:10,.0f} {:10,.0f} steps/s".format(*found[-1]), flush=True)
    one, several = map(statistics.median, zip(*found))
    print(f"{options.ranks} ranks: {several / one:.2f} of one")


if __name__ == "__main__":
    main()
