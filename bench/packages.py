"""Measures the table of docs/environments.md: environments of other packages, row by row.

    python bench/packages.py               # the rows whose package this Python has, and no file yet
    python bench/packages.py PushT Tetris  # these rows, again
    python bench/packages.py --table       # only writes the page's table from the files

A row is measured by its command on the page, which is stopped two minutes after its first
iteration; then Stable-Baselines3, if it is installed, trains the same environment for 20 seconds
with the same sizes. Each row has a file in bench/package_rows/, so a call goes on where the last
one ended, and packages that exclude each other are measured in Pythons of their own, one by one.

Steps per second are those after the first iteration. The first and the last of the episodes, a
quarter of them but at most 100 each, say if it learns: if the means of their returns differ by more
than three standard errors.
"""

import argparse
import contextlib
import csv
import importlib.util
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from statistics import mean, variance
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
FILES, PAGE = Path(__file__).with_name("package_rows"), ROOT / "docs" / "environments.md"
BEGIN, END = "<!-- table: bench/packages.py -->\n", "<!-- end of table -->\n"
HEAD = ("| command, after `python main.py` | install | steps/s | Stable-Baselines3 | ratio |"
        " return in two minutes | learns |\n|---|---|---|---|---|---|---|\n")
DISPLAY = "PYGLET_HEADLESS=1"
NO_MEMORY = "it has no recurrent networks"
ITS_OWN = "it has no EnvPool"


class Row(NamedTuple):
    """An environment of a package; `flags` follow --env_name on the page."""

    name: str
    env_name: str
    install: str
    package: str
    flags: str = ""
    variable: str = ""  # in front of the command
    alone: str = ""  # why Stable-Baselines3 is not measured

    @property
    def arguments(self) -> list[str]:
        """The arguments of the command."""
        return shlex.split(f"--env_name={self.env_name} {self.flags}")


ROBOTICS, DM_CONTROL = 'pip install "fastppo[robotics]"', 'pip install "fastppo[dm-control]"'
ENVPOOL = 'pip install "fastppo[envpool]"'
ROWS = (
    Row("PointMaze", "PointMaze_UMazeDense-v3", ROBOTICS, "gymnasium_robotics"),
    Row("FetchReach", "FetchReachDense-v4", ROBOTICS, "gymnasium_robotics"),
    Row("MetaWorld", "Meta-World/MT1", ROBOTICS, "metaworld",
        """--env_kwargs='{"env_name": "reach-v3"}'"""),
    Row("PandaReach", "PandaReachDense-v3", "pip install panda-gym", "panda_gym"),
    Row("highway", "highway-fast-v0", 'pip install "fastppo[highway]"', "highway_env",
        "--num_steps=32 --num_minibatches=4"),
    Row("FlappyBird", "FlappyBird-v0", "pip install flappy-bird-gymnasium",
        "flappy_bird_gymnasium"),
    Row("cartpole-balance", "dm_control/cartpole-balance-v0", DM_CONTROL, "dm_control",
        "--total_steps=200k"),
    Row("cheetah-run", "dm_control/cheetah-run-v0", DM_CONTROL, "dm_control", "--lr=1e-3"),
    Row("MiniGrid", "MiniGrid-Empty-8x8-v0", 'pip install "fastppo[minigrid]"', "minigrid",
        alone="it has no Text spaces"),
    Row("MiniWorld", "MiniWorld-Hallway-v0", "pip install miniworld", "miniworld",
        "--num_steps=64 --num_minibatches=8", DISPLAY),
    Row("PushT", "gym_pusht/PushT-v0", "pip install gym-pusht", "gym_pusht",
        "--action_scaling"),
    Row("stocks", "stocks-v0", "pip install gym-anytrading", "gym_anytrading"),
    Row("RepeatPrevious", "popgym-RepeatPreviousEasy-v0", 'pip install "fastppo[popgym]"',
        "popgym", "--rnn=gru", alone=NO_MEMORY),
    Row("Tetris", "tetris_gymnasium/Tetris", "pip install tetris-gymnasium", "tetris_gymnasium",
        "--model=mlp"),
    Row("motor", "Finite-CC-PMSM-v0", "pip install gym-electric-motor", "gym_electric_motor",
        alone="it has no Tuple observations"),
    Row("PyFlyt", "PyFlyt/QuadX-Hover-v4", "pip install PyFlyt", "PyFlyt"),
    Row("nasim", "examples.packages:nasim", "pip install nasim", "nasim"),
    Row("retro", "examples.packages:airstriker", "pip install stable-retro", "stable_retro",
        "--num_workers=8 --grayscale --resize=84 --num_steps=64 --num_minibatches=8"),
    Row("vizdoom", "examples.packages:vizdoom", "pip install vizdoom", "vizdoom",
        "--grayscale --resize=84 --num_steps=32 --num_minibatches=4"),
    Row("crafter", "examples.packages:Crafter", "pip install crafter", "crafter",
        "--num_steps=64 --num_minibatches=8"),
    Row("deep-sea", "examples.packages:deep_sea_treasure", "pip install mo-gymnasium",
        "mo_gymnasium"),
    Row("2048", "gymnasium_2048/TwentyFortyEight-v0", "pip install gymnasium-2048",
        "gymnasium_2048", "--eval_episodes=0"),
    Row("CartpoleBalance", "CartpoleBalance-v1", ENVPOOL, "envpool", "--vec=envpool",
        alone=ITS_OWN),
    Row("Coinrun", "CoinrunEasy-v0", f"{ENVPOOL}; sudo apt install libqt5gui5", "envpool",
        "--vec=envpool --num_steps=64 --num_minibatches=8", alone=ITS_OWN),
    Row("MinAtar", "MinAtar/Breakout-v1", "pip install minatar", "minatar"),
    Row("procgen", "procgen_gym/procgen-coinrun-v0",
        "pip install procgen-gym, with Python 3.13", "procgen_gym"),
)


def measured(row: Row, seconds: float, peer_seconds: float) -> dict[str, Any]:
    """The figures of a row: our steps per second and returns, and Stable-Baselines3's speed."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        begun = time.monotonic()
        train(row, run, seconds)
        found = figures(run)
        command = [sys.executable, __file__, row.name, "--sb3", f"{run}/config.json",
                   "--peer_seconds", f"{peer_seconds:g}"]
        other = {"failed": row.alone} if row.alone else answer(command, 300 + peer_seconds)
    dist, = {name for name in metadata.packages_distributions()[row.package]
             if "assets" not in name}
    return {"name": row.name, "env_name": row.env_name, **found, "sb3": other,
            "seconds": round(time.monotonic() - begun, 1),
            "versions": {dist: metadata.version(dist), "gymnasium": metadata.version("gymnasium"),
                         "python": platform.python_version()}}


def train(row: Row, run: Path, seconds: float) -> None:
    """Runs the command of a row, and stops it some seconds after its first iteration."""
    command = [sys.executable, "-W", "ignore", str(ROOT / "main.py"), *row.arguments, "--seed=1",
               "--eval_episodes=0", "--progress=lines", f"--run_dir={run}"]
    env = dict([row.variable.split("=")] if row.variable else []) | os.environ | {
        "PYTHONPATH": str(ROOT)}  # of examples.packages; some packages write into the folder
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, cwd=run.parent, env=env, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=subprocess.STDOUT)
        limit = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < limit:
            time.sleep(0.2)
            if "\nstep " in os.pread(out.fileno(), 2**20, 0).decode(errors="replace"):
                break
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.send_signal(signal.SIGINT)
        process.wait(60)
        out.seek(0)
        if not (run / "metrics.csv").exists() or len(rows_of(run / "metrics.csv")) < 2:
            raise RuntimeError(out.read()[-3000:])


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def figures(run: Path) -> dict[str, Any]:
    """Steps per second after the first iteration, and the returns at the beginning and the end."""
    metrics, episodes = rows_of(run / "metrics.csv"), rows_of(run / "episodes.csv")
    (first, start), (last, end) = ((float(one["global_step"]), float(one["global_step"])
                                    / float(one["charts/SPS"])) for one in
                                   (metrics[0], metrics[-1]))
    returns = [float(one["return"]) for one in episodes]
    count = min(100, len(returns) // 4)
    found = {"steps": int(last), "rate": round((last - first) / (end - start), 1)}
    if count < 2:
        return found | {"first": None, "last": None, "learns": None}
    early, late = returns[:count], returns[-count:]
    error = ((variance(early) + variance(late)) / count) ** 0.5
    return found | {"first": round(mean(early), 2), "last": round(mean(late), 2),
                    "learns": mean(late) - mean(early) > 3 * error}


def answer(command: list[str], limit: float) -> dict[str, Any]:
    """The last line of a command's output, as JSON; the reason if there is none."""
    from fastppo.machine.child_process import THREAD_LIMITS
    env = {**os.environ, **dict.fromkeys(THREAD_LIMITS, "1"), "PYTHONPATH": str(ROOT)}
    try:
        ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True,
                             timeout=limit)
    except subprocess.TimeoutExpired:
        return {"failed": f"no two iterations in {limit:g} s"}
    lines = ran.stdout.strip().splitlines()
    if ran.returncode or not lines:
        return {"failed": (ran.stderr.strip().splitlines() or ["it ended"])[-1][:300]}
    return json.loads(lines[-1])


def measure_sb3(row: Row, settings: Path, seconds: float) -> None:
    """Prints Stable-Baselines3's rate in the environment of a row, with a run's settings."""
    from fastppo.benchmark import peers
    from fastppo.benchmark.measure_one import Measurement
    from fastppo.benchmark.session import sizes_of
    from fastppo.envs.families import family_of_id, register
    if row.variable:
        os.environ.update([row.variable.split("=")])
    if ":" not in row.env_name and (family := family_of_id(row.env_name)):
        register(family)
    config = json.loads(settings.read_text())
    sizes = sizes_of(config, Measurement("", config, seconds, None))
    if config["grayscale"] or config["resize"]:
        sizes["env_name"] = f"{__name__}:images_as_ours"
        globals()["images_as_ours"] = lambda **kwargs: own_images(config)
    print(json.dumps(peers.sb3(sizes)))


def own_images(config: dict[str, Any]) -> Any:
    """The environment with fastppo's preprocessing of images, for Stable-Baselines3, too."""
    import gymnasium as gym

    from fastppo.envs.make import make_factory, wrapping
    env = make_factory(config["env_name"], **wrapping(config))()
    space = env.observation_space
    if not isinstance(space, gym.spaces.Dict):
        return env if len(space.shape) > 2 else gym.wrappers.ReshapeObservation(
            env, (*space.shape, 1))
    whole = gym.spaces.Dict({
        key: gym.spaces.Box(0, 255, (*part.shape, 1), part.dtype)
        if part.dtype == "uint8" and len(part.shape) == 2 else part for key, part in space.items()})
    return gym.wrappers.TransformObservation(env, lambda obs: {
        key: obs[key].reshape(part.shape) for key, part in whole.items()}, whole)


def table() -> str:
    """The table of the page, from the files."""
    found = {path.stem: json.loads(path.read_text()) for path in sorted(FILES.glob("*.json"))}
    return HEAD + "".join(line(row, found.get(row.name)) for row in ROWS)


def line(row: Row, found: dict[str, Any] | None) -> str:
    """The line of a row; without figures if it has no file."""
    command = f"`{f'{row.variable} … ' if row.variable else ''}--env_name={row.env_name}" \
        f"{f' {row.flags}' if row.flags else ''}`"
    cells = [command, f"`{row.install}`", *cells_of(found)]
    return "| " + " | ".join(cells) + " |\n"


def cells_of(found: dict[str, Any] | None) -> list[str]:
    """The cells with figures of a row."""
    if found is None:
        return ["not measured", "", "", "", ""]
    rate, sb3 = found["rate"], found["sb3"]
    other = f"{sb3['rate']:,.0f}" if "rate" in sb3 else sb3["failed"].replace("|", "\\|")
    ratio = f"{rate / sb3['rate']:.1f}" if "rate" in sb3 else ""
    steps = f" ({found['steps']:,} steps)"
    if found["learns"] is None:
        return [f"{rate:,.0f}", other, ratio, f"too few episodes{steps}", "not seen"]
    return [f"{rate:,.0f}", other, ratio, f"{found['first']:,g} → {found['last']:,g}{steps}",
            "yes" if found["learns"] else "no"]


def write_table() -> None:
    """Puts the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}", encoding="utf-8")


def main() -> None:
    """Measures the rows that are asked for, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", help="rows to measure again")
    parser.add_argument("--seconds", type=float, default=120, help="of our training")
    parser.add_argument("--peer_seconds", type=float, default=20, help="of Stable-Baselines3's")
    parser.add_argument("--table", action="store_true", help="only write the table")
    parser.add_argument("--sb3", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    rows = {row.name: row for row in ROWS}
    if unknown := {*given.names} - rows.keys():
        parser.error(f"there are no rows {', '.join(unknown)}; there are {', '.join(rows)}")
    if given.sb3:
        return measure_sb3(rows[given.names[0]], given.sb3, given.peer_seconds)
    for row in () if given.table else ROWS:
        file = FILES / f"{row.name}.json"
        if row.name not in given.names if given.names else file.exists():
            continue
        if importlib.util.find_spec(row.package):
            print(f"{row.name:18}", end="", flush=True)
            try:
                found = measured(row, given.seconds, given.peer_seconds)
            except RuntimeError as error:
                print(f"failed\n{error}", flush=True)
                continue
            file.write_text(json.dumps(found, indent=1) + "\n")
            print(*cells_of(found), sep=" | ", flush=True)
    write_table()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
