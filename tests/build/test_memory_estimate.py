"""The forecast of a run's memory, against what a run takes."""

import json
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch.utils._python_dispatch import TorchDispatchMode

from fastppo.build import arena_layout, memory_estimate
from fastppo.build.arena_layout import arena_spec
from fastppo.build.check_rollout import check_rollout
from fastppo.build.given_settings import config_for, make_source
from fastppo.build.memory_estimate import (
    GAME_BYTES,
    activation_bytes,
    bytes_beside_arena,
    bytes_on_gpu,
    check_gpu_memory,
    check_network_size,
    resizing,
)
from fastppo.build.model import build_policy
from fastppo.build.resolve import resolve
from fastppo.errors import ConfigError
from fastppo.networks.frame_stacks import FrameStacks
from fastppo.networks.normaliser import RunningMoments
from fastppo.settings.fixes import fix_text
from fastppo.spaces.leaves import tree_map
from fastppo.spaces.observations import ObservationLayout

MEASURE = """
import json, sys
import numpy as np
from gymnasium.spaces import Box, Discrete
from envs_for_tests import Chance
from fastppo import PPO
from fastppo.build import arena_layout, memory_estimate
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


@pytest.mark.full
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


def test_the_graphs_samples_and_the_mirror_are_in_the_forecast_on_a_cpu():
    config, _ = forecast_on_gpu({})
    config, large = config.replace(device="cpu", acting="central"), 1 << 30
    spec = {name: ("|u1", (1, 1, size)) for name, size in (
        ("obs", 1), ("act", 1), ("params", 1), ("frames", large), ("stacks", 1))}

    def frames(**changes):
        return round(bytes_beside_arena(config.replace(**changes), spec, 0, 0) / large)
    assert [frames(), frames(acting="local"), frames(learner="torch"), frames(device="cuda")] == [
        2, 1, 0, 0]


def forecast_on_gpu(settings, columns=0):
    """(Config of a run with images, the forecast of its bytes on a GPU as a function of it).

    Of `columns` there are moments.
    """
    image = Box(0, 255, (84, 84), np.uint8)
    source = make_source(env := lambda: Chance(image), config_for(env, {
        "preset": "none", "num_workers": 0, "learner": "graph", "model": "cnn",
        "frame_stack": 4, "num_envs": 64, "num_steps": 32, **settings}))
    config = resolve(source)
    policy = build_policy(source.obs_space, source.act_space, config)
    kept = activation_bytes(policy)
    return config.replace(device="cuda"), lambda config: bytes_on_gpu(
        config, arena_spec(config, policy), kept, columns)


@pytest.mark.parametrize("name", ["num_envs", "num_steps"])
def test_a_run_that_does_not_fit_on_the_gpu_is_told_what_does(name):
    config, need = forecast_on_gpu({"num_minibatches": 1})
    wanted = need(config)
    check_gpu_memory(config, need, wanted, "num_envs")
    with pytest.raises(ConfigError, match=r"needs about [\d,]+ MiB on cuda, where 0 MiB") as told:
        check_gpu_memory(config, need, 0, "num_envs")
    assert "smaller network" in str(told.value)
    with pytest.raises(ConfigError) as told:
        check_gpu_memory(config, need, wanted // 2, name)
    for fix in told.value.fix:
        assert need(config.replace(**fix.settings)) <= wanted // 2
    assert [[*fix.settings] for fix in told.value.fix] == [["num_microbatches"], [name]]


def test_a_fix_leaves_each_of_several_processes_as_many_environments(monkeypatch):
    config, need = forecast_on_gpu({"num_minibatches": 1, "num_envs": 48})
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "16")
    with pytest.raises(ConfigError) as told:
        check_gpu_memory(config, need, need(config) - 1, "num_envs")
    assert not any("num_envs" in fix.settings for fix in told.value.fix)  # 24 is no multiple


@pytest.mark.parametrize("count, name", [(1, "num_envs"), (2, "num_steps")])
def test_the_fix_for_a_gpu_is_a_setting_that_may_change(monkeypatch, count, name):
    told = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7 << 20, 8 << 20))
    monkeypatch.setattr(arena_layout, "check_gpu_memory", lambda *args: told.append(args[2:]))
    envs = [partial(Chance, act_space=Discrete(2)) for _ in range(count)] * (4 // count)
    env = envs if count > 1 else envs[0]
    source = make_source(env, config_for(env, {"preset": "none", "num_workers": 0} | (
        {"num_envs": 4} if count == 1 else {})))
    config = resolve(source)
    policy = build_policy(source.obs_space, source.act_space, config)
    arena_layout.make_arena(config.replace(device="cuda"), policy, source).close()
    assert told == [(7 << 20, name)]


def test_moments_cost_a_gpu_their_numbers_in_two_precisions():
    config, need = forecast_on_gpu({"num_minibatches": 4}, columns=5)
    without = forecast_on_gpu({"num_minibatches": 4})[1]
    assert need(config) - without(config) == 5 * 64 * 32 * 12


def test_moments_are_merged_without_a_further_copy_of_the_rows():
    sizes, moments, rows = [], RunningMoments(7), torch.ones(100, 7)

    class Sizes(TorchDispatchMode):
        """Notes the bytes of every tensor that an operation makes."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            tree_map(lambda x: sizes.append(x.nbytes), out)
            return out
    with Sizes():
        moments.merge_tensor(rows)
    assert [size for size in sizes if size >= 100 * 7] == [100 * 7 * 8]


def test_a_process_of_several_needs_a_mirror_of_all_and_its_own_samples(monkeypatch):
    config, need = forecast_on_gpu({"num_minibatches": 4}, columns=5)
    sizes, frames = (config, config.replace(num_envs=32)), 64 * (32 + 4) * 84 * 84
    one = [need(size) for size in sizes]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    whole, half = ((4 * need(size) - alone) / 3 for size, alone in zip(sizes, one))  # not divided
    assert frames < 2 * (whole - half) < 1.3 * frames < one[0] - one[1]


@pytest.mark.parametrize("stack", [1, 3])
def test_images_are_not_looked_through_for_bounds(trainer, monkeypatch, stack):
    ppo = trainer(partial(Chance, Box(0, 255, (36, 36), np.uint8), Discrete(3)), model="cnn",
                  frame_stack=stack)
    rollout, images = ppo.collect(), []
    for kind in (torch.Tensor, FrameStacks):
        monkeypatch.setattr(kind, "cpu", images.append, raising=False)
    check_rollout(rollout, ppo.policy, 1)
    assert images == []


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


def images(height, width, **settings):
    """The Config of a cnn on images, and the layout of these."""
    image = Box(0, 255, (height, width, 3), np.uint8)
    source = make_source(env := lambda: Chance(image), config_for(env, {
        "model": "cnn", "preset": "none", **settings}))
    return resolve(source), ObservationLayout(source.obs_space, source.act_space)


def test_a_network_of_large_images_is_refused_before_it_is_built(monkeypatch):
    config, seen = images(480, 640)
    monkeypatch.setattr(memory_estimate, "free_memory", lambda: 8 << 30)
    with pytest.raises(ConfigError, match=r"at least 1\d\d,\d{3},\d{3} parameters") as caught:
        check_network_size(config, seen)
    assert fix_text(caught.value.fix, shell=True) == "--resize=84"


@pytest.mark.parametrize("act_space", [
    Discrete(10**7), MultiBinary(10**7), Box(-1.0, 1.0, (10**7,), np.float32)], ids=str)
def test_a_network_of_too_many_actions_is_refused_before_it_is_built(trainer, monkeypatch,
                                                                     act_space):
    monkeypatch.setattr(memory_estimate, "free_memory", lambda: 1 << 30)
    with pytest.raises(ConfigError, match=r"at least 80,000,\d{3} parameters") as caught:
        trainer(lambda: Chance(act_space=act_space))
    assert caught.value.fix == "use smaller observations, or fewer actions"


@pytest.mark.parametrize("act_space", [
    Discrete(10**12), MultiDiscrete([10**12, 2]), Tuple([Discrete(10**12)])], ids=str)
def test_more_actions_than_memory_has_bytes_for_are_refused_before_anything_is_made(trainer,
                                                                                    act_space):
    with pytest.raises(ConfigError, match=r"at least \d+(,\d{3}){4} parameters"):
        trainer(lambda: Chance(act_space=act_space), learner="auto", precision="auto")


def test_other_hidden_layers_are_proposed_only_where_they_suffice(trainer, monkeypatch):
    monkeypatch.setattr(memory_estimate, "free_memory", lambda: 1 << 30)
    for hidden, actions, fix in (((50_000,), 2, "--hidden_sizes=64,64"),
                                 ((50_000,), 10**6, "smaller observations, or fewer actions")):
        with pytest.raises(ConfigError) as caught:
            trainer(partial(Chance, act_space=Discrete(actions)), hidden_sizes=hidden * 2)
        assert fix in caught.value.shell


def test_smaller_images_are_proposed_only_where_they_suffice():
    config, seen = images(168, 168)
    assert fix_text(resizing(config, seen, 4000, 1001), shell=True) == "--resize=84"
    assert resizing(config, seen, 4000, 999) == ()
    assert resizing(config.replace(vec="native"), seen, 4000, 4000) == ()


def test_valid_observations_are_copied_only_where_there_are_other_rows():
    config, spec = forecast_on_gpu({})[0].replace(device="cpu"), {
        name: ("|u1", (1, 1, 1 << 20)) for name in ("obs", "act", "params")}
    config = config.replace(learner="kernel", acting="local")
    without, copied = (bytes_beside_arena(config, spec, 0, 0, x) for x in (False, True))
    assert copied - without == 1 << 20


def test_emulators_of_games_are_in_the_forecast():
    config, spec = forecast_on_gpu({})[0].replace(device="cpu"), {
        name: ("|u1", (1, 1, 1)) for name in ("obs", "act", "params", "frames", "stacks")}
    without, games = (bytes_beside_arena(config.replace(preprocessing=name), spec, 0, 0)
                      for name in ("none", "atari"))
    assert games - without == 64 * GAME_BYTES
