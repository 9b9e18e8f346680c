"""Opponents that are past selves of a run: a pool of snapshots of its parameters and moments.

    every past_interval iterations -> pool [k ...] -> opponents act by it -> duels -> ratings

Snapshot 0 stays the first policy, and the others are the newest ones; until there are as many, they
are the first, too.
"""

import copy
from typing import Any, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fastppo.games.stepper import POOL, rows_of_snapshots
from fastppo.machine.shared_memory import Arena
from fastppo.policy import Policy
from fastppo.settings.known_names import ELO
from fastppo.stepping.actors import CentralActor
from fastppo.stepping.environments import SNAPSHOTS
from fastppo.update.flat_parameters import trained_parameters

FIRST_RATING, GAIN = 1_000.0, 16.0  # of Elo: where ratings begin, and the most that a game changes


class PastSelves:
    """The pool of a run, and the ratings of its snapshots by the games against them.

    `ratings` f64 [k+1] are Elo's, of the snapshots and then of the policy itself, `before` the last
    iteration and those before it. A new snapshot begins with that of the policy.
    """

    def __init__(self, arena: Arena, interval: int):
        self.arena, self.interval = arena, interval
        self.ratings = np.full(SNAPSHOTS + 1, FIRST_RATING)
        self.before = -1, self.ratings

    def begin(self, iteration: int, policy: Policy) -> None:
        """Begins a rollout; makes the policy a snapshot if that is due, the first one all."""
        number, rest = divmod(iteration, self.interval)
        if not rest:
            k = 1 + (number - 1) % (SNAPSHOTS - 1) if number else slice(None)
            for name, x in zip(POOL, kept_of(policy)):
                self.arena[name][k] = x.detach().cpu().numpy()
            self.ratings[k] = self.ratings[-1]
        self.arena["duels"].fill(np.nan)

    def rate(self, iteration: int) -> None:
        """Rates by the games that ended in a rollout, in order; given again, it changes nothing."""
        if self.before[0] != iteration:
            self.before = iteration, self.ratings
        duels, self.ratings = self.arena["duels"], self.before[1].copy()
        for k, score in duels[~np.isnan(duels[..., 0])].tolist():
            own, other = self.ratings[[-1, int(k)]]
            change = GAIN * (score - 1 / (1 + 10 ** ((other - own) / 400)))
            self.ratings[[-1, int(k)]] = own + change, other - change

    def stats(self) -> dict[str, float]:
        """The ratings as metrics."""
        *past, own = self.ratings.tolist()
        return {ELO: own} | {f"{ELO}_{k}": x for k, x in enumerate(past)}

    def state(self, iteration: int) -> list[np.ndarray]:
        """What a checkpoint keeps after a complete `iteration`; a rollout after it does not count.
        """
        ratings = self.before[1] if self.before[0] > iteration else self.ratings
        return [ratings, *(self.arena[name] for name in POOL)]

    def restore(self, state: Sequence[Any]) -> None:
        """Continues with a `state`; raises an exception if it is none."""
        for own, x in zip(self.state(self.before[0]), state, strict=True):
            own[:] = x


def kept_of(policy: Policy) -> tuple[Tensor, Tensor, Tensor]:
    """The parameters of a policy, and the moments of its observations, as in the pool."""
    return (parameters_to_vector(trained_parameters(policy)), policy.observer.shift,
            policy.observer.scale)


def past_central(kind: type[CentralActor]) -> type[CentralActor]:
    """A CentralActor of a `kind` in which snapshots act for their rows."""
    class PastCentralActor(kind):
        def __init__(self, arena: Arena, policy: Policy, *rest: Any):
            super().__init__(arena, policy, *rest)
            self.selves = [copy.deepcopy(policy) for _ in range(SNAPSHOTS)]

        def start(self, iteration: int) -> None:
            """See CentralActor; reads the snapshots, too."""
            super().start(iteration)
            for k, own in enumerate(self.selves):
                device = own.observer.count.device
                params, own.observer.shift, own.observer.scale = (
                    torch.from_numpy(self.arena[name][k]).to(device) for name in POOL)
                vector_to_parameters(params, trained_parameters(own))

        def choose(self, t: int, group: range, noise: np.ndarray, state: np.ndarray
                   ) -> Sequence[np.ndarray]:
            """See CentralActor."""
            part = slice(group.start, group.stop)
            act, logp, val, after = super().choose(t, group, noise, state)
            for k, rows in rows_of_snapshots(self.arena["against"][t, part]):
                act[rows], _, _, after[rows] = self.selves[k].act(
                    self.obs[t][part][rows], noise[rows], state[rows])
            return act, logp, val, after
    return PastCentralActor
