"""Speed of training with outputs and without: python bench/output_cost.py [ROUNDS] [OUTPUT ...]

Trains LunarLander-v3 in a pseudo-terminal with each of the outputs, in turns, and prints the median
of the ratios to the run beside it without outputs: of the steps per second of learn(), and of the
CPU seconds that its process and all below it take meanwhile, which depend less on other programs.
The first 20,000 steps, with imports and first files, do not count. wandb logs offline.
"""

import json
import os
import pty
import statistics
import sys
import tempfile

STEPS = 200_000
LOGGERS = ("tensorboard", "wandb", "trackio")
OUTPUTS = {"nothing": {}, "csv": {"run_dir": "run"}, "live": {"progress": "live"},
           **{name: {"run_dir": "run", "logger": name} for name in LOGGERS},
           "all": {"run_dir": "run", "progress": "live", "logger": LOGGERS}}
TRAIN = """
import json, os, sys, time
from fastppo import PPO
def cpu_seconds():  # of this process and all below it
    stats = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                stats[int(name)] = file.read().rpartition(")")[2].split()
        except OSError:  # it has ended
            pass
    ours = {os.getpid()}
    while found := {pid for pid, stat in stats.items() if int(stat[1]) in ours} - ours:
        ours |= found
    return sum(int(stats[pid][11]) + int(stats[pid][12]) for pid in ours) / os.sysconf("SC_CLK_TCK")
with PPO("LunarLander-v3", seed=1, **json.loads(sys.argv[2])) as ppo:
    ppo.learn(20_000)  # imports, first files
    begun, began, cpu = time.perf_counter(), ppo.step, cpu_seconds()
    ppo.learn(int(sys.argv[1]))
    found = (ppo.step - began) / (time.perf_counter() - begun), cpu_seconds() - cpu
with open("found", "w") as file:
    json.dump(found, file)
"""


def measure(settings: dict) -> tuple[float, float]:
    """(steps per second, CPU seconds) of one run."""
    with tempfile.TemporaryDirectory() as folder:
        pid, terminal = pty.fork()
        if not pid:
            os.chdir(folder)
            os.environ |= {"WANDB_MODE": "offline", "TRACKIO_DIR": folder}
            os.execv(sys.executable, [sys.executable, "-c", TRAIN, str(STEPS),
                                      json.dumps(settings)])
        said = b""
        try:
            while text := os.read(terminal, 65_536):
                said += text
        except OSError:  # the process has ended
            pass
        code = os.waitpid(pid, 0)[1]
        os.close(terminal)
        assert code == 0, said.decode(errors="replace")[-2_000:]
        with open(os.path.join(folder, "found"), encoding="utf-8") as file:
            return tuple(json.load(file))


def main() -> None:
    """Measures in turns, and prints the medians of the ratios."""
    rounds, names = int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:] or [*OUTPUTS][1:]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ("nothing", *names)}
    for _ in range(rounds):
        for name, measured in found.items():
            measured.append(measure(OUTPUTS[name]))
            print(f"{name:12} {measured[-1][0]:9,.0f} steps/s {measured[-1][1]:7.2f} CPU s",
                  flush=True)
    for name in names:
        for what, i in ("steps/s", 0), ("CPU seconds", 1):
            ratios = [one[i] / bare[i] for one, bare in zip(found[name], found["nothing"])]
            print(f"{name:12} {what:12} {statistics.median(ratios):.3f}"
                  f" ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    main()
