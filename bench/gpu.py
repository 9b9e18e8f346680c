"""The steps of bench/gpu.sh: facts, tests and measurements on a GPU, each with its own limit.

    python bench/gpu.py FOLDER [--only=parts,tests] [--seconds=580]

A step that fails or takes too long does not end the others; all together end after --seconds, which
count from the start of this script. FOLDER gets three files: report.txt, which is also printed,
results.json, and logs.tar.gz with the output of each step. A step writes its figures to
<step>.json and its run to <step>_run, both in the folder --work: what an earlier call has left of
it there is removed, and so is the run in the end.

The steps OF_A_SECOND_CALL are run only if --only names them: all together have no place in the ten
minutes for which a machine may be lent.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any, NamedTuple

BEGUN = time.monotonic()  # before the import of torch, which may take half a minute

import torch  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1]))
from fastppo.machine.kernels import backend  # noqa: E402

MAIN = [sys.executable, "main.py"]
RANKS = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2",
         "main.py"]
PONG = ["--env_name=PongNoFrameskip-v4", "--model=cnn", "--device=cuda", "--num_envs=128",
        "--num_steps=32", "--epochs=4", "--num_minibatches=4"]
LANDER = ["--env_name=LunarLander-v3", "--preset=none", "--num_envs=128", "--num_steps=128",
          "--epochs=4", "--num_minibatches=8"]


OF_A_SECOND_CALL = "pong", "pong_bf16", "lander", "lander_cuda"


class Step(NamedTuple):
    """A command, the seconds that it may take, and the last lines of its output in the report."""

    name: str
    seconds: int
    command: list[str]
    lines: int = 20


def bench(name: str, seconds: int, settings: list[str], folder: Path) -> Step:
    """A measurement of the whole loop and its parts by `main.py bench`."""
    return Step(name, seconds, [*MAIN, "bench", *settings, "--rounds=1", "--seconds=3",
                                f"--json={folder / name}.json"])


def train(name: str, seconds: int, settings: list[str], folder: Path) -> Step:
    """A training without an evaluation; on two ranks if it is called `ranks`."""
    return Step(name, seconds, [*(RANKS if name == "ranks" else MAIN), *settings, "--seed=1",
                                "--eval_episodes=0", f"--run_dir={folder / name}_run",
                                "--progress=lines"])


def script(name: str, seconds: int, words: list[str], folder: Path, lines: int = 20) -> Step:
    """Another script of bench/, which writes its figures."""
    return Step(name, seconds, [sys.executable, *words, f"--json={folder / name}.json"], lines)


def steps(folder: Path) -> list[Step]:
    """All steps, the important ones first; they write into `folder`.

    Those of a first call have 560 seconds together; pip and the build need some before.
    """
    tests = ["tests/promises/test_devices.py", "tests/compiled", "tests/gpu",
             "tests/trainer"]
    return [
        Step("machine", 10, ["sh", "-c", "nvidia-smi; ulimit -l; nproc; lscpu"], 80),
        Step("doctor", 40, [*MAIN, "doctor"], 60),
        script("parts", 40, ["bench/gpu_parts.py"], folder, 40),
        script("profile", 30, ["bench/gpu_parts.py", "--profile"], folder, 80),
        Step("tests", 180, [sys.executable, "-m", "pytest", "-v", "--tb=short", "-rfE",
                            "--maxfail=20", "-m", "cuda", "-p", "no:cacheprovider", *tests], 60),
        script("variants", 60, ["bench/gpu_parts.py", "--variants"], folder, 60),
        train("training", 30, [*PONG, "--total_steps=300k"], folder),
        script("simulator", 30, ["bench/simulator.py", "--device=cuda"], folder),
        train("ranks", 30, [*PONG, "--device_ids=0,0", "--total_steps=20k"], folder),
        script("compile", 60, ["bench/gpu_parts.py", "--compile"], folder),
        bench("pong", 200, [*PONG, "--processes=16"], folder),
        bench("pong_bf16", 180, [*PONG, "--precision=bf16", "--processes=16"], folder),
        bench("lander", 90, [*LANDER, "--device=cpu", "--processes=16"], folder),
        bench("lander_cuda", 90, [*LANDER, "--device=cuda", "--processes=16"], folder),
    ]


def run(step: Step, folder: Path) -> dict[str, Any]:
    """Runs a step; its output goes to a file. Returns its exit code, seconds, and any figures."""
    begun, written = time.monotonic(), folder / f"{step.name}.json"
    written.unlink(missing_ok=True)
    shutil.rmtree(folder / f"{step.name}_run", ignore_errors=True)
    with open(folder / f"{step.name}.txt", "w") as output:
        try:
            process = subprocess.Popen(  # unbuffered: a killed step has said what it has done
                step.command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"})
            code: int | str = process.wait(step.seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its own processes, too
            process.wait()
            code = f"stopped after {step.seconds} s"
        except OSError as error:
            code = str(error)
    shutil.rmtree(folder / f"{step.name}_run", ignore_errors=True)
    found = {"figures": json.loads(written.read_text())} if not code and written.exists() else {}
    return {"command": step.command, "code": code, "seconds": time.monotonic() - begun, **found}


def report_lines(step: Step, result: dict[str, Any], folder: Path) -> list[str]:
    """The line of a step, then the figures of a `bench`, or the end of its output."""
    lines = [f"== {step.name}: code {result['code']}, {result['seconds']:.0f} s"]
    if parts := result.get("figures", {}).get("figures"):
        rows = [f"  {one['part']:14}{one['processes']:3} processes {one['median']:12,.0f} steps/s"
                for one in parts]
        return lines + rows
    text = (folder / f"{step.name}.txt").read_text(errors="replace").splitlines()
    return lines + [f"  {line}" for line in text[-step.lines:]]


def write_results(folder: Path, work: Path, results: dict[str, Any], lines: list[str]) -> None:
    """Writes the three files of FOLDER."""
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "report.txt").write_text("\n".join(lines) + "\n")
    with tarfile.open(folder / "logs.tar.gz", "w:gz") as archive:
        for path in sorted(work.glob("*.txt")):
            archive.add(path, path.name)


def main() -> None:
    """Runs the steps and writes the report; SystemExit(1) if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of steps")
    parser.add_argument("--seconds", type=int, default=580, help="the limit of all together")
    parser.add_argument("--work", type=Path, default=Path("build/gpu_work"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(f"error: torch {torch.__version__} sees no GPU here, so there is nothing"
                         " to measure\n  fix: python main.py doctor says what it sees")
    folder, work, end = options.folder, options.work, BEGUN + options.seconds
    folder.mkdir(parents=True, exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    results, lines = {}, [f"kernels: {backend()}"]
    for step in steps(work):
        if step.name not in (options.only or {step.name} - {*OF_A_SECOND_CALL}):
            continue
        print(f"{step.name} ...", flush=True)
        left = max(0, int(end - time.monotonic()))
        results[step.name] = run(step._replace(seconds=min(step.seconds, left)), work)
        lines += report_lines(step, results[step.name], work)
        write_results(folder, work, results, lines)  # what is there stays, if the machine is lost
    print("\n".join(lines))
    if any(one["code"] for one in results.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
