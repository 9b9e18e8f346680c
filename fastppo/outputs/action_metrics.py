"""Metrics of actions: those of a rollout, and the standard deviation of the policy after it.

Actions are counted as the policy chose them: choices from 0 on, the numbers of a Box before they
are clipped or mapped to its bounds. Their components are numbered in the order of the space.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor

from fastppo.collect import Rollout
from fastppo.networks.heads import Gaussian
from fastppo.networks.torch_state import preserved_buffers, seeded_rng, torch_threads
from fastppo.spaces.leaves import CHOICES, choice_counts, leaves, tree_map

MOST = 20  # metrics of one kind, and histograms
BINS, MOST_BINS = 40, 512  # of a histogram: for a number, and for choices
HISTOGRAM_ROWS, STD_ROWS = 4_096, 256  # about so many rows of a rollout are used


class Histogram(NamedTuple):
    """The number of actions in each bin of values."""

    counts: np.ndarray  # i64 [bins]
    edges: np.ndarray  # f64 [bins+1], rising


def action_metrics(ppo) -> dict[str, float]:
    """The metrics actions/... of the last rollout, of all ranks; {} if it has no valid row."""
    counts, rows = choices_of_components(ppo.policy.act_space), action_rows(ppo.whole)
    if not len(rows):
        return {}
    return shares_of_choices(counts, rows) | spread_of_numbers(ppo, counts, rows)


def shares_of_choices(counts: list[int], rows: np.ndarray) -> dict[str, float]:
    """The share of each choice in actions [n k], at most MOST: choices of the first components."""
    found: dict[str, float] = {}
    for c, n in enumerate(counts):
        if n and len(found) < MOST:
            start = "actions/share_" + f"{c}_" * (len(counts) > 1)
            shares = np.bincount(rows[:, c].astype(np.int64), minlength=n) / len(rows)
            found |= {f"{start}{i}": share
                      for i, share in enumerate(shares[:MOST - len(found)].tolist())}
    return found


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
