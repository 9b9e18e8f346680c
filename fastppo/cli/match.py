"""The verb: fastppo match A B [--games=200]."""

from dataclasses import dataclass
from typing import Sequence

from fastppo.cli.command_line import words_and_options
from fastppo.cli.eval import Eval, PolicyOptions, print_evaluation
from fastppo.settings.values import check_episodes


@dataclass(frozen=True)
class Match(PolicyOptions):
    """Play games of several agents between two policies, and say which one is better.

      {0} match runs/new runs/old
      {0} match runs/latest random

    A and B are files of policies or folders of runs; B may be `random`. A acts for each
    agent of a game in turn, and B for the others.
    """

    OPERANDS = "A B"
    games: int = 200
    """Number of games"""
    stochastic: bool = True
    """Sample the actions of both; likeliest actions make the same game again and again"""
    json: bool = False
    """Print one JSON object, which also has the score and the length of every game"""


def match_verb(argv: Sequence[str], interrupts) -> None:
    """Plays the two policies that `argv` names against each other, and prints the result."""
    (a, b), options = words_and_options(argv, Match)
    check_episodes(options.games, "games")
    given = vars(options) | {"opponent": b, "episodes": options.games}
    del given["games"]
    print_evaluation(a, Eval(**given))
