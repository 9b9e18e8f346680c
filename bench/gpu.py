"""The steps of bench/gpu.sh: facts, tests and measurements on a GPU, each with its own limit.

    python bench/gpu.py FOLDER [--only=pong,tests] [--seconds=580]

A step that fails or takes too long does not end the others; all together end after --seconds.
FOLDER gets the output of each step, results.json, and report.txt, which is also printed. A step
writes its figures to FOLDER/<step>.json and its run to FOLDER/<step>_run: what an earlier call has
left there is removed.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from fastppo.machine.kernels import backend  # noqa: E402

MAIN = [sys.executable, "main.py"]
RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
         "main.py"]
PONG = ["--env_name=PongNoFrameskip-v4", "--model=cnn", "--device=cuda", "--num_envs=128",
        "--num_steps=32", "--epochs=4", "--num_minibatches=4"]
LANDER = ["--env_name=LunarLander-v3", "--preset=none", "--num_envs=128", "--num_steps=128",
          "--epochs=4", "--num_minibatches=8"]


class Step(NamedTuple):
    """A command, and the seconds that it may take."""

    name: str
    seconds: int
    command: list[str]


def bench(name: str, seconds: int, settings: list[str], folder: Path) -> Step:
    """A measurement of the whole loop and its parts by `main.py bench`."""
    return Step(name, seconds, [*MAIN, "bench", *settings, "--rounds=1", "--seconds=3",
                                f"--json={folder / name}.json"])


def train(name: str, seconds: int, settings: list[str], folder: Path) -> Step:
    """A training without an evaluation; on two ranks if it is called `ranks`."""
    return Step(name, seconds, [*(RANKS if name == "ranks" else MAIN), *settings, "--seed=1",
                                "--eval_episodes=0", f"--run_dir={folder / name}_run",
                                "--progress=lines"])


def script(name: str, seconds: int, words: list[str], folder: Path) -> Step:
    """Another script of bench/, which writes its figures."""
    return Step(name, seconds, [sys.executable, *words, f"--json={folder / name}.json"])


def steps(folder: Path) -> list[Step]:
    """All steps, the important ones first.

    Their limits are 560 seconds together; pip and the build need some before.
    """
    tests = ["tests/promises/test_devices.py", "tests/learners",
             "tests/stepping/test_simulator.py", "tests/build"]
    return [
        Step("machine", 10, ["nvidia-smi"]),
        Step("doctor", 15, [*MAIN, "doctor"]),
        Step("tests", 120, [sys.executable, "-m", "pytest", "-q", "-m", "cuda",
                            "-p", "no:cacheprovider", *tests]),
        bench("pong", 60, [*PONG, "--processes=16"], folder),
        train("training", 40, [*PONG, "--total_steps=300k"], folder),
        script("parts", 40, ["bench/gpu_parts.py"], folder),
        script("simulator", 30, ["bench/simulator.py", "--device=cuda"], folder),
        train("auto", 25, [*LANDER, "--device=auto", "--total_steps=100k"], folder),
        train("ranks", 30, [*PONG, "--device_ids=0,0", "--total_steps=20k"], folder),
        script("compile", 70, ["bench/gpu_parts.py", "--compile"], folder),
        bench("pong_bf16", 40, [*PONG, "--precision=bf16", "--processes=16"], folder),
        bench("lander", 40, [*LANDER, "--device=cpu", "--processes=16"], folder),
        bench("lander_cuda", 40, [*LANDER, "--device=cuda", "--processes=16"], folder),
    ]


def run(step: Step, folder: Path) -> dict[str, Any]:
    """Runs a step; its output goes to a file. Returns its exit code, seconds, and any figures."""
    begun, written = time.monotonic(), folder / f"{step.name}.json"
    written.unlink(missing_ok=True)
    shutil.rmtree(folder / f"{step.name}_run", ignore_errors=True)
    with open(folder / f"{step.name}.txt", "w") as output:
        try:
            process = subprocess.Popen(step.command, stdout=output, stderr=subprocess.STDOUT,
                                       start_new_session=True)
            code: int | str = process.wait(step.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own processes, too
            process.wait()
            code = f"stopped after {step.seconds} s"
        except OSError as error:
            code = str(error)
    found = {"figures": json.loads(written.read_text())} if not code and written.exists() else {}
    return {"command": step.command, "code": code, "seconds": time.monotonic() - begun, **found}


def report_lines(name: str, result: dict[str, Any], folder: Path) -> list[str]:
    """The line of a step, then the figures of a `bench`, or the end of its output."""
    lines = [f"== {name}: code {result['code']}, {result['seconds']:.0f} s"]
    if parts := result.get("figures", {}).get("figures"):
        rows = [f"  {one['part']:14}{one['processes']:3} processes {one['median']:12,.0f} steps/s"
                for one in parts]
        return lines + rows
    text = (folder / f"{name}.txt").read_text(errors="replace").splitlines()
    return lines + [f"  {line}" for line in text[-20:]]


def main() -> None:
    """Runs the steps and writes the report; SystemExit(1) if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of steps")
    parser.add_argument("--seconds", type=int, default=580, help="the limit of all together")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(f"error: torch {torch.__version__} sees no GPU here, so there is nothing"
                         " to measure\n  fix: python main.py doctor says what it sees")
    folder, end = options.folder, time.monotonic() + options.seconds
    folder.mkdir(parents=True, exist_ok=True)
    results, lines = {}, [f"kernels: {backend()}"]
    for step in steps(folder):
        if options.only and step.name not in options.only:
            continue
        print(f"{step.name} ...", flush=True)
        left = max(0, int(end - time.monotonic()))
        results[step.name] = run(step._replace(seconds=min(step.seconds, left)), folder)
        lines += report_lines(step.name, results[step.name], folder)
        # After every step: what is there stays, if the machine is lost.
        (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        (folder / "report.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    if any(one["code"] for one in results.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
