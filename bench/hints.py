"""Hints on runs that learn: none may appear. One line per run in bench/hints.json.

Warnings that are no hints stand apart: BipedalWalker's observations do leave the bounds of its
space, and MuJoCo warns of its own attributes.

    python bench/hints.py                                  # the environments of docs/results.md
    python bench/hints.py --preset general --seeds 1 2 3   # as if they had none of their own
    python bench/hints.py --env Acrobot-v1 --steps 20000

A run has the length that the table of results says, so that a tenth of it is that of the real one,
and is stopped after --steps. Beside the hints and warnings stands how near the run
came to two of them: the steps until two rewards or two lengths of episodes differed, and the lowest
entropy of choices in the first tenth, in nats.
"""

import argparse
import json
import logging
from pathlib import Path

from study_tasks import DEVELOPMENT

from fastppo import PPO
from fastppo.terminal.hints import EARLY, Hints

KEPT = Path(__file__).with_name("hints.json")


class Watch(logging.Handler):
    """What a run is told: hints and warnings, and how near it came to others."""

    def __init__(self, steps: int):
        super().__init__()
        self.hints, self.steps, self.said, self.warnings = Hints(), steps, [], []
        self.alike, self.entropy = 0, None

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the first line of a warning."""
        self.warnings.append(record.getMessage().partition("\n")[0])

    def __call__(self, ppo, stats: dict[str, float]) -> bool:
        """Looks at an iteration; ends the run after its steps."""
        hints = self.hints
        self.said += hints.new(hints.of_learning(ppo, stats))
        if len(hints.rewards) < 2 and len(hints.lengths) < 2:
            self.alike = hints.steps
        if ppo.arena["act"].dtype.kind == "i" and ppo.step <= EARLY * ppo.total:
            entropy = round(stats["losses/entropy"], 4)
            self.entropy = min(self.entropy or entropy, entropy)
        return ppo.step < self.steps


def watched(env: str, preset: str, seed: int, total: int, steps: int) -> dict:
    """The result of one run."""
    watch = Watch(steps)
    log = logging.getLogger("fastppo")
    log.addHandler(watch)
    try:
        with PPO(env, seed=seed, num_workers=0, preset=preset, total_steps=total) as ppo:
            ppo.learn(callbacks=watch)
            return {"env": env, "preset": preset, "seed": seed, "steps": ppo.step,
                    "hints": watch.said, "warnings": watch.warnings, "alike": watch.alike,
                    "entropy": watch.entropy}
    finally:
        log.removeHandler(watch)


def main() -> None:
    """Runs what the command line asks for, and adds the results to those that are kept."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="auto", choices=["auto", "general"])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--env", nargs="*", default=[*DEVELOPMENT])
    parser.add_argument("--steps", type=int, default=110_000)
    parser.add_argument("--out", type=Path, default=KEPT)
    args = parser.parse_args()
    for env in args.env:
        for seed in args.seeds:
            one = watched(env, args.preset, seed, DEVELOPMENT[env], args.steps)
            keep(args.out, one)
            print(json.dumps(one), flush=True)


def keep(path: Path, one: dict) -> None:
    """Adds a result to a file, in the place of an older one of the same run."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    rows = [row for row in rows
            if any(row[name] != one[name] for name in ("env", "preset", "seed"))]
    text = ",\n".join(map(json.dumps, [*rows, one]))
    path.write_text(f"[{text}]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
