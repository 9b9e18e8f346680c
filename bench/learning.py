"""Learning results: trains each environment with its preset on several seeds, evaluates, plots.

    python bench/learning.py --env LunarLander-v3 --seeds 1 2 3 --out runs/learning

A score is the mean of 100 deterministic evaluation episodes with the weights after exactly that
many steps. Prints a line a seed and a summary an environment; writes results.json and curve.png.
"""

import argparse
import csv
import json
import statistics
import time
from pathlib import Path

import numpy as np

from fastppo import PPO


def trained(env: str, seed: int, out: Path, settings: dict) -> dict:
    """Train one seed; its evaluation, seconds and folder."""
    folder = out / f"{env}-{seed}"
    with PPO(env, seed=seed, run_dir=str(folder), **settings) as ppo:
        start = time.perf_counter()
        ppo.learn()
        seconds = time.perf_counter() - start
        result = ppo.evaluate(100)
        return {"env": env, "seed": seed, "steps": ppo.step, "seconds": round(seconds, 2),
                "mean": round(result.mean, 2), "ci95": round(result.ci95, 2), "folder": str(folder)}


def curve(folder: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, mean return of the last 100 training episodes) of one run."""
    with open(Path(folder) / "metrics.csv", newline="") as file:
        rows = [(float(row["global_step"]), float(row["charts/episodic_return"]))
                for row in csv.DictReader(file) if row["charts/episodic_return"]]
    return tuple(np.array(rows).T)


def plot(results: list[dict], path: Path) -> None:
    """Two panels an environment: a line a seed while it trains; beside it, what it came to."""
    import matplotlib
    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    envs = list(dict.fromkeys(result["env"] for result in results))
    figure, panels = plt.subplots(1, 2 * len(envs), figsize=(6.4 * len(envs), 3.4), squeeze=False,
                                  width_ratios=[4, 1] * len(envs))
    for env, training, scores in zip(envs, panels[0, ::2], panels[0, 1::2], strict=True):
        scores.sharey(training)
        of_env = [result for result in results if result["env"] == env]
        for i, result in enumerate(of_env):
            steps, returns = curve(result["folder"])
            line, = training.plot(steps / 1000, returns, linewidth=1.2, alpha=0.8)
            scores.errorbar(i, result["mean"], result["ci95"], fmt="o", ms=4, lw=1, clip_on=False,
                            color=line.get_color())
        training.set(title=f"{env}: training", xlabel="environment steps, thousands",
                     ylabel="return")
        scores.set(title="evaluation", xlabel="seed", xlim=(-1, len(of_env)),
                   xticks=[0, len(of_env) - 1] if len(of_env) > 1 else [0])
        scores.set_xticklabels([of_env[int(i)]["seed"] for i in scores.get_xticks()])
        scores.tick_params(labelleft=False)
        for panel in (training, scores):
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", nargs="+", default=["LunarLander-v3"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, over the preset")
    args = parser.parse_args()
    results = []
    for env in args.env:
        for seed in args.seeds:
            results.append(trained(env, seed, args.out, args.settings))
            print(json.dumps(results[-1]), flush=True)
        scores = [result["mean"] for result in results if result["env"] == env]
        print(f"{env}: median {statistics.median(scores):.1f}, lowest {min(scores):.1f}, "
              f"{len(scores)} seeds", flush=True)
    (args.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results, args.out / "curve.png")


if __name__ == "__main__":
    main()
