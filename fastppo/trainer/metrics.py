"""The metrics of a run: time shares, episode statistics, explained variance, actions.

Actions are counted as the policy chose them: choices from 0 on, the numbers of a Box before they
are clipped or mapped to its bounds. Their components are numbered in the order of the space.
"""

import math
import time
from contextlib import contextmanager
from typing import Any, NamedTuple, Sequence

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor

from fastppo.collect import Rollout
from fastppo.envs.atari import GAME_LENGTH, GAME_RETURN
from fastppo.machine import limits
from fastppo.machine.shared_memory import Arena
from fastppo.networks.action_heads import Gaussian
from fastppo.networks.torch_state import preserved_buffers, seeded_rng, torch_threads
from fastppo.settings import known_names
from fastppo.spaces.leaves import CHOICES, choice_counts, leaves, tree_map
from fastppo.stepping.environments import ResetOptions, options_at
from fastppo.stepping.rollout_recorder import EPISODE_WINDOW, MAX_INFO_KEYS, InfosByStep, read_infos

MOST = 20  # metrics of one kind, and histograms
BINS, MOST_BINS = 40, 512  # of a histogram: for a number, and for choices
HISTOGRAM_ROWS, STD_ROWS = 4_096, 256  # about so many rows of a rollout are used


class PartTimer:
    """Seconds in each named part: `with clock("update"): ...`.

    `part` is the current one, and `since` the time at which it, or the last one, began.
    `times` f64 [e+1 3], of the last rollout, divide "collect" into its parts, see
    docs/vocabulary.md: `within` has their seconds.
    """

    def __init__(self):
        self.seconds: dict[str, float] = {}
        self.within: dict[str, float] = {}
        self.part, self.since, self.times = "", time.monotonic(), np.full((1, 3), np.nan)

    @contextmanager
    def __call__(self, part: str):
        """Counts the time inside the block to `part`."""
        start = self.since = time.monotonic()
        self.part = part
        try:
            yield
        finally:
            self.part = ""
            end = time.monotonic()
            self.seconds[part] = self.seconds.get(part, 0.0) + end - start
        last_row = self.times[-1:]
        acting, begun, ended = (last_row if np.isfinite(last_row).all() else
                                self.times[np.isfinite(self.times[:, 0])]).T
        if part == "collect" and len(begun):
            first, last = max(start, float(begun.min())), min(end, float(ended.max()))
            # Where the processes that take steps also act, it is its share of the time of them all.
            policy = (last - first) * float(acting.sum() / (ended - begun).sum())
            for name, inside in (("start", first - start), ("environment", last - first - policy),
                                 ("policy", policy), ("advantages", end - last)):
                self.within[name] = self.within.get(name, 0.0) + inside

    @property
    def not_training(self) -> float:
        """Seconds in parts that are not training."""
        return sum(self.seconds.get(part, 0.0) for part in known_names.ASIDE)

    def stats(self, step: int) -> dict[str, float]:
        """Steps per second of training, and the seconds of each part as a share of training's.

        The shares of the parts of training add up to 1; evaluations and videos are none of them.
        The parts of collect, measured since this process began, add up to the share of collect.
        """
        busy = sum(spent for part, spent in self.seconds.items() if part not in known_names.ASIDE)
        shares = {f"time/{part}": spent / busy for part, spent in self.seconds.items()}
        collect = shares.get("time/collect", 0.0) / (sum(self.within.values()) or 1.0)
        inside = {f"time/{part}": spent * collect for part, spent in self.within.items()}
        return {known_names.SPEED: step / busy, **shares, **inside}


class RecentEpisodes(NamedTuple):
    """The last finished episodes; replaced as a whole, so that an interrupt does not split it."""

    iteration: int | None = None  # of the last rollout that was added
    recent: tuple[tuple[float, int, dict], ...] = ()  # return, length and infos of each
    count: int = 0
    names: tuple[str, ...] = ()  # of the infos that are metrics
    discarded: int = 0  # steps that nan_policy=reset_env has discarded


class EpisodeMetrics:
    """Statistics of the last finished episodes."""

    def __init__(self):
        self.state = RecentEpisodes()
        self.ended: list[tuple[int, float, int]] = []  # row, return and length, in the last rollout
        self.beside: dict[str, float] = {}  # faults of workers, ratings

    @property
    def count(self) -> int:
        """The number of finished episodes."""
        return self.state.count

    def restore(self, state: Sequence[Any]) -> None:
        """Continues with a `state`; raises an exception if it is none."""
        iteration, recent, count, names, discarded = state
        self.state = RecentEpisodes(
            iteration if iteration is None else int(iteration),
            tuple((float(total), int(length), {str(name): float(x) for name, x in infos.items()})
                  for total, length, infos in recent), int(count), tuple(map(str, names)),
            int(discarded))

    def add(self, arena: Arena, iteration: int, options: ResetOptions = (), agents: int = 1
            ) -> None:
        """Adds the episodes that ended in an iteration's rollout; repeating it adds nothing.

        An episode after which its game goes on, such as a lost life, is not counted. `options` are
        those of the resets, of games with several `agents` by game.
        """
        known, length, infos = self.state, arena["length"], read_infos(arena)
        discarded = (agents == 1) & (length > 0) & ~arena["valid"]  # which steps only end
        for t, e in np.argwhere(length > 0).tolist() if options else ():
            info = infos.setdefault((t, e), {})
            total, steps = arena["total"][t, e], length[t, e]
            if agents > 1:  # the game began before its last agent did
                total, steps = info.get(GAME_RETURN, total), info.get(GAME_LENGTH, steps)
            begun = (iteration - 1) * len(length) + t + 1 - int(steps)
            given = options_at(options, e // agents, begun)
            info.update({
                f"{known_names.MEAN_RETURN}/{name}={value}": float(total)
                for name, value in (given or {}).items() if isinstance(value, (int, str))})
        self.take(arena["total"], np.where(arena["same_game"], 0, length - discarded),
                  infos, iteration)
        if discarded.any() and self.state is not known:
            self.state = self.state._replace(discarded=known.discarded + int(discarded.sum()))

    def take(self, total: np.ndarray, length: np.ndarray, infos: InfosByStep | None = None,
             iteration: int | None = None) -> None:
        """Adds the episodes that ended in a rollout: return f64 and length i64 [t e], else 0.

        `infos` are the numbers of their last infos; the first MAX_INFO_KEYS names of a run are
        metrics. The episode that ends a game has the return and the length of the whole game. A
        rollout given again after an interrupt, by its `iteration`, is added once. `ended` has the
        last EPISODE_WINDOW of them.
        """
        if iteration is not None and iteration == self.state.iteration:
            return
        rows, infos = np.argwhere(length > 0), infos or {}
        games = [(t, e, infos.get((t, e), {})) for t, e in rows[-EPISODE_WINDOW:].tolist()]
        last = [(float(info.get(GAME_RETURN, total[t, e])),
                 int(info.get(GAME_LENGTH, length[t, e])),
                 {name: x for name, x in info.items() if name not in (GAME_RETURN, GAME_LENGTH)})
                for t, e, info in games]
        self.ended = [(t, *one[:2]) for (t, *_), one in zip(games, last)]
        names = dict.fromkeys([*self.state.names, *(name for *_, info in last for name in info)])
        self.state = RecentEpisodes(iteration, (*self.state.recent, *last)[-EPISODE_WINDOW:],
                                    self.state.count + len(rows),
                                    tuple(names)[:MAX_INFO_KEYS], self.state.discarded)

    def stats(self) -> dict[str, float]:
        """Means over the last episodes, of an info over those that have it, and `beside`."""
        if not self.state.recent:
            return self.beside
        total, length, infos = zip(*self.state.recent)
        means = {known_names.MEAN_RETURN: float(np.mean(total)),
                 known_names.MEAN_LENGTH: float(np.mean(length)),
                 known_names.EPISODES: float(self.state.count)}
        if len(total) > 1:
            means[known_names.RETURN_STD] = float(np.std(total, ddof=1))
        if self.state.discarded:
            means["faults/discarded_steps"] = float(self.state.discarded)
        for name in self.state.names:
            if values := [info[name] for info in infos if name in info]:
                means[name if name[:7] == "charts/" else f"env/{name}"] = float(np.mean(values))
        return means | self.beside


def explained_variance(rollout: Rollout, ranks: limits.OneProcess) -> float:
    """1 - var(ret - val) / var(ret) over the valid rows of all ranks.

    1 for a perfect critic, 0 for constant ret.
    """
    ret, val, valid = rollout.ret, rollout.val, rollout.valid
    if ranks.size > 1:
        ret, val, valid = ranks.join(ret, val, valid)
    ret, val = ret[valid].double(), val[valid].double()
    variance = ret.var(correction=0).item() if len(ret) else 0.0
    return 1 - (ret - val).var(correction=0).item() / variance if variance > 0 else 0.0


class Histogram(NamedTuple):
    """The number of actions in each bin of values."""

    counts: np.ndarray  # i64 [bins]
    edges: np.ndarray  # f64 [bins+1], rising


def action_metrics(ppo) -> dict[str, float]:
    """The metrics actions/... of the last rollout, of all ranks; {} if it has no valid row."""
    counts, rows = choices_of_components(ppo.policy.act_space), action_rows(ppo.whole)
    if not len(rows):
        return {}
    found: dict[str, float] = {}  # first the shares of at most MOST choices
    for c, n in enumerate(counts):
        if n and len(found) < MOST:
            start = "actions/share_" + f"{c}_" * (len(counts) > 1)
            shares = np.bincount(rows[:, c].astype(np.int64), minlength=n) / len(rows)
            found |= {f"{start}{i}": share
                      for i, share in enumerate(shares[:MOST - len(found)].tolist())}
    return found | spread_of_numbers(ppo, counts, rows)


def spread_of_numbers(ppo, counts: list[int], rows: np.ndarray) -> dict[str, float]:
    """Mean and standard deviation (ddof 0) of each number in actions [n k], of MOST components.

    Also the policy's standard deviation of each, and the mean over all of them, unless a
    distribution of the user's has none. Changes no bit of the run.
    """
    places = [c for c, n in enumerate(counts) if not n]
    numbers = rows[:, places[:MOST]]

    def each(name: str, values: np.ndarray) -> dict[str, float]:
        return {f"actions/{name}_{c}": x for c, x in zip(places[:MOST], values.tolist())}
    found = each("mean", numbers.mean(0, np.float64)) | each("std", numbers.std(0, np.float64))
    if places and len(own := policy_stds(ppo).double().cpu().numpy()) == len(places):
        found |= {"actions/policy_std": float(own.mean())} | each("policy_std", own)
    return found


def policy_stds(ppo) -> Tensor:
    """The standard deviation [a] of each number; where it depends on the state, its mean.

    That is a mean over about STD_ROWS observations of the last rollout.
    """
    policy, (steps, envs) = ppo.policy, ppo.whole.rew.shape
    if isinstance(policy.head, Gaussian):
        return policy.head.std().detach()
    every = slice(0, steps, max(1, -(-steps * envs // STD_ROWS)))
    device = policy.observer.count.device
    obs, state = tree_map(lambda x: x[every].flatten(0, 1).to(device),
                          (ppo.rollout.obs, ppo.rollout.state))
    with preserved_buffers(policy.net), seeded_rng(ppo.config.seed, device), \
            torch_threads(ppo.config.torch_threads, ppo.tf32), torch.inference_mode():
        std = policy.head.std(policy.step(obs, state)[0])
    return torch.stack(ppo.ranks.gather(std.cpu())).mean(0)  # each has as many environments


def action_histograms(space: Space, rollout: Rollout) -> dict[str, Histogram]:
    """The histogram of each component of the actions of a rollout, of the first MOST components."""
    rows, found = action_rows(rollout, HISTOGRAM_ROWS), {}
    for c, n in enumerate(choices_of_components(space)[:MOST * bool(len(rows))]):
        limits = (-0.5, n - 0.5) if n else None
        found[f"actions/histogram_{c}"] = Histogram(*np.histogram(
            rows[:, c].astype(np.float64), min(n, MOST_BINS) or BINS, limits))
    return found


def action_rows(rollout: Rollout, most: float = math.inf) -> np.ndarray:
    """The stored actions [n k] of the valid rows; of a longer rollout about `most` of them.

    Whole steps are left out, so that every environment counts the same.
    """
    every = max(1, math.ceil(rollout.valid.numel() / most))
    act, valid = (x[::every].cpu().numpy() for x in (rollout.act, rollout.valid))
    return act[valid].reshape(-1, math.prod(act.shape[2:]))


def choices_of_components(space: Space) -> list[int]:
    """The number of choices of each component of an action; 0 for a number of a Box."""
    return [n for leaf in leaves(space) for n in (
        choice_counts(leaf.space).tolist() if isinstance(leaf.space, CHOICES)
        else [0] * math.prod(leaf.space.shape))]
