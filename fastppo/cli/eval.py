"""The verb: fastppo eval MODEL|RUN [--episodes=INT] [--seed=INT] [--stochastic] [--json]."""

import json
import statistics
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Sequence

from fastppo.cli.command_line import words_and_options
from fastppo.errors import ConfigError, format_value
from fastppo.machine.child_process import without_secrets
from fastppo.machine.stderr import episode_status, status_while
from fastppo.runs.folder import check_file, policy_at
from fastppo.settings.known_names import BEST_FILE
from fastppo.settings.values import check_episodes, return_text


@dataclass(frozen=True)
class PolicyOptions:
    """Which policy is played, in which environment."""

    OPERANDS = "MODEL|RUN"
    best: bool = False
    """Of a run's folder take best.safetensors, the best policy of the evaluations while training,
    not model.safetensors, the last one"""
    model: str | None = None
    """Class of the network in the file, as `module:Class`, if it is a network of your own"""
    env_name: str | None = None
    """Environment, an id (EnvPool's if vec was envpool) or `module:callable`; none: the one in the
    file if that is an id, because code that a file names is never imported"""
    env_kwargs: dict[str, Any] | None = None
    """Arguments of the environment; none: those in the file, if they are numbers"""
    max_episode_steps: int | None = None
    """Steps after which an episode ends; none: as in training"""
    seed: int | None = None
    """Seed of the episodes; none: that of the run, so they are those of its last evaluation"""
    stochastic: bool = False
    """Sample the actions, as in training, instead of taking the likeliest ones"""


@dataclass(frozen=True)
class Eval(PolicyOptions):
    """Play episodes with a trained policy, and print their returns.

      {0} eval runs/latest --episodes=20

    MODEL is the file of a policy, RUN the folder of a run.
    """

    opponent: str | None = None
    """Who acts for all other agents of a game: random, or the file or folder of another policy;
    none: the policy itself"""
    episodes: int | None = None
    """Number of episodes; none: the run's own eval_episodes, or 100 if they are 0"""
    json: bool = False
    """Print one JSON object, which also has the return and the length of every episode"""


def eval_verb(argv: Sequence[str], interrupts) -> None:
    """Evaluates the policy that `argv` names, and prints the result."""
    (place,), options = words_and_options(argv, Eval)
    print_evaluation(place, options)


def print_evaluation(place: str, options: Eval) -> None:
    """Evaluates the policy in a file or folder, and prints the result."""
    check_episodes(100 if options.episodes is None else options.episodes)
    path = policy_file(Path(place), options)
    policy, factories, seed, text = loaded(path, options)
    if not options.json:
        print(text + f"\nopponent  {options.opponent}" * bool(options.opponent), flush=True)
    from fastppo.evaluation.evaluate import evaluate
    from fastppo.networks.torch_state import torch_threads
    episodes = options.episodes or policy.config.eval_episodes or 100
    with torch_threads(policy.threads, policy.config.precision == "tf32"), \
            episode_status(episodes) as report:
        make = match_against(options.opponent, policy, seed) if options.opponent else None
        found = evaluate(policy, factories, seed, episodes, not options.stochastic, report, make)
    facts = {"model": str(path), "env_name": factories[0].name, "seed": seed,
             "deterministic": not options.stochastic}
    print(json.dumps(facts | result_numbers(found)) if options.json
          else "\n".join(result_lines(found)), flush=True)


def match_against(name: str, policy: Any, seed: int) -> Any:
    """What makes MatchEnvs of `policy` against one in a file or folder, or against random moves."""
    from fastppo.evaluation.evaluate import check_spaces
    from fastppo.evaluation.match import MatchEnvs, RandomPlayer
    from fastppo.runs.policy_file import load
    check_game(policy)
    if name == "random":
        return partial(MatchEnvs, opponent=RandomPlayer(policy.observer.layout, seed))
    other = load(policy_file(Path(name), PolicyOptions()))
    check_spaces(f"{name} is a policy whose", (policy.obs_space, policy.act_space), (
        other.obs_space, other.act_space), "give a policy of the same game")
    return partial(MatchEnvs, opponent=other)


def check_game(policy: Any) -> None:
    """Raises ConfigError unless a policy plays a game of several agents."""
    if policy.config.agents == 1:
        raise ConfigError(f"{policy.config.env_name} is no game of several agents")


def score_lines(scores: Any) -> list[str]:
    """The lines of the scores [n] of a match: games, and the share of points with its interval.

    Source: Wilson 1927, 95 %.
    """
    n, mean, z = len(scores), scores.mean(), 1.96
    middle = (mean + z * z / 2 / n) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (mean * (1 - mean) / n + z * z / 4 / n / n) ** 0.5
    won, drawn, lost = ((scores == x).sum() for x in (1, 0.5, 0))
    who = "the policy" if middle - half > 0.5 else "the opponent" if middle + half < 0.5 else ""
    return [f"games     {n}: {won} won, {drawn} drawn, {lost} lost",
            f"score     {mean:.3f}, 95 % interval {middle - half:.3f} to {middle + half:.3f}: "
            + (f"{who} is better" if who else "no clear difference")]


def policy_file(place: Path, options: PolicyOptions) -> Path:
    """The file of the policy that a command names.

    Raises PathError, without torch, if there is none.
    """
    path = place / BEST_FILE if options.best else policy_at(place)
    check_file(path, "policy")
    return path


def loaded(path: Path, options: PolicyOptions) -> tuple[Any, Any, int, str]:
    """(policy in a file, the factories of its environments, seed, lines that name all three)."""
    with status_while(f"loading {path}"):
        from fastppo.runs.policy_file import factories_for, load
        policy = load(path, model=options.model)
        factories = factories_for(policy, options.env_name, options.env_kwargs,
                                  options.max_episode_steps)
    seed = policy.seed_of_episodes(options.seed)
    how = "stochastic" if options.stochastic else "deterministic"
    return policy, factories, seed, (
        f"model     {path}\nenv       {env_text(factories[0])}, seed {seed}, {how} actions")


def env_text(factory: Any) -> str:
    """The name of an environment, and its arguments without passwords if it has some."""
    kwargs = without_secrets(factory.kwargs)
    return f"{factory.name} {format_value(kwargs)}" if kwargs else factory.name


def result_lines(found) -> list[str]:
    """The lines of an Evaluation: mean return, its spread, and length."""
    numbers = result_numbers(found)
    scale = max(map(abs, numbers["returns"]))
    spread = "   ".join(f"{name} {return_text(numbers[name], scale)}"
                        for name in ("min", "median", "max"))
    return [f"return    {found}",
            *([f"spread    {spread}"] if len(found.returns) > 1 else []),
            f"length    {numbers['length']:,.1f} steps" + " on average" * (len(found.returns) > 1),
            *(score_lines(found.scores) if len(found.scores) else [])]


def result_numbers(found) -> dict[str, Any]:
    """An Evaluation as JSON values; a single episode has neither std nor ci95."""
    several = len(found.returns) > 1
    returns = found.returns.tolist()
    return {"episodes": len(returns), "mean": found.mean,
            "std": found.std if several else None, "ci95": found.ci95 if several else None,
            "min": min(returns), "median": statistics.median(returns), "max": max(returns),
            "length": float(found.lengths.mean()),
            "returns": returns, "lengths": found.lengths.tolist(),
            **({"scores": found.scores.tolist()} if len(found.scores) else {})}
