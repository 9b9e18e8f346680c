"""Compares learning and speed on games of several agents with Stable-Baselines3 on SuperSuit.

    python bench/games.py               # the runs that bench/games.json lacks, one by one
    python bench/games.py --only central sb3 --tasks mpe2/simple_spread-v3 --seeds 1    # of these
    python bench/games.py --speed       # rows per second, in turns: 7 minutes
    python bench/games.py --table       # only writes the tables of docs/results.md

It needs PettingZoo with its games, mpe2, stable-baselines3 and supersuit. The sides are

    fastppo     with its preset for such games
    central     the same with the state of the game for the critic; simple_spread alone
    sb3         as in PettingZoo's tutorials: MlpPolicy, SuperSuit's vector, black_death where
                agents die; SETTINGS, which are its defaults with 8 games
    plain       fastppo with SETTINGS and without what Stable-Baselines3 does not do by itself:
                agents have no number, nothing is normalised, the learning rate is constant, and
                the value loss has the same weight (value_coef=1: ours is of half the squares)

A wrapper around the ParallelEnv counts for all of them: rows are steps of living agents, and when a
game is over it writes the mean of its agents' returns, which are undiscounted and not normalised.
The curve of a run is the mean of the games that ended in each of POINTS equal parts of its rows,
its area is the mean of the curve. SuperSuit's vector has rows of dead agents, too, so `vector_area`
is over as many of its own rows, of which it has more.
"""

import argparse
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from importlib import metadata
from pathlib import Path
from statistics import mean, median
from typing import Any, Callable, NamedTuple

import numpy as np
from pettingzoo.utils import BaseParallelWrapper
from study_tables import markdown

from fastppo.reports.run_table import mean_and_half

ROOT = Path(__file__).resolve().parents[1]
KEPT, PAGE = ROOT / "bench" / "games.json", ROOT / "docs" / "results.md"
BEGIN, END = "<!-- tables: bench/games.py -->", "<!-- end of games -->"
SETTINGS = {"num_envs": 8, "epochs": 10, "lr": 3e-4, "gamma": 0.99, "gae_lambda": 0.95,
            "clip_range": 0.2, "entropy_coef": 0.0, "max_grad_norm": 0.5, "hidden_sizes": (64, 64)}
MINIBATCH = 256  # of PettingZoo's tutorials
POINTS, SEEDS, ROUNDS, FOREVER = 20, (1, 2, 3), 3, 10**9
PLAIN = {"agent_index": False, "norm_obs": False, "norm_rewards": False, "anneal_lr": False,
         "value_coef": 1.0}
Over = Callable[[int], bool]  # of the rows so far


class Task(NamedTuple):
    """A game, with its default arguments; `steps` of a rollout, `rows` of a run."""

    id: str
    module: str
    agents: int
    steps: int
    rows: int = 100_000
    deaths: bool = False


TASKS = {task.id: task for task in (
    Task("mpe2/simple_spread-v3", "mpe2.simple_spread_v3", 3, 128, 150_000),
    Task("sisl/multiwalker-v9", "pettingzoo.sisl.multiwalker_v9", 3, 128),
    Task("sisl/pursuit-v5", "pettingzoo.sisl.pursuit_v5", 8, 64, 300_000),
    Task("butterfly/knights_archers_zombies-v11",
         "pettingzoo.butterfly.knights_archers_zombies_v11", 4, 128, 300_000, deaths=True))}


class Recorded(BaseParallelWrapper):
    """Writes a line for each game: steps and rows so far, and the mean return of its agents."""

    steps = rows = 0
    file: Path | None = None

    def __init__(self, env: Any, folder: Path):
        super().__init__(env)
        self.folder = folder

    def reset(self, seed: int | None = None, options: dict | None = None):
        """See ParallelEnv.reset."""
        begun = super().reset(seed, options)
        self.returns = dict.fromkeys(self.env.agents, 0.0)
        return begun

    def step(self, actions: dict):
        """See ParallelEnv.step."""
        acting = [*self.env.agents]
        after = super().step(actions)
        self.steps, self.rows = self.steps + 1, self.rows + len(acting)
        for agent in acting:
            self.returns[agent] += float(after[1][agent])
        if acting and not self.env.agents:
            self.file = self.file or self.folder / uuid.uuid4().hex  # SuperSuit copies environments
            with self.file.open("a") as file:
                print(self.steps, self.rows, mean(self.returns.values()), file=file)
        return after


def make(task: Task, folder: Path) -> Recorded:
    """The recorded game of a task."""
    return Recorded(importlib.import_module(task.module).parallel_env(), folder)


def ours(task: Task, seed: int, folder: Path, over: Over, side: str) -> None:
    """Trains fastppo until it is `over`."""
    from fastppo import PPO
    minibatches = SETTINGS["num_envs"] * task.agents * task.steps // MINIBATCH
    own = {"plain": SETTINGS | PLAIN | {"num_steps": task.steps, "num_minibatches": minibatches},
           "central": {"preset": "games", "critic_keys": ("state", "agent")}}.get(
               side, {"preset": "games"})
    env = functools.partial(make, task, folder) if task.rows < FOREVER else task.id
    with PPO(env, seed=seed, total_steps=task.rows, eval_episodes=0, **own) as ppo:
        ppo.learn(callbacks=lambda ppo, stats: not over(ppo.step))


def sb3(task: Task, seed: int, folder: Path, over: Over, side: str) -> None:
    """Trains Stable-Baselines3 on SuperSuit's vector until it is `over`."""
    import stable_baselines3
    import supersuit
    import torch
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.utils import set_random_seed

    class Stop(BaseCallback):
        """Asks after each update, before the next rollout."""

        goes_on = True

        def _on_rollout_start(self):
            self.goes_on = not (self.num_timesteps and over(rows()))

        def _on_step(self):
            return self.goes_on

    torch.set_num_threads(1)  # faster than two for such a network
    set_random_seed(seed)
    env = make(task, folder)
    vector = supersuit.concat_vec_envs_v1(supersuit.pettingzoo_env_to_vec_env_v1(
        supersuit.black_death_v3(env) if task.deaths else env), SETTINGS["num_envs"], num_cpus=1,
        base_class="stable_baselines3")
    games = vector.venv.vec_envs
    vector.venv.reset(seed=1000 * seed)
    def rows() -> int: return sum(game.par_env.rows for game in games)
    given = SETTINGS
    model = stable_baselines3.PPO(
        "MlpPolicy", vector, learning_rate=given["lr"], n_steps=task.steps, batch_size=MINIBATCH,
        n_epochs=given["epochs"], gamma=given["gamma"], gae_lambda=given["gae_lambda"],
        clip_range=given["clip_range"], ent_coef=given["entropy_coef"],
        max_grad_norm=given["max_grad_norm"], device="cpu",
        policy_kwargs={"net_arch": [*given["hidden_sizes"]]})
    model.learn(10**9, callback=Stop())


def bare(task: Task, seed: int, folder: Path, over: Over, side: str) -> None:
    """Plays one game with random actions: the most that one process can step."""
    env = make(task, folder)
    while not over(env.rows):
        env.reset(seed=seed)
        while env.agents:
            env.step({agent: env.action_space(agent).sample() for agent in env.agents})


SIDES = {"fastppo": ours, "sb3": sb3, "plain": ours, "central": ours}


def run(task: Task, side: str, seed: int, seconds: float) -> dict[str, Any]:
    """The figures of a run of the task's rows, or of some seconds after the first iteration."""
    laps = [(time.perf_counter(), 0)]

    def over(rows: int) -> bool:
        laps.append((time.perf_counter(), rows))
        return laps[-1][0] > laps[1][0] + seconds if seconds else rows >= task.rows

    with tempfile.TemporaryDirectory() as name:
        task = task._replace(rows=FOREVER) if seconds else task
        (bare if side == "bare" else SIDES[side])(task, seed, Path(name), over, side)
        (start, first), (end, last) = laps[1], laps[-1]
        found = {"task": task.id, "side": side, "seed": seed}
        return found | ({"rate": round((last - first) / (end - start))} if seconds else
                        {"rows": last} | figures(task, Path(name)))


def figures(task: Task, folder: Path) -> dict[str, Any]:
    """Number of games, area and curve of the recorded games, by rows and by rows of the vector."""
    slots = [np.loadtxt(file, ndmin=2) for file in folder.iterdir()]
    ends, returns = np.array(sorted((step, score) for slot in slots for step, _, score in slot)).T
    rows = np.zeros(len(ends))
    for slot in slots:  # all games step together
        last, count, _ = slot[-1]
        rows += np.interp(ends, [0, *slot[:, 0], 1e9],
                          [0, *slot[:, 1], count + (1e9 - last) * task.agents])
    by_rows = curve(rows / task.rows, returns)
    by_vector = curve(ends * len(slots) * task.agents / task.rows, returns)
    return {"games": len(ends), "area": round(mean(by_rows), 3),
            "vector_area": round(mean(by_vector), 3), "curve": [round(x, 2) for x in by_rows]}


def curve(when: np.ndarray, returns: np.ndarray) -> list[float]:
    """The mean returns of POINTS equal parts; of parts without the end of a game interpolated."""
    part = (when * POINTS).astype(int)
    there = [k for k in range(POINTS) if (part == k).any()]
    return np.interp(range(POINTS), there, [returns[part == k].mean() for k in there]).tolist()


def apart(*arguments: str) -> dict[str, Any]:
    """The figures of a run in a process of its own."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "SDL_VIDEODRIVER": "dummy"}
    ran = subprocess.run([sys.executable, "-W", "ignore", __file__, "--run", *arguments], env=env,
                         stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1])


def load() -> dict[str, Any]:
    """What is stored: versions, runs and rates."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else {"versions": {}, "runs": [],
                                                               "rates": []}


def store(**found: Any) -> None:
    """Adds to what is stored; one line for each run and rate."""
    names = "torch", "numpy", "gymnasium", "pettingzoo", "mpe2", "stable-baselines3", "supersuit"
    kept = load() | {"versions": {name: metadata.version(name) for name in names}} | found
    lines = {name: ",\n  ".join(map(json.dumps, kept[name])) for name in ("runs", "rates")}
    KEPT.write_text(f'{{"versions": {json.dumps(kept["versions"])},\n "runs": [\n  {lines["runs"]}'
                    f'\n],\n "rates": [\n  {lines["rates"]}\n]}}\n')


def learn(sides: list[str], tasks: list[str], seeds: list[int]) -> None:
    """The runs of these sides, tasks and seeds that are not stored."""
    for seed in seeds:
        for task in tasks:
            for side in sides:
                there = {(one["task"], one["side"], one["seed"]) for one in load()["runs"]}
                if (task, side, seed) in there or side == "central" and "spread" not in task:
                    continue
                found = apart(side, task, str(seed), "0")
                print(*(f"{value}" for value in found.values()), flush=True)
                store(runs=[*load()["runs"], found])


def speed(seconds: float = 8) -> None:
    """Rows per second in turns, and in the first round of the bare games."""
    rates = []
    for turn in range(ROUNDS):
        for task in TASKS:
            for side in ("plain", "sb3", "bare")[:2 if turn else 3]:
                rates.append(apart(side, task, str(turn + 1), str(seconds)))
                print(*rates[-1].values(), flush=True)
    store(rates=rates)


def tables() -> str:
    """The tables of the page."""
    kept, rows, speeds = load(), [], []
    for task in TASKS:
        rows.append([f"`{task}`", *(area([one["area"] for one in kept["runs"] if (
            one["task"], one["side"]) == (task, side)]) for side in SIDES)])
        rates = {side: [one["rate"] for one in kept["rates"] if (one["task"], one["side"]) == (
            task, side)] for side in ("plain", "sb3", "bare")}
        if all(rates.values()):
            found = [median(x) for x in rates.values()]
            speeds.append([f"`{task}`", *(f"{x:,.0f}" for x in found),
                           f"{found[0] / found[1]:.2f}"])
    return "\n\n".join([
        markdown(["area: mean ± 95 % (each seed)", *SIDES], rows),
        markdown(["rows per second", "plain", "sb3", "one bare game", "plain / sb3"], speeds)])


def area(areas: list[float]) -> str:
    """The cell of a side: mean and interval of its areas, and each of them."""
    if not areas:
        return "–"
    spread = f" ± {mean_and_half(areas)[1]:.2f}" if len(areas) > 1 else ""
    return f"{mean(areas):.2f}{spread} ({', '.join(f'{x:.2f}' for x in areas)})"


def main() -> None:
    """Runs what is asked for, and writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=SIDES, default=[*SIDES])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.run:
        side, task, seed, seconds = given.run
        print(json.dumps(run(TASKS[task], side, int(seed), float(seconds))))
        return
    if given.speed:
        speed()
    elif not given.table:
        learn(given.only, given.tasks, given.seeds)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}",
                    encoding="utf-8")


if __name__ == "__main__":
    main()
