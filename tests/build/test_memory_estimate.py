"""The forecast of a run's memory, against what a run takes."""

import json
import subprocess
import sys

import pytest

MEASURE = """
import json, sys
import numpy as np
from gymnasium.spaces import Box, Discrete
from envs_for_tests import Chance
from fastppo import PPO
from fastppo.build import arena_layout
from fastppo.machine.arena import spec_bytes

real, found = arena_layout.Arena, {}

def resident(name):
    lines = open("/proc/self/status").read().split("\\n")
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))

def measured(spec, beside, remedy):
    found.update(beside=beside + spec_bytes(spec), before=resident("VmRSS"))
    return real(spec, beside=beside, remedy=remedy)

arena_layout.Arena = measured
image = Box(0, 255, (84, 84, 4), np.uint8)
with PPO(lambda: Chance(image), preset="none", seed=1, num_workers=0, num_envs=8, epochs=1,
         **{"num_steps": 32, **json.loads(sys.argv[1])}) as ppo:
    ppo.update(ppo.collect())
print(json.dumps({"forecast": found["beside"], "taken": resident("VmHWM") - found["before"]}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("settings", [
    {"model": "impala", "num_minibatches": 4}, {"model": "cnn", "num_minibatches": 1},
    {"model": "mlp", "learner": "torch", "hidden_sizes": [256], "num_minibatches": 1},
    {"model": "mlp", "learner": "kernel", "hidden_sizes": [8], "num_steps": 128},
    {"model": "cnn", "learner": "kernel", "num_steps": 128}], ids=str)
def test_what_an_update_takes_is_within_the_forecast(settings):
    ran = subprocess.run([sys.executable, "-c", MEASURE, json.dumps(settings)], cwd="tests",
                         capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    assert found["taken"] <= found["forecast"] <= 4 * found["taken"], found
