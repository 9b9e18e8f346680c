"""The verb: fastppo eval MODEL|RUN [--episodes=100] [--seed=INT] [--stochastic] [--json]."""

import json
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Sequence

from fastppo.arguments.command_line import file_and_options
from fastppo.arguments.policy_options import POLICY_FIX, PolicyOptions
from fastppo.cli.interrupts import Interrupts
from fastppo.files.run_folder import check_file


@dataclass(frozen=True)
class Eval(PolicyOptions):
    """Play episodes with a trained policy, and print their returns.

      {0} eval runs/latest --episodes=20

    MODEL is the file of a policy, RUN the folder of a run.
    """

    episodes: int = 100
    """Number of episodes"""
    json: bool = False
    """Print one JSON object, which also has the return and the length of every episode"""


def eval_verb(argv: Sequence[str], interrupts: Interrupts) -> None:
    """Evaluates the policy that `argv` names, and prints the result."""
    place, options = parse_eval(argv)
    path = options.file(place)
    check_file(path, POLICY_FIX)
    from fastppo.evaluation.evaluate import evaluate
    from fastppo.evaluation.loaded_policy import factories_for, load
    policy = load(path, model=options.model)
    factories = factories_for(policy, options.env_name, options.env_kwargs,
                              options.max_episode_steps)
    seed = policy.seed_of_episodes(options.seed)
    with episode_status(options.episodes) as report:
        found = evaluate(policy, factories, seed, options.episodes, not options.stochastic, report)
    facts = {"model": str(path), "env_name": factories[0].name, "seed": seed,
             "deterministic": not options.stochastic}
    print(json.dumps(facts | result_numbers(found)) if options.json
          else "\n".join(result_lines(facts, found)), flush=True)


def parse_eval(argv: Sequence[str]) -> tuple[Path, Eval]:
    """(file of a policy or folder of a run, options); ConfigError for a wrong word."""
    return file_and_options(argv, Eval, "MODEL|RUN", "the file of a policy or the folder of a run")


@contextmanager
def episode_status(episodes: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that shows how many of the `episodes` have ended, if they take long."""
    from fastppo.display.status_line import StatusLine
    begun = time.monotonic()
    with StatusLine() as status:
        yield lambda ended: status(f"played {ended:,} of {episodes:,} episodes"
                                   f" in {time.monotonic() - begun:.0f} s")


def result_lines(facts: dict[str, Any], found) -> list[str]:
    """The lines of an Evaluation: the policy, mean return, its spread, and length."""
    numbers = result_numbers(found)
    how = "deterministic" if facts["deterministic"] else "stochastic"
    spread = "   ".join(f"{name} {numbers[name]:.1f}" for name in ("min", "median", "max"))
    return [f"model     {facts['model']}",
            f"env       {facts['env_name']}, seed {facts['seed']}, {how} actions",
            f"return    {found}",
            *([f"spread    {spread}"] if len(found.returns) > 1 else []),
            f"length    {numbers['length']:,.1f} steps" + " on average" * (len(found.returns) > 1)]


def result_numbers(found) -> dict[str, Any]:
    """An Evaluation as JSON values; a single episode has neither std nor ci95."""
    several = len(found.returns) > 1
    ordered = sorted(found.returns.tolist())
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    return {"episodes": len(found.returns), "mean": found.mean,
            "std": found.std if several else None, "ci95": found.ci95 if several else None,
            "min": ordered[0], "median": middle, "max": ordered[-1],
            "length": float(found.lengths.mean()),
            "returns": found.returns.tolist(), "lengths": found.lengths.tolist()}
