"""Hints: sentences that a measurement of a run calls for, each said once."""

from typing import Callable

from fastppo.display.snapshot import Snapshot
from fastppo.settings.metric_names import EPISODES, KL

BOTTLENECK = 0.6  # share of the time
BUSY = 0.7  # other programs for each core
SETTLED = 20  # snapshots after which shares of the time are believed
HIGH_KL, KL_LOOKS = 0.05, 5
LONG_EPISODE = 200_000  # steps without the end of an episode


class Hints:
    """Finds the hints that a new snapshot calls for.

    `looks` counts the snapshots, `high_looks` those with a high KL in a row until now.
    """

    def __init__(self):
        self.looks, self.high_looks, self.rules = 0, 0, list(HINT_RULES)

    def take(self, now: Snapshot) -> list[str]:
        """The hints that were not found before."""
        self.looks += 1
        self.high_looks = self.high_looks + 1 if now.stats[KL] > HIGH_KL else 0
        found = {rule: text for rule in self.rules if (text := rule(now, self))}
        self.rules = [rule for rule in self.rules if rule not in found]
        return list(found.values())


def environment_bound(now: Snapshot, seen: Hints) -> str | None:
    """Most of the time is spent in the environments."""
    share = now.shares.get("environment", 0.0)
    if share < BOTTLENECK or seen.looks < SETTLED or now.others > BUSY:
        return None
    text = f"{share:.0%} of the time is environment stepping"
    if max(1, now.workers) < now.cores:
        return f"{text} on {max(1, now.workers)} of {now.cores} cores: --num_workers={now.cores}"
    return f"{text} on {now.cores} cores: more workers cannot help, a faster environment can"


def shared_cores(now: Snapshot, seen: Hints) -> str | None:
    """Other programs take much of the cores' time."""
    if now.others <= BUSY or seen.looks < SETTLED:
        return None
    return "other programs use these cores, which slows this run; a limit assumes they are free"


def high_kl(now: Snapshot, seen: Hints) -> str | None:
    """The updates change the policy too much."""
    if seen.high_looks < KL_LOOKS:
        return None
    return f"the KL stays above {HIGH_KL}, now {now.stats[KL]:.2f}: try --lr={now.lr / 3:.0e}"


def endless_episode(now: Snapshot, seen: Hints) -> str | None:
    """No episode ends, so there is no return to look at."""
    if now.step < LONG_EPISODE or now.stats.get(EPISODES):
        return None
    return f"no episode has ended in {now.step:,} steps: --max_episode_steps=1000 truncates them"


HINT_RULES: tuple[Callable[[Snapshot, Hints], str | None], ...] = (
    environment_bound, shared_cores, high_kl, endless_episode)
