"""Makes the runs of bench/study.md that are not stored yet; study_tables.py shows them.

    python bench/study.py general --seeds 1 2 3 4 5 --tasks unseen      # the preset general
    python bench/study.py preset --seeds 1 2 3 --tasks HalfCheetah-v5   # the task's own
    python bench/study.py none --seeds 101 102 103 104 105 --jobs 2     # without a preset
    python bench/study.py kl --settings '{"adaptive_kl": 0.01}' --seeds 101 102
    PYTHON bench/study.py sb3 --seeds 1 2 3 4 5      # with stable-baselines3 alone installed
    PYTHON bench/study.py zoo --seeds 1 2 3 4 5      # with rl_zoo3, too
    python bench/study.py random --seeds 0
    python bench/study.py preset_timed --tasks timed --seeds 1 2 3      # also zoo_timed
    PYTHON bench/study.py rl_games_timed --tasks CartPole-v1 --seeds 1  # of study_peers.py
    PYTHON bench/study.py cleanrl_script --tasks CartPole-v1 --seeds 1 2 3 4 5

Each run is one file, bench/study/NAME/TASK-SEED.json: the steps and mean returns of its twenty
evaluations, the seconds of training alone before each (of older runs: in all), and what it was made
with; newer ones of fastppo also have the mean return of the last hundred training episodes. A run
whose name ends with _timed may take all cores, is as long as its settings say, and ends with the
evaluation that reaches the goal of its task.
"""

import argparse
import json
import os
import platform
import subprocess
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter

from study_tasks import GOALS, SETS, environment, episodes, make, mean_return

HERE = Path(__file__).parent / "study"
EVALUATIONS = 20
PRESETS = {"preset": "auto", "general": "general", "none": "none"}  # others need --settings
PEERS = ("sb3", "zoo", "random", "rl_games", "rltools", "cleanrl_script")
STEPS = {task: steps for tasks in SETS.values() for task, steps in tasks.items()}


class Marks:
    """Evaluates after each twentieth of the steps, the last time at the end of training.

    `evaluate` is set by whoever trains, and returns a mean return. Seconds count from `start`,
    without those of evaluations.
    """

    def __init__(self, steps: int, goal: float):
        self.every, self.goal = steps / EVALUATIONS, goal
        self.timed = goal < float("inf")  # may take more steps, if its system does
        self.steps, self.returns, self.seconds = [], [], []
        self.trained = 0.0

    def start(self) -> None:
        """Let the seconds count; everything is imported."""
        self.since = perf_counter()

    def reached(self, step: int) -> bool:
        """Evaluate if `step` is the first one after a mark, not the last; False at the goal."""
        done = len(self.steps) + 1
        if (done < EVALUATIONS or self.timed) and step >= done * self.every:
            self.measure(step)
        return not self.solved

    @property
    def solved(self) -> bool:
        """True if the last evaluation has reached the goal."""
        return bool(self.returns) and self.returns[-1] >= self.goal

    def measure(self, step: int) -> None:
        """Evaluate."""
        self.trained += perf_counter() - self.since
        self.steps.append(step)
        self.seconds.append(round(self.trained, 2))
        self.returns.append(round(float(self.evaluate()), 3))
        self.start()

    def result(self, step: int) -> dict:
        """What is stored of a run, at its end."""
        if not self.solved:
            self.measure(step)
        return {"steps": self.steps, "returns": self.returns, "seconds": self.seconds}


def ours(task: str, seed: int, marks: Marks, settings: dict) -> dict:
    """Train with settings of fastppo."""
    from fastppo import PPO
    from fastppo.settings.known_names import MEAN_RETURN
    marks.start()
    with PPO(environment(task), seed=seed, progress="none", **settings) as ppo:
        marks.evaluate = lambda: ppo.evaluate(episodes(task)).mean
        ppo.learn(callbacks=lambda ppo, stats: marks.reached(ppo.step))
        return marks.result(ppo.step) | {"training": ppo.episodes.stats().get(MEAN_RETURN)}


def theirs(task: str, seed: int, marks: Marks, tuned: bool) -> dict:
    """Train Stable-Baselines3 with its defaults, or with rl-zoo3's settings of the task.

    If timed, for as many steps as these settings have.
    """
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import VecNormalize, sync_envs_normalization
    torch.set_num_threads(1)
    steps, envs = STEPS[task], make_vec_env(environment(task), n_envs=5, seed=seed + 10_000)
    if tuned:
        model, steps = zoo_model(task, seed, marks)
    else:
        marks.start()
        model = PPO("MlpPolicy", make_vec_env(environment(task), seed=seed), seed=seed,
                    device="cpu")
    training = model.get_env()
    if normalises := isinstance(training, VecNormalize):
        envs = VecNormalize(envs, training=False, norm_reward=False)

    def evaluate() -> float:
        if normalises:
            sync_envs_normalization(training, envs)
        envs.seed(seed + 10_000)
        return float(evaluate_policy(model, envs, episodes(task))[0])

    marks.evaluate = evaluate
    model.learn(steps, callback=lambda local, _: marks.reached(model.num_timesteps))
    return marks.result(model.num_timesteps)


def zoo_model(task: str, seed: int, marks: Marks):
    """(a model of rl-zoo3's ppo.yml, its steps); all versions of an id are taken as one."""
    import tempfile

    import rl_zoo3
    import yaml
    from rl_zoo3.exp_manager import ExperimentManager
    tuned = yaml.safe_load((Path(rl_zoo3.__file__).parent / "hyperparams/ppo.yml").read_text())
    settings = next(tuned[name] for name in tuned if name.split("-v")[0] == task.split("-v")[0])
    folder = Path(tempfile.mkdtemp())
    (folder / "ppo.yml").write_text(yaml.dump({task: settings}))
    steps = int(settings["n_timesteps"]) if marks.timed else STEPS[task]
    marks.start()
    manager = ExperimentManager(argparse.Namespace(), "ppo", task, str(folder), n_timesteps=steps,
                                eval_freq=-1, seed=seed, verbose=0, device="cpu",
                                config=str(folder / "ppo.yml"))
    return manager.setup_experiment()[0], steps


def random_return(task: str) -> float:
    """The mean return of 100 episodes of uniformly random actions."""
    with make(task) as env:
        env.action_space.seed(0)
        return round(mean_return(env, lambda obs: env.action_space.sample(), range(100)), 3)


def run(name: str, task: str, seed: int, settings: dict) -> str:
    """One run, stored as one file; its line."""
    system = name.removesuffix("_timed")
    timed = system != name
    marks = Marks(STEPS[task], GOALS[task] if timed else float("inf"))
    if system == "random":
        found = {"returns": [random_return(task)]}
    elif system in ("sb3", "zoo"):
        found = theirs(task, seed, marks, system == "zoo")
    elif system in PEERS:
        import study_peers
        found = getattr(study_peers, system)(task, seed, marks)
    else:
        preset = PRESETS.get(system, "none")
        fixed = {} if timed else {"total_steps": STEPS[task], "num_workers": 0}
        found = ours(task, seed, marks, {"preset": preset} | fixed | settings)
    about = {"name": name, "task": task, "seed": seed, "settings": settings, "made": made_on()}
    path = path_of(name, task, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".partial").write_text(json.dumps(about | found) + "\n")
    os.replace(path.with_suffix(".partial"), path)
    return f"{name} {task} {seed}: {found['returns'][-1]} in {found.get('seconds', [0])[-1]} s"


def is_stored(name: str, task: str, seed: int, settings: dict) -> bool:
    """True if the run has been made; SystemExit if it was, with other settings."""
    path = path_of(name, task, seed)
    if not path.exists():
        return False
    found = json.loads(path.read_text())["settings"]
    if found != settings:
        raise SystemExit(f"{path} has the settings {found}")
    return True


def path_of(name: str, task: str, seed: int) -> Path:
    """The file of a run."""
    return HERE / name / f"{task.replace('/', '_')}-{seed}.json"


def made_on() -> str:
    """The commit, the versions and the processor."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE.parent, text=True,
                            stdout=subprocess.PIPE).stdout.strip()
    names = ("fastppo", "stable-baselines3", "rl_zoo3", "rl_games", "envpool", "rltools", "cleanrl",
             "torch", "numpy", "gym", "gymnasium", "mujoco", "box2d", "dm_control", "shimmy",
             "gymnasium-robotics", "minigrid", "highway-env", "flappy-bird-gymnasium")
    with open("/proc/cpuinfo") as file:
        chip = next((x.split(":")[1].strip() for x in file if x.startswith("model name")), "")
    return ", ".join([f"commit {commit}"] + [f"{x} {version(x)}" for x in names if _installed(x)]
                     + [f"Python {platform.python_version()}", chip])


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False


def options(parser: argparse.ArgumentParser, words: list[str] | None = None
            ) -> argparse.Namespace:
    """The command line, or these words of one, with the names of sets of tasks resolved."""
    parser.add_argument("names", nargs="+", help="sb3, zoo, random, preset, none, or another one")
    parser.add_argument("--tasks", nargs="+", default=["development"], choices=[*SETS, *STEPS],
                        metavar="TASK", help="of study_tasks.py, or one of its sets")
    parser.add_argument("--seeds", nargs="+", type=int, required=True)
    args = parser.parse_args(words)
    args.tasks = [task for name in args.tasks for task in SETS.get(name, {name: 0})]
    return args


def main() -> None:
    """Make the runs of the command line that are not stored, --jobs at a time, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=json.loads, default={}, help="JSON, over the preset")
    parser.add_argument("--jobs", type=int, default=1)
    args = options(parser)
    for name in args.names:
        if not args.settings and name.removesuffix("_timed") not in (*PRESETS, *PEERS):
            parser.error(f"{name} is none of {', '.join((*PRESETS, *PEERS))}: it needs --settings")
    wanted = [(name, task, seed, args.settings) for name in args.names for seed in args.seeds
              for task in args.tasks if not is_stored(name, task, seed, args.settings)]
    with ProcessPoolExecutor(args.jobs, max_tasks_per_child=1) as pool:
        for line in pool.map(run, *zip(*wanted)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
