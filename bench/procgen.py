"""Trains IMPALA on 200 levels of a Procgen game, and scores it on levels that it has not seen.

    python bench/procgen.py ../procgen --core_minutes=240 --write

The settings are those of the preset `procgen`. Started again with the same folder it goes on where
it stopped, from the last checkpoint; the minutes are CPU time of training, all starts together, so
that other programs do not count. When they are over it plays episodes on the levels of training, on
all levels (2**31, among which those 200 do not count), and on all levels with random actions.
Prints the result as JSON, and with `--write` writes it to bench/procgen.json. It needs EnvPool, and
EnvPool's Procgen needs Qt 5 (Debian: libqt5gui5).
"""

import argparse
import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from fastppo import PPO
from fastppo.machine import limits
from fastppo.runs.checkpoint import checkpoints_in
from fastppo.settings.known_names import GLOBAL_STEP, MEAN_RETURN, METRICS_FILE, MODEL_FILE
from fastppo.vector.source import EnvPoolVector

HERE = Path(__file__).resolve().parent
SPENT = "core_seconds.txt"  # of training, in the run's folder
SEEN, ALL = {"num_levels": 200, "start_level": 0}, {"num_levels": 0, "start_level": 0}
POINTS = 12  # of the curve


def train(folder: Path, env_name: str, minutes: float, seed: int) -> None:
    """Trains until the CPU time is over, from the last checkpoint if there is one."""
    spent = folder / SPENT
    before = float(spent.read_text()) if spent.exists() else 0.0
    if before >= 60 * minutes:
        return
    found = folder.is_dir() and checkpoints_in(folder)
    make = PPO.resume(folder, env_name, progress="lines") if found else PPO(
        env_name, seed=seed, env_kwargs=SEEN, run_dir=folder, progress="lines")
    begun = time.process_time()

    def goes_on(ppo, stats: dict[str, float]) -> bool:
        seconds = before + time.process_time() - begun
        spent.write_text(f"{seconds:.0f}")
        ppo.save(folder / MODEL_FILE)
        return seconds < 60 * minutes

    with make as ppo:
        ppo.learn(callbacks=goes_on)


def curve(folder: Path) -> list[tuple[int, float]]:
    """(step, mean return of training's episodes) at about POINTS iterations, the last among them.
    """
    with open(folder / METRICS_FILE, newline="") as file:
        rows = [(int(float(row[GLOBAL_STEP])), round(float(row[MEAN_RETURN]), 2))
                for row in csv.DictReader(file) if row[MEAN_RETURN]]
    return rows[::-max(1, len(rows) // POINTS)][::-1]


def policy_score(folder: Path, levels: dict[str, int], episodes: int) -> dict[str, float]:
    """Mean return, ci95 and number of episodes of the policy's sampled actions on some levels."""
    done = subprocess.run(
        [sys.executable, "-m", "fastppo", "eval", str(folder), f"--env_kwargs={json.dumps(levels)}",
         f"--episodes={episodes}", "--stochastic", "--json"],
        cwd=HERE.parent, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    return {name: round(found[name], 2) for name in ("mean", "ci95", "episodes", "length")}


def random_score(env_name: str, episodes: int, seed: int) -> dict[str, float]:
    """The same for actions drawn uniformly, on all levels."""
    env, rng = EnvPoolVector(env_name, 1, dict(ALL)), np.random.default_rng(seed)
    returns, lengths = np.zeros(episodes), np.zeros(episodes, int)
    for k in range(episodes):
        env.reset(seed=k)
        over = False
        while not over:
            _, rew, term, trunc, _ = env.step(rng.integers(env.single_action_space.n, size=1))
            returns[k], lengths[k], over = returns[k] + rew[0], lengths[k] + 1, term[0] | trunc[0]
    env.close()
    half = 1.96 * returns.std(ddof=1) / episodes**0.5
    return {"mean": round(returns.mean(), 2), "ci95": round(half, 2), "episodes": episodes,
            "length": round(float(lengths.mean()), 1)}


def main() -> None:
    """Trains and evaluates; see the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the run, new or to go on with")
    parser.add_argument("--env_name", default="StarpilotEasy-v0")
    parser.add_argument("--core_minutes", type=float, default=240)
    parser.add_argument("--episodes", type=int, default=100, help="of each score")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="bench/procgen.json")
    options = parser.parse_args()
    train(options.folder, options.env_name, options.core_minutes, options.seed)
    points, seconds = curve(options.folder), float((options.folder / SPENT).read_text())
    result = {
        "env_name": options.env_name, "seed": options.seed, "cpu": limits.cpu_model(),
        "core_hours": round(seconds / 3600, 2), "steps": points[-1][0],
        "steps_per_core_second": round(points[-1][0] / seconds, 1),
        "curve": points, "levels_of_training": policy_score(options.folder, SEEN, options.episodes),
        "all_levels": policy_score(options.folder, ALL, options.episodes),
        "random_on_all_levels": random_score(options.env_name, options.episodes, options.seed)}
    text = json.dumps(result, indent=1)
    print(text)
    if options.write:
        (HERE / "procgen.json").write_text(f"{text}\n")


if __name__ == "__main__":
    main()
