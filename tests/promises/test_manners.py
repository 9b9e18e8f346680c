"""What changes nothing in a run, and what a run changes nothing of: its host's global state."""

import os
import platform
import random
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box

ENV = partial(Chance, act_space=Box(-1, 1, (2,), np.float32))


def bits(ppo):
    """Everything that has been learnt, as bytes."""
    tensors = ppo.learner.flat.values, *ppo.learner.optimizer.state, *ppo.policy.observer.state
    return [np.asarray(tensor).tobytes() for tensor in tensors]


def learnt(trainer, callbacks=(), **settings):
    """The bits after three iterations."""
    ppo = trainer(ENV, epochs=2, num_minibatches=2, norm_rewards=True, **settings)
    ppo.learn(96, callbacks)
    ppo.close()
    return bits(ppo)


@pytest.fixture
def plain(trainer):
    """The bits of a run with nothing beside it."""
    return learnt(trainer)


@pytest.mark.parametrize("acting", ["local", "central"])
def test_two_runs_are_equal_and_two_seeds_differ(trainer, acting):
    assert learnt(trainer, acting=acting) == learnt(trainer, acting=acting)
    assert learnt(trainer, acting=acting)[0] != learnt(trainer, acting=acting, seed=2)[0]


def test_a_run_folder_changes_no_bit(trainer, plain, tmp_path):
    assert learnt(trainer, run_dir=str(tmp_path / "run")) == plain
    assert len((tmp_path / "run" / "metrics.csv").read_text().splitlines()) == 1 + 3


def test_progress_changes_no_bit(trainer, plain, capsys):
    assert learnt(trainer, progress="lines") == plain
    assert "step 96 100%" in capsys.readouterr().out


def test_a_logger_changes_no_bit_even_one_that_draws_random_numbers(
    trainer, plain, tmp_path, monkeypatch
):
    rows = []

    def log(row, step):
        rows.append((step, row, random.random(), np.random.random(), torch.rand(1)))

    run = SimpleNamespace(log=log, finish=lambda: None)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(
        Settings=dict, Histogram=dict, init=lambda **_: run, setup=lambda *_: None,
        login=lambda **_: False))
    assert learnt(trainer, logger="wandb", run_dir=str(tmp_path)) == plain
    assert [row[0] for row in rows] == [32, 64, 96]


def test_callbacks_evaluation_prediction_and_saving_change_no_bit(trainer, plain, tmp_path):
    def curious(ppo, _):
        ppo.evaluate(episodes=3, deterministic=False)
        ppo.policy.predict(np.ones((2, 1)), deterministic=False)
        ppo.policy.value(np.ones(1))
        ppo.save(tmp_path / "policy.safetensors")

    assert learnt(trainer, [curious]) == plain


def test_the_hosts_random_numbers_change_no_bit(trainer, plain):
    def noisy(*_):
        random.seed(5), np.random.seed(5), torch.manual_seed(5)

    noisy()
    assert learnt(trainer, [noisy]) == plain


def host_state():
    """Everything global that a script could have set and a guest could disturb."""
    return (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist(),
            torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(), np.geterr())


class OwnNet(torch.nn.Module):
    """Two layers, drawn by torch's own initialiser."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        wide = torch.nn.Linear(1, 8)
        self.layers = torch.nn.Sequential(wide, torch.nn.Tanh(), torch.nn.Linear(8, 3))

    def forward(self, obs):
        """Two means, then the value."""
        out = self.layers(obs)
        return out[:, :2], out[:, 2]


@pytest.mark.parametrize("settings", [{}, {"acting": "central"}, {"model": OwnNet}], ids=str)
def test_a_run_leaves_the_hosts_global_state_as_it_was(trainer, settings):
    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    before = host_state()
    ppo = trainer(ENV, **settings)
    ppo.learn(64)
    ppo.evaluate(episodes=2, deterministic=False)
    ppo.close()
    assert host_state() == before


class LazyNet(OwnNet):
    """The same, but its layers learn from the first observation how wide they are."""

    def __init__(self, obs_space, act_space):
        super().__init__(obs_space, act_space)
        self.layers = torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.Tanh(),
                                          torch.nn.LazyLinear(3))


@pytest.mark.parametrize("model", [OwnNet, LazyNet])
def test_an_own_models_first_weights_follow_from_the_runs_seed_alone(trainer, model):
    torch.manual_seed(8)
    one = learnt(trainer, model=model)
    torch.manual_seed(9)
    assert learnt(trainer, model=model) == one
    assert learnt(trainer, model=model, seed=2) != one


def test_torchs_threads_are_the_configs_while_it_runs_and_the_hosts_again_after(trainer):
    seen, host = [], torch.get_num_threads()

    class Threads(OwnNet):
        def forward(self, obs):
            seen.append(torch.get_num_threads())
            return super().forward(obs)

    torch.set_num_threads(3)
    try:
        ppo = trainer(ENV, model=Threads, torch_threads=2)
        ppo.update(ppo.collect())
        ppo.evaluate(episodes=1)
        assert set(seen[1:]) == {2} and torch.get_num_threads() == 3
        ppo.learner.flat.values.fill_(torch.nan)
        with pytest.raises(Exception, match="finite"):
            ppo.update(ppo.rollout)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(host)


IMPORT = """
import json, os, random, signal, sys, warnings, logging
import numpy as np
import gymnasium, torch

def state():
    return [str(random.getstate()), str(np.random.get_state()), torch.get_rng_state().tolist(),
            torch.get_num_threads(), str(torch.get_default_dtype()), dict(os.environ), os.getcwd(),
            [str(signal.getsignal(n)) for n in signal.valid_signals()], list(sys.path),
            list(warnings.filters), str(logging.root.handlers), logging.root.level,
            str(np.geterr()), len(gymnasium.registry), str(sys.excepthook), os.listdir()]

before = state()
import fastppo
for name in fastppo.__all__:
    getattr(fastppo, name)
for number, (old, now) in enumerate(zip(before, state())):
    assert old == now, (number, old, now)
assert not logging.getLogger("fastppo").handlers
"""


def test_importing_everything_changes_nothing_global_and_prints_nothing(tmp_path):
    command = [sys.executable, "-c", IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_nothing_is_printed_or_written_unless_asked_for(trainer, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    ppo = trainer(ENV)
    ppo.learn(64)
    ppo.evaluate(episodes=1)
    ppo.close()
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


PAGES_OF_BUFFERS = """
import resource, sys

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    [b"x" * 20_000_000 for _ in range(10)]  # freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

settings = dict(env_name="CartPole-v1", learner="torch", num_workers=0, num_envs=2, num_steps=8,
                num_minibatches=1, total_steps=16, eval_episodes=1)
if sys.argv[1] == "command":
    from fastppo.cli.main import main
    main([f"--{name}={value}" for name, value in settings.items()])
else:
    from fastppo import PPO
    with PPO(**settings) as ppo:
        ppo.learn()
print("faults", min(faults() for _ in range(4)))  # the first ones make room for it
"""


@pytest.mark.full
@pytest.mark.skipif("glibc" not in platform.libc_ver()[0], reason="mallopt is glibc's")
@pytest.mark.parametrize(("user", "environment", "kept"), [
    ("command", {}, True), ("library", {}, False),
    ("library", {"MALLOC_MMAP_THRESHOLD_": "33554432", "MALLOC_TRIM_THRESHOLD_": "-1"}, True)])
def test_freed_memory_is_kept_by_the_command_and_by_variables_but_not_by_the_library(
        tmp_path, user, environment, kept):
    done = subprocess.run([sys.executable, "-c", PAGES_OF_BUFFERS, user], capture_output=True,
                          text=True, cwd=tmp_path, env=os.environ | environment, check=True)
    assert (int(done.stdout.split()[-1]) < 20) == kept  # 200 MB are 96 pages of the largest kind
