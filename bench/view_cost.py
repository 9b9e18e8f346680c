"""CPU seconds of training with the live view and without: python bench/view_cost.py [ROUNDS]

Trains in a pseudo-terminal, in turns, and prints the median ratio of the CPU seconds of the main
process and its workers. CPU seconds depend less on other programs than seconds do.
"""

import os
import pty
import resource
import statistics
import sys
import tempfile
from pathlib import Path

MAIN = Path(__file__).resolve().parents[1] / "main.py"
SETTINGS = ["--env_name=LunarLander-v3", "--seed=1", "--total_steps=200k", "--eval_episodes=0"]


def cpu_seconds(progress: str) -> float:
    """The CPU seconds of one run, in a terminal."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        pid, terminal = pty.fork()
        if not pid:
            os.chdir(folder)
            os.execv(sys.executable, [sys.executable, str(MAIN), *SETTINGS,
                                      f"--progress={progress}"])
        try:
            while os.read(terminal, 65_536):
                pass
        except OSError:  # the process has ended
            pass
        code = os.waitpid(pid, 0)[1]
        os.close(terminal)
    assert code == 0, code
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measures in turns, and prints the medians and their ratio."""
    seconds: dict[str, list[float]] = {"none": [], "live": []}
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        for progress, found in seconds.items():
            found.append(cpu_seconds(progress))
    medians = {progress: statistics.median(found) for progress, found in seconds.items()}
    ratios = [live / none for none, live in zip(*seconds.values())]
    print({progress: [round(x, 2) for x in found] for progress, found in seconds.items()})
    print(f"live / none: {medians['live'] / medians['none']:.3f} of the medians,"
          f" {min(ratios):.3f} to {max(ratios):.3f} in pairs")


if __name__ == "__main__":
    main()
