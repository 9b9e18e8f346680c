"""Runs the study of bench/study.md, and prints its tables; what is stored is not run again.

    python bench/study.py run none --seeds 101 102 103 104 105 --jobs 2     # without a preset
    python bench/study.py run general --seeds 1 2 3 4 5 --tasks unseen      # the preset general
    python bench/study.py run preset --seeds 1 2 3 4 5                      # each task's own
    python bench/study.py run kl --settings '{"adaptive_kl": 0.01}' --seeds 101 102
    PYTHON bench/study.py run sb3 --seeds 1 2 3 4 5      # with stable-baselines3 alone installed
    PYTHON bench/study.py run zoo --seeds 1 2 3 4 5      # with rl_zoo3, too
    python bench/study.py run random --seeds 0
    python bench/study.py table general zoo --seeds 1 2 3 4 5 --tasks CartPole-v1 Acrobot-v1

Each run is one file, bench/study/NAME/TASK-SEED.json: the steps and mean returns of its twenty
evaluations, the seconds of training alone, and what it was made with.
"""

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

import numpy as np
from study_tasks import DEVELOPMENT, SETS, environment, make

HERE = Path(__file__).parent / "study"
EVALUATIONS, REPORTED = 20, range(1, 11)
STEPS = {task: steps for tasks in SETS.values() for task, steps in tasks.items()}


def episodes(task: str) -> int:
    """The episodes of an evaluation."""
    return 20 if task in DEVELOPMENT else 5


class Marks:
    """Evaluates after each twentieth of the steps, the last time at the end of training.

    The time of an evaluation is no time of training.
    """

    def __init__(self, steps: int, evaluate: Callable[[], float]):
        self.every, self.evaluate = steps / EVALUATIONS, evaluate
        self.steps, self.returns = [], []
        self.seconds, self.since = 0.0, perf_counter()

    def reached(self, step: int, ended: bool = False) -> bool:
        """Evaluate if `step` is the first one after a mark, or training has ended; returns True."""
        done = len(self.steps) + 1
        if ended or done < EVALUATIONS and step >= done * self.every:
            self.seconds += perf_counter() - self.since
            self.steps.append(step)
            self.returns.append(round(float(self.evaluate()), 3))
            self.since = perf_counter()
        return True

    def result(self) -> dict:
        """What is stored of the run."""
        return {"steps": self.steps, "returns": self.returns, "seconds": round(self.seconds, 1)}


def ours(task: str, seed: int, steps: int, settings: dict) -> dict:
    """Train with settings of fastppo, in one process."""
    from fastppo import PPO
    with PPO(environment(task), seed=seed, num_workers=0, progress="none",
             **{"total_steps": steps} | settings) as ppo:
        marks = Marks(steps, lambda: ppo.evaluate(episodes(task)).mean)
        ppo.learn(callbacks=lambda ppo, stats: marks.reached(ppo.step))
        marks.reached(ppo.step, ended=True)
        return marks.result()


def theirs(task: str, seed: int, steps: int, tuned: bool) -> dict:
    """Train Stable-Baselines3 with its defaults, or with rl-zoo3's settings of the task."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization
    torch.set_num_threads(1)
    model = zoo_model(task, seed, steps) if tuned else PPO(
        "MlpPolicy", make_vec_env(environment(task), seed=seed), seed=seed, device="cpu")
    training, envs = model.get_env(), make_vec_env(environment(task), n_envs=5, seed=seed + 10_000)
    if normalises := isinstance(training, VecNormalize):
        envs = VecNormalize(envs, training=False, norm_reward=False)

    def evaluate() -> float:
        if normalises:
            sync_envs_normalization(training, envs)
        envs.seed(seed + 10_000)
        return float(evaluate_policy(model, envs, episodes(task))[0])

    marks = Marks(steps, evaluate)
    model.learn(steps, callback=lambda local, _: marks.reached(model.num_timesteps))
    marks.reached(model.num_timesteps, ended=True)
    return marks.result()


def zoo_model(task: str, seed: int, steps: int):
    """A model of rl-zoo3's ppo.yml; versions of an id that it does not have are taken as one."""
    import tempfile

    import rl_zoo3
    import yaml
    from rl_zoo3.exp_manager import ExperimentManager
    tuned = yaml.safe_load((Path(rl_zoo3.__file__).parent / "hyperparams/ppo.yml").read_text())
    settings = next(tuned[name] for name in tuned if name.split("-v")[0] == task.split("-v")[0])
    folder = Path(tempfile.mkdtemp())
    (folder / "ppo.yml").write_text(yaml.dump({task: settings}))
    manager = ExperimentManager(argparse.Namespace(), "ppo", task, str(folder), n_timesteps=steps,
                                eval_freq=-1, seed=seed, verbose=0, device="cpu",
                                config=str(folder / "ppo.yml"))
    return manager.setup_experiment()[0]


def random_return(task: str) -> float:
    """The mean return of 100 episodes of uniformly random actions."""
    with make(task) as env:
        env.action_space.seed(0)
        total = 0.0
        for episode in range(100):
            env.reset(seed=episode)
            ended = False
            while not ended:
                _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
                total += float(reward)
                ended = terminated or truncated
        return round(total / 100, 3)


def run(name: str, task: str, seed: int, settings: dict) -> str:
    """One run, stored as one file; its line."""
    steps = STEPS[task]
    if name == "random":
        found = {"returns": [random_return(task)]}
    elif name in ("sb3", "zoo"):
        found = theirs(task, seed, steps, name == "zoo")
    else:
        preset = {"preset": "auto", "general": "general"}.get(name, "none")
        found = ours(task, seed, steps, {"preset": preset} | settings)
    about = {"name": name, "task": task, "seed": seed, "settings": settings, "made": made_on()}
    path = path_of(name, task, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".partial").write_text(json.dumps(about | found) + "\n")
    os.replace(path.with_suffix(".partial"), path)
    return f"{name} {task} {seed}: {found['returns'][-1]} in {found.get('seconds')} s"


def path_of(name: str, task: str, seed: int) -> Path:
    """The file of a run."""
    return HERE / name / f"{task.replace('/', '_')}-{seed}.json"


def made_on() -> str:
    """The versions and the processor."""
    names = "fastppo", "stable-baselines3", "rl_zoo3", "torch", "numpy", "gymnasium", "mujoco"
    with open("/proc/cpuinfo") as file:
        chip = next((x.split(":")[1].strip() for x in file if x.startswith("model name")), "")
    return ", ".join([f"{x} {version(x)}" for x in names if _installed(x)]
                     + [f"Python {platform.python_version()}", chip])


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def run_all(args: argparse.Namespace) -> None:
    """All runs of the command line that are not stored, `--jobs` at a time, seed by seed."""
    wanted = [(name, task, seed, args.settings) for name in args.names for seed in args.seeds
              for task in args.tasks if not path_of(name, task, seed).exists()]
    with ProcessPoolExecutor(args.jobs, max_tasks_per_child=1) as pool:
        for line in pool.map(run, *zip(*wanted)):
            print(line, flush=True)


def returns(name: str, task: str, seeds: Iterable[int]) -> np.ndarray:
    """The evaluations of the stored runs of these seeds, f64 [runs evaluations]."""
    paths = (path_of(name, task, seed) for seed in seeds)
    return np.array([json.loads(path.read_text())["returns"] for path in paths if path.exists()])


def scale(task: str) -> tuple[float, float]:
    """(the return of random actions, the best known one), see bench/study.md."""
    low = returns("random", task, [0])[0, 0]
    if task in DEVELOPMENT:
        return low, float(np.median(returns("preset", task, range(1, 6))[:, -1]))
    ends = [returns(path.name, task, REPORTED) for path in HERE.iterdir() if path.name != "random"]
    return low, max(float(runs[:, -1].mean()) for runs in ends if len(runs))


def table(args: argparse.Namespace) -> None:
    """Print a Markdown table of the tasks, and each name's score and chance to beat the last."""
    from fastppo.reports.comparison import bootstrapped, improvement_over, interquartile_mean
    print("| task | random | best |", *(f"{name}: last, median (lowest) | share | area |"
                                         for name in args.names))
    print("|---|---|---|" + "---|---|---|" * len(args.names))
    areas: dict[str, list[np.ndarray]] = {name: [] for name in args.names}
    for task in args.tasks:
        low, best = scale(task)
        cells = [task, f"{low:,.1f}", f"{best:,.1f}"]
        for name in args.names:
            runs = returns(name, task, args.seeds)
            last, share = runs[:, -1], (np.median(runs[:, -1]) - low) / (best - low)
            areas[name].append(np.clip((runs.mean(1) - low) / (best - low), 0, 1.2))
            cells += [f"{np.median(last):,.1f} ({last.min():,.1f})", f"{share:.2f}",
                      f"{areas[name][-1].mean():.2f}"]
        print("|", " | ".join(cells), "|")

    def score(*parts: np.ndarray, axis: int = -1) -> np.ndarray:
        return interquartile_mean(np.concatenate(parts, axis), axis)

    for name in args.names:
        mean = bootstrapped(areas[name], score)
        better = bootstrapped((*areas[name], *areas[args.names[-1]]), improvement_over)
        print(f"\n{name}: interquartile mean of the areas {mean.value:.3f} ({mean.low:.3f} to"
              f" {mean.high:.3f}); P(better than {args.names[-1]}) {better.value:.3f}"
              f" ({better.low:.3f} to {better.high:.3f})")


def main() -> None:
    """Run or print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=["run", "table"])
    parser.add_argument("names", nargs="+", help="sb3, zoo, random, preset, none, or another one")
    parser.add_argument("--tasks", nargs="+", default=["development"], choices=[*SETS, *STEPS],
                        help="of study_tasks.py, or one of its sets")
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON; without a preset")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    args.tasks = [task for name in args.tasks for task in SETS.get(name, {name: 0})]
    run_all(args) if args.verb == "run" else table(args)


if __name__ == "__main__":
    main()
