"""Hints: one line each, said once, with the number that was seen and one setting.

Those about learning look at every iteration, those about speed at a Snapshot. What the first
rollouts tell alone is a warning of the trainer: large observations that are not normalised, rewards
at their limit.
"""

from typing import Iterable, Iterator

import numpy as np

from fastppo.settings.known_names import ENTROPY, EPISODES
from fastppo.terminal.banner import folded
from fastppo.terminal.snapshot import Snapshot

BOTTLENECK = 0.6  # share of the time
SETTLED = 20  # snapshots after which shares of the time are believed
LONG_EPISODE = 200_000  # steps without the end of an episode
ALIKE_STEPS = 100_000  # without a difference between rewards, or between lengths of episodes
EARLY, NO_ENTROPY = 0.1, 0.001  # share of the run; nats: MountainCar has learnt on from 0.013


class Hints:
    """Finds the hints that an iteration, or a new snapshot, calls for; `looks` counts those."""

    def __init__(self):
        self.looks, self.said = 0, set()
        self.steps, self.rewards, self.lengths = 0, set(), set()  # the first two or more of each

    def new(self, found: Iterable[tuple[str, str]]) -> list[str]:
        """The lines of those (subject, text) whose subjects are new."""
        new = {subject: hint_line(text) for subject, text in found if subject not in self.said}
        self.said |= {*new}
        return [*new.values()]

    def of_learning(self, ppo, stats: dict[str, float]) -> Iterator[tuple[str, str]]:
        """Counts an iteration, once; (subject, hint) of all that can be said of it."""
        raw, length = ppo.arena["raw"][ppo.arena["valid"]], ppo.arena["length"]
        for seen, values in ((self.rewards, raw), (self.lengths, length[length > 0])):
            if len(seen) < 2:
                seen.update(np.unique(values).tolist())
        self.steps += len(raw)
        more = f"--entropy_coef={10 * ppo.coefficients.entropy_coef or 0.01:g} makes it try more"
        if self.steps >= ALIKE_STEPS and len(self.rewards) == 1 and len(self.lengths) < 2:
            yield "alike", (f"each reward of {self.steps:,} steps was {min(self.rewards):g}, and no"
                            f" episode's length differed, so there is nothing to learn: {more}")
        share, choices = ppo.step / (ppo.total or 1), ppo.arena["act"].dtype.kind == "i"
        if share <= EARLY and stats[ENTROPY] < NO_ENTROPY and choices and ppo.policy.head.size > 1 \
                and ppo.policy.observer.layout.mask is None:  # which may leave one action
            yield "entropy", (f"the entropy has fallen to {stats[ENTROPY]:.1g} in {share:.0%} of"
                              f" the run: {more}")

    def of_speed(self, now: Snapshot) -> Iterator[tuple[str, str]]:
        """Counts a snapshot; (subject, hint) of all that can be said of it."""
        self.looks += 1
        if self.looks >= SETTLED and now.shares.get("environment", 0.0) >= BOTTLENECK:
            workers = max(1, now.workers)
            more = f"{workers} of {now.cores} cores: --num_workers={now.cores}" \
                if workers < now.cores else \
                f"{now.cores} cores: more workers cannot help, a faster environment can"
            yield "environment", (f"{now.shares['environment']:.0%} of the time is environment"
                                  f" stepping on {more}")
        if now.step >= LONG_EPISODE and not now.stats.get(EPISODES):
            yield "episodes", (f"no episode has ended in {now.step:,} steps:"
                               " --max_episode_steps=1000 truncates them")


def hint_line(text: str) -> str:
    """A hint as a line, or several in a narrow terminal."""
    return folded([f"hint      {text}"])[0]
