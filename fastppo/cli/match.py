"""The verb: fastppo match A B [--games=200]."""

from dataclasses import dataclass
from typing import Sequence

from fastppo.cli.command_line import words_and_options
from fastppo.cli.eval import PolicyOptions, eval_verb


@dataclass(frozen=True)
class Match(PolicyOptions):
    """Play games of several agents between two policies, and say which one is better.

      {0} match runs/new runs/old
      {0} match runs/latest random

    A and B are files of policies or folders of runs; B may be `random`. A acts for each
    agent of a game in turn, and B for the others. Both sample their actions.
    """

    OPERANDS = "A B"
    games: int = 200
    """Number of games"""


def match_verb(argv: Sequence[str], interrupts) -> None:
    """Plays the two policies that `argv` names against each other, and prints the result."""
    (a, b), options = words_and_options(argv, Match)
    rest = [word for word in argv if word not in (a, b) and not word.startswith("--games")]
    eval_verb([a, f"--opponent={b}", f"--episodes={options.games}", "--stochastic", *rest],
              interrupts)
