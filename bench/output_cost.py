"""The cost of a run's outputs while it trains: python bench/output_cost.py [ROUNDS] [OUTPUT ...]

Trains LunarLander-v3 in a pseudo-terminal with each of the outputs, in turns, and prints medians:

- share: the CPU time of calls of sinks in the main thread, of all other threads, and of all
  processes that are no workers, in % of that of the whole run. Without outputs it is that of
  training's own threads: the difference is the outputs'.
- steps/s: the ratio to the run beside it without outputs.
- each sink: the CPU time of its calls in the main thread, in % of that of the whole run.

The first 20,000 steps and the start of the loggers do not count. wandb logs offline.
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
import collections, json, os, sys, time
from fastppo import PPO
def read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:  # it has ended
        return ""
def cpu_times():  # {(pid, tid): seconds} of this process and all below it
    parents = {int(name): read(f"/proc/{name}/stat").rpartition(")")[2].split()
               for name in filter(str.isdigit, os.listdir("/proc"))}
    ours = {os.getpid()}
    while found := {pid for pid, stat in parents.items() if stat and int(stat[1]) in ours} - ours:
        ours |= found
    return {(pid, int(tid)): int(read(f"/proc/{pid}/task/{tid}/schedstat").split()[0]) / 1e9
            for pid in ours for tid in os.listdir(f"/proc/{pid}/task")}
def timed(name, function):
    def call(*args):
        begun = time.thread_time()
        try:
            return function(*args)
        finally:
            spent[name] += time.thread_time() - begun
    return call
class Timed:
    def __init__(self, sink):
        self.sink, kind = sink, type(sink).__name__
        self.__dict__ |= {name: timed(kind, getattr(sink, name)) for name in (
            "on_start", "on_collect", "on_iteration", "on_end") if hasattr(sink, name)}
        self.call = timed(kind, sink)
    def __call__(self, *args):
        self.call(*args)
    def __getattr__(self, name):
        return getattr(self.sink, name)
spent = collections.Counter()
with PPO("LunarLander-v3", seed=1, **json.loads(sys.argv[2])) as ppo:
    workers = {worker.process.pid for worker in ppo.collector.vec.team.workers}
    ppo.sinks[:] = map(Timed, ppo.sinks)
    ppo.learn(20_000)
    time.sleep(8.0)  # loggers are imported and started in threads
    spent.clear()
    begun, began, before = time.perf_counter(), ppo.step, cpu_times()
    ppo.learn(int(sys.argv[1]))
    rate = (ppo.step - began) / (time.perf_counter() - begun)
    times = {key: spent - before.get(key, 0.0) for key, spent in cpu_times().items()}
    needed = {key for key in times if key[0] in workers or key == (os.getpid(), os.getpid())}
    outputs = spent.total() + sum(t for key, t in times.items() if key not in needed)
with open("found", "w") as file:
    whole = sum(times.values())
    json.dump((rate, 100 * outputs / whole, {name: 100 * t / whole for name, t in spent.items()}),
              file)
"""


def measure(settings: dict) -> tuple[float, float, dict[str, float]]:
    """(steps per second, share of the outputs in %, that of each sink's calls) of one run."""
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
    """Measures in turns, and prints the medians."""
    rounds, names = int(sys.argv[1]) if len(sys.argv) > 1 else 5, sys.argv[2:] or [*OUTPUTS][1:]
    found: dict[str, list[tuple[float, float, dict[str, float]]]] = {
        name: [] for name in ("nothing", *names)}
    for _ in range(rounds):
        for name, measured in found.items():
            measured.append(measure(OUTPUTS[name]))
            print(f"{name:12} {measured[-1][0]:9,.0f} steps/s   share {measured[-1][1]:.2f} %",
                  flush=True)
    for name, measured in found.items():
        shares = [share for _, share, _ in measured]
        ratios = [one[0] / bare[0] for one, bare in zip(measured, found["nothing"])]
        print(f"{name:12} share {statistics.median(shares):.2f} % ({min(shares):.2f} to"
              f" {max(shares):.2f}), steps/s {statistics.median(ratios):.3f} ({min(ratios):.3f} to"
              f" {max(ratios):.3f})")
        for sink in measured[0][2]:
            print(f"  {sink} {statistics.median(one[2][sink] for one in measured):.3f} %")


if __name__ == "__main__":
    main()
