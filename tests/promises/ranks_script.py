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
from fastppo.machine.ranks import rank_of_process

ENVS = {"numbers": partial(Chance, Box(-9, 9, (3,), np.float32)),
        "box": partial(Chance, act_space=Box(-2, 2, (2,), np.float32)),
        "images": partial(Chance, Box(0, 255, (40, 40), np.uint8), ends=0.05)}


def trainer_of(case: dict) -> PPO:
    """The trainer of a case, whose environment is one of ENVS by its name."""
    return PPO(ENVS[case["env"]], **{name: x for name, x in case.items() if name != "env"})


def train_all(folder: Path) -> None:
    """Trains with each case, and saves what came of it."""
    rank = rank_of_process()
    for i, case in enumerate(json.loads((folder / "cases.json").read_text())):
        with trainer_of(case) as ppo:
            ppo.learn()
            np.save(folder / f"weights-{i}-{rank}.npy", ppo.learner.flat.values.numpy())
            if not rank:
                ppo.checkpoint(folder / f"{i}.checkpoint")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train_all(Path(sys.argv[1]))
    dist.destroy_process_group()
