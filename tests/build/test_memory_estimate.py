"""The forecast of a run's memory, against what a run takes."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box

from fastppo.build.arena_layout import arena_spec
from fastppo.build.given_settings import config_for, make_source
from fastppo.build.memory_estimate import activation_bytes, bytes_on_gpu, check_gpu_memory
from fastppo.build.model import build_policy
from fastppo.build.resolve import resolve
from fastppo.errors import ConfigError

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


def forecast_on_gpu(settings):
    """(Config of a run with images, the forecast of its bytes on a GPU as a function of it)."""
    image = Box(0, 255, (84, 84), np.uint8)
    source = make_source(env := lambda: Chance(image), config_for(env, {
        "preset": "none", "num_workers": 0, "learner": "graph", "model": "cnn",
        "frame_stack": 4, "num_envs": 64, "num_steps": 32, **settings}))
    config = resolve(source)
    policy = build_policy(source.obs_space, source.act_space, config)
    kept = activation_bytes(policy)
    return config.replace(device="cuda"), lambda config: bytes_on_gpu(
        config, arena_spec(config, policy), kept)


def test_a_run_that_does_not_fit_on_the_gpu_is_told_what_does():
    config, need = forecast_on_gpu({"num_minibatches": 1})
    wanted = need(config)
    check_gpu_memory(config, need, wanted)
    with pytest.raises(ConfigError, match=r"needs about [\d,]+ MiB on cuda, where 0 MiB") as told:
        check_gpu_memory(config, need, 0)
    assert "smaller network" in str(told.value)
    with pytest.raises(ConfigError) as told:
        check_gpu_memory(config, need, wanted // 2)
    for fix in told.value.fix:
        assert need(config.replace(**fix.settings)) <= wanted // 2
    assert [[*fix.settings] for fix in told.value.fix] == [["num_microbatches"], ["num_envs"]]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA")
@pytest.mark.parametrize("learner", ["graph", "torch"])
def test_what_an_update_takes_on_a_gpu_is_within_the_forecast(trainer, learner):
    config, need = forecast_on_gpu({"num_minibatches": 4})
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ppo = trainer(lambda: Chance(Box(0, 255, (84, 84), np.uint8)), device="cuda", learner=learner,
                  model="cnn", frame_stack=4, num_envs=64, num_steps=32, num_minibatches=4)
    ppo.update(ppo.collect())
    taken = torch.cuda.max_memory_allocated() - before
    assert taken <= need(config.replace(learner=learner)) <= 4 * taken
