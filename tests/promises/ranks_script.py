"""Trains with each of some settings as one process of several; for test_ranks.py.

python ranks_script.py FOLDER: the settings are those in FOLDER/cases.json, the weights and the
checkpoints are written there.
"""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch.distributed as dist
from envs_for_tests import Chance
from gymnasium.spaces import Box

from fastppo import PPO
from fastppo.machine import limits


class Level(Chance):
    """Chance whose rewards are larger by the level in the options of its reset."""

    def reset(self, *, seed=None, options=None):
        """Takes the level."""
        self.level = options["level"] if options else 0
        return super().reset(seed=seed)

    def step(self, action):
        """A reward of that level."""
        obs, rew, *rest = super().step(action)
        return obs, rew + self.level, *rest


def levels(progress):
    """Another level for each of six environments, all of them rising."""
    return [{"level": e + int(8 * progress)} for e in range(6)]


ENVS = {"levels": partial(Level, Box(-9, 9, (3,), np.float32)),
        "numbers": partial(Chance, Box(-9, 9, (3,), np.float32)),
        "box": partial(Chance, act_space=Box(-2, 2, (2,), np.float32)),
        "images": partial(Chance, Box(0, 255, (40, 40), np.uint8), ends=0.05)}


def trainer_of(case: dict) -> PPO:
    """The trainer of a case, whose environment is one of ENVS by its name."""
    options = {"reset_options": levels} if case["env"] == "levels" else {}
    return PPO(ENVS[case["env"]], **options, **{
        name: x for name, x in case.items() if name != "env"})


class Watch:
    """Notes the metrics of the first iteration that are of all ranks; looks at rollouts."""

    def __init__(self):
        self.stats = {}

    def on_collect(self, ppo, rollout):
        """Looks at the observations, which are of this rank alone."""
        assert rollout.obs[:].isfinite().all() and rollout.obs.shape[1] == rollout.rew.shape[1]

    def on_iteration(self, ppo, stats):
        """Notes the metrics."""
        self.stats = self.stats or {name: x for name, x in stats.items() if name.startswith(
            "actions/") or name == "losses/explained_variance"}


class Look:
    """Looks at rollouts only; the other ranks have it."""

    on_collect = Watch.on_collect


def train_all(folder: Path) -> None:
    """Trains with each case, and saves what came of it."""
    rank = limits.rank_of_process()
    for i, case in enumerate(json.loads((folder / "cases.json").read_text())):
        with trainer_of(case) as ppo:
            ppo.learn(callbacks=Look() if rank else (watch := Watch()))
            np.save(folder / f"weights-{i}-{rank}.npy", ppo.learner.flat.values.numpy())
            if not rank:
                (folder / f"stats-{i}.json").write_text(json.dumps(watch.stats))
                ppo.checkpoint(folder / f"{i}.checkpoint")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train_all(Path(sys.argv[1]))
    dist.destroy_process_group()
