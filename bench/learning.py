"""Trains environments on several seeds, evaluates them, writes docs/results.md, and plots.

    python bench/learning.py                                     # all with their presets, 5 seeds
    python bench/learning.py --system none --seeds 1 2 3         # with --preset=none
    python bench/learning.py --system sb3 --seeds 1 2 3          # Stable-Baselines3's defaults
    python bench/learning.py --seeds                             # only the tables
    python bench/learning.py --env LunarLander-v3 --seeds 1 2 --settings '{"total_steps": 400000}'

A score is the mean of 100 deterministic evaluation episodes with the weights after as many whole
rollouts as fit into the budget of steps. Results are stored in bench/learning.json, one per key
(system, environment, budget, seed), so that several runs make one table. With --settings nothing is
stored. --out gets a plot of this call's trainings.
"""

import argparse
import csv
import json
import statistics
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from results import Goal, Result, keep, load, rewrite, section

from fastppo import PPO, __version__
from fastppo.benchmark.session import machine

HERE = Path(__file__).parent
KEPT, PAGE = HERE / "learning.json", HERE.parent / "docs" / "results.md"
EPISODES = 100
GOALS = [Goal(*goal) for goal in [
    ("CartPole-v1", 50_000, 475), ("Acrobot-v1", 80_000, -90), ("MountainCar-v0", 500_000, -130),
    ("MountainCarContinuous-v0", 50_000, 88), ("Pendulum-v1", 100_000, -250),
    ("LunarLander-v3", 300_000, 200), ("LunarLanderContinuous-v3", 250_000, 200),
    ("BipedalWalker-v3", 1_500_000, 250), ("InvertedPendulum-v5", 100_000, 1000),
    ("Reacher-v5", 500_000, -5), ("HalfCheetah-v5", 500_000, 4000), ("Hopper-v5", 1_000_000, 2000),
    ("Walker2d-v5", 1_000_000, 2000)]]
WITHOUT = {"CartPole-v1": (100_000, 475), "Acrobot-v1": (150_000, -100),
           "LunarLander-v3": (600_000, 180)}
PLAIN = [Goal(goal.env, *WITHOUT.get(goal.env, (goal.steps, None))) for goal in GOALS]


def within(env: str, steps: int, settings: dict) -> int:
    """The steps of as many whole rollouts as fit into `steps`."""
    with PPO(env, **settings | {"num_workers": 0}) as ppo:
        rollout = ppo.config.num_envs * ppo.config.num_steps
    return max(1, steps // rollout) * rollout


def ours(goal: Goal, seed: int, folder: Path, settings: dict) -> Result:
    """Train and evaluate one seed; returns its result, with its folder."""
    settings = {"total_steps": within(goal.env, goal.steps, settings)} | settings
    with PPO(goal.env, seed=seed, run_dir=str(folder), **settings) as ppo:
        start = time.perf_counter()
        ppo.learn()
        seconds = time.perf_counter() - start
        score = ppo.evaluate(EPISODES)
        return result(goal, seed, ppo.step, seconds, score.returns) | {"folder": str(folder)}


def sb3(goal: Goal, seed: int) -> Result:
    """The same with Stable-Baselines3's defaults: MlpPolicy, one environment."""
    import gymnasium
    import torch
    from stable_baselines3 import PPO as Other
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor
    torch.set_num_threads(1)
    model = Other("MlpPolicy", Monitor(gymnasium.make(goal.env)), seed=seed, device="cpu")
    start = time.perf_counter()
    model.learn(goal.steps)
    seconds = time.perf_counter() - start
    env = Monitor(gymnasium.make(goal.env))
    env.reset(seed=seed + 100)
    returns, _ = evaluate_policy(model, env, EPISODES, return_episode_rewards=True)
    return result(goal, seed, model.num_timesteps, seconds, np.array(returns))


def result(goal: Goal, seed: int, steps: int, seconds: float, returns: np.ndarray) -> Result:
    """The result of a run as it is stored, without its system."""
    half = 1.96 * returns.std(ddof=1) / len(returns)**0.5
    return {"env": goal.env, "budget": goal.steps, "seed": seed, "steps": steps,
            "seconds": round(seconds, 1), "mean": round(float(returns.mean()), 2),
            "ci95": round(float(half), 2)}


def made_on() -> str:
    """The machine and the versions."""
    packages = "torch", "numpy", "gymnasium", "mujoco", "stable-baselines3"
    names = ", ".join(f"{name} {_version(name)}" for name in packages)
    here = machine()
    return f"fastppo {__version__}, {names}; {here['processor']}, {here['usable_cores']} cores"


def _version(package: str) -> str:
    try:
        return version(package)
    except ModuleNotFoundError:
        return "absent"


def curve(folder: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, mean return of the last 100 training episodes) of one run."""
    with open(Path(folder) / "metrics.csv", newline="") as file:
        rows = [(float(row["global_step"]), float(row["charts/episodic_return"]))
                for row in csv.DictReader(file) if row["charts/episodic_return"]]
    return tuple(np.array(rows).reshape(-1, 2).T)


def plot(results: list[Result], path: Path) -> None:
    """Plot two panels per environment: training curves, one per seed, and their evaluations."""
    import matplotlib
    matplotlib.use("agg")
    import matplotlib.pyplot as plt
    envs = list(dict.fromkeys(one["env"] for one in results))
    figure, panels = plt.subplots(len(envs), 2, figsize=(6.4, 3.4 * len(envs)), squeeze=False,
                                  width_ratios=[4, 1])
    for env, (training, scores) in zip(envs, panels, strict=True):
        scores.sharey(training)
        of_env = [one for one in results if one["env"] == env]
        for i, one in enumerate(of_env):
            steps, returns = curve(one["folder"])
            line, = training.plot(steps / 1000, returns, linewidth=1.2, alpha=0.8)
            scores.errorbar(i, one["mean"], one["ci95"], fmt="o", ms=4, lw=1, clip_on=False,
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


def options() -> argparse.Namespace:
    """The parsed command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", nargs="+", help="default: all that have a goal")
    parser.add_argument("--system", choices=["preset", "none", "sb3"], default="preset")
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--steps", type=int, help="steps allowed; default: the goal's")
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, over the preset")
    parser.add_argument("--workers", type=int, help="as --num_workers; results do not depend on it")
    parser.add_argument("--missing", action="store_true", help="only runs that are not stored yet")
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    return parser.parse_args()


def goals_of(args: argparse.Namespace) -> list[Goal]:
    """The goals of the command line; for an environment without a goal, its steps alone."""
    known = {goal.env: goal for goal in (GOALS if args.system == "preset" else PLAIN)}
    named = [known.get(env, Goal(env, 0, None)) for env in args.env or known]
    steps = args.steps or args.settings.get("total_steps")
    if any(not (steps or goal.steps) for goal in named):
        raise SystemExit("an environment without a goal needs its steps\n  fix: --steps=100000")
    return [goal._replace(steps=steps or goal.steps) for goal in named]


def train(goal: Goal, seed: int, args: argparse.Namespace) -> Result:
    """Train one run; print its result, and store it unless --settings are given."""
    if args.system == "sb3":
        one = sb3(goal, seed)
    else:
        preset = "none" if args.system == "none" else "auto"
        folder = args.out / f"{goal.env}-{seed}"
        one = ours(goal, seed, folder,
                   {"preset": preset, "num_workers": args.workers} | args.settings)
    print(json.dumps(one), flush=True)
    if not args.settings:
        kept = {name: value for name, value in one.items() if name != "folder"}
        keep(KEPT, {"system": args.system} | kept, made_on())
    return one


def main() -> None:
    """Train, print and store results, then write the page and the plot."""
    args, results = options(), []
    there = {(one["system"], one["env"], one["budget"], one["seed"])
             for one in load(KEPT)["results"]} if args.missing else set()
    for goal in goals_of(args) if args.seeds else []:
        of_env = [train(goal, seed, args) for seed in args.seeds
                  if (args.system, goal.env, goal.steps, seed) not in there]
        results += of_env
        scores = [one["mean"] for one in of_env]
        if scores:
            print(f"{goal.env}: median {statistics.median(scores):.1f}, lowest {min(scores):.1f}, "
                  f"{len(scores)} seeds", flush=True)
    if not args.settings:
        rewrite(PAGE, section(load(KEPT), GOALS, PLAIN))
    if results and args.system != "sb3":
        plot(results, args.out / "curve.png")


if __name__ == "__main__":
    main()
