"""A run on several processes under torchrun: the same as on one, and one clear end."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from games_for_tests import Scripted
from ranks_script import ENVS, Watch, trainer_of
from source_tree import ROOT
from torch.distributed import TCPStore

from fastppo import PPO, Config
from fastppo.errors import ConfigError, RankError
from fastppo.machine import kernels, limits
from fastppo.ranks import processes
from fastppo.ranks.learner import merged_moments

HERE = Path(__file__).parent
TINY = dict(preset="none", seed=3, num_envs=6, num_steps=8, num_minibatches=4, epochs=2,
            total_steps=480, num_workers=1, lr=1e-3)
CASES = [
    dict(env="numbers"), dict(env="box", learner="torch", norm_rewards=True, target_kl=0.02),
    dict(env="numbers", learner="torch", norm_values=True, norm_advantages="rollout",
         num_microbatches=2),
    dict(env="box", num_workers=2, norm_rewards=True), dict(env="levels", num_workers=2),
    dict(env="box", adaptive_kl=0.01, total_steps=240),  # its high rates magnify differences
    dict(env="numbers", num_minibatches=24),  # of two samples: some ranks have none of them
    dict(env="numbers", num_minibatches=24, learner="torch"),
    dict(env="images", model="cnn", frame_stack=2, total_steps=96, norm_obs=False),
    dict(env="images", model="cnn", frame_stack=2, total_steps=96, norm_obs=False,
         learner="torch", precision="fp32", acting="central"),
    dict(env="numbers", num_envs=2, total_steps=160),  # one for each process
    dict(env="box", distribution="state_gaussian", norm_obs=False),
]
CASES = [TINY | case for case in CASES]


STORES = []  # the processes of a run meet in one of this process, as in one of torchrun's


def run_of(folder: Path, count: int, words: list[str]) -> list[subprocess.Popen]:
    """`count` connected processes of a script, as torchrun starts them."""
    STORES.append(TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False))
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", HERE)))
    shared = os.environ | {"WORLD_SIZE": f"{count}", "LOCAL_WORLD_SIZE": f"{count}",
                           "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": f"{STORES[-1].port}",
                           "TORCHELASTIC_USE_AGENT_STORE": "True",
                           "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return [subprocess.Popen([sys.executable, *words], cwd=folder, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True,
                             env=shared | {"RANK": f"{rank}", "LOCAL_RANK": f"{rank}"})
            for rank in range(count)]


def close(*processes: subprocess.Popen) -> None:
    """Ends processes, and closes their pipes."""
    for process in processes:
        process.kill()
        process.communicate()


def trained(folder: Path, count: int, cases: list[dict]) -> Path:
    """A folder with what `count` processes made of the cases."""
    folder.mkdir()
    (folder / "cases.json").write_text(json.dumps(cases))
    for process in run_of(folder, count, [str(HERE / "ranks_script.py"), str(folder)]):
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0, err + out
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """What two processes made of CASES."""
    return trained(tmp_path_factory.mktemp("ranks") / "two", 2, CASES)


def weights(folder: Path, case: int, rank: int) -> np.ndarray:
    return np.load(folder / f"weights-{case}-{rank}.npy")


@pytest.mark.some(1)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_two_processes_learn_what_one_does_and_have_the_same_weights(two, case):
    with trainer_of(CASES[case]) as ppo:
        start = ppo.learner.flat.values.numpy().copy()
        one = ppo.learn().learner.flat.values.numpy().copy()
    found, other = (weights(two, case, rank) for rank in (0, 1))
    assert abs(found - one).max() < 1e-5 < abs(one - start).max()
    assert found.tobytes() == other.tobytes()


@pytest.mark.parametrize("case", [len(CASES) - 1, len(CASES) - 3])
def test_readers_have_a_ranks_own_observations_and_metrics_are_of_all_ranks(two, case):
    with trainer_of(CASES[case]) as ppo:
        ppo.learn(callbacks=(watch := Watch()))
    assert json.loads((two / f"stats-{case}.json").read_text()) == pytest.approx(
        watch.stats, rel=1e-4)
    assert case < len(CASES) - 1 or watch.stats["actions/policy_std"] > 0


@pytest.mark.full
def test_two_processes_give_the_same_bits_again(two, tmp_path):
    again = trained(tmp_path / "again", 2, CASES[:2])
    assert [weights(again, i, 1).tobytes() for i in (0, 1)] == [
        weights(two, i, 0).tobytes() for i in (0, 1)]


def test_a_checkpoint_of_two_processes_is_resumed_by_one_in_every_episode(two, caplog):
    resumed = PPO.resume(two / "0.checkpoint", ENVS["numbers"],
                         total_steps=960)
    with resumed, trainer_of(CASES[0] | {"total_steps": 960}) as whole:
        whole.learn(480)
        for ppo in (resumed, whole):
            ppo.learn(960)
        assert torch.allclose(resumed.learner.flat.values, whole.learner.flat.values, atol=1e-4)
        assert resumed.episodes.count == whole.episodes.count
    assert "could not be replayed" not in caplog.text


@pytest.mark.full
def test_the_first_process_tells_the_end_of_another_within_seconds(tmp_path):
    words = [str(ROOT / "main.py"), "--env_name=CartPole-v1", "--seed=1", "--total_steps=50M",
             "--num_workers=1", "--progress=lines", "--run_dir=run"]
    first, second = run_of(tmp_path, 2, words)
    try:
        assert any(text.startswith("step") for text in first.stdout)  # it trains
        second.kill()
        began = time.monotonic()
        out, err = first.communicate(timeout=60)
    finally:
        close(first, second)
    assert time.monotonic() - began < 20 and first.returncode == 1
    assert re.fullmatch(r"error: rank 0: another process of this run has ended\n  fix: .*\n", err)
    assert "resume    " in out and list((tmp_path / "run").glob("checkpoint-*"))


@pytest.mark.full
def test_a_signal_stops_all_processes_after_the_same_iteration(tmp_path):
    words = [str(ROOT / "main.py"), "--env_name=CartPole-v1", "--seed=1", "--total_steps=50M",
             "--num_workers=1", "--progress=lines", "--run_dir=run", "--eval_episodes=0"]
    both = run_of(tmp_path, 2, words)
    try:
        assert any(text.startswith("step") for text in both[0].stdout)
        for process in reversed(both):  # torchrun sends it to all, one after the other
            process.send_signal(signal.SIGINT)
        texts = [process.communicate(timeout=60) for process in both]
    finally:
        close(*both)
    assert both[0].returncode == 130 and "stopped   at step" in texts[0][0]
    assert texts[1] == ("", "") and "error" not in texts[0][1]


# ---- settings ----------------------------------------------------------------------------------

@pytest.mark.parametrize("settings, text", [
    (dict(num_envs=7), "num_envs is 7.*\n  fix: num_envs=6"), (dict(num_envs=1), "num_envs=2"),
    (dict(rnn="gru"), "rnn=gru is for a run of one process.*\n  fix: leave rnn out"),
    (dict(recompute_advantages=True), "leave recompute_adv"),
    (dict(vec="native", num_workers=0), "vec=\"workers\"; or give an id"),
    (dict(rpo_alpha=0.5), "leave rpo_alpha"), (dict(num_workers=0), "fix: num_workers=1"),
    (dict(nan_policy="reset_env"), "leave nan_policy out"), (dict(learner="graph"), "=\"torch\""),
    (dict(on_worker_failure="restart"), "leave on_worker_failure out")])
def test_what_several_processes_cannot_do_is_refused(settings, text, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError) as caught:
        PPO("Pendulum-v1" if "rpo_alpha" in settings else "CartPole-v1", preset="none", **dict(
            vec="workers", num_workers=1, num_envs=6) | settings)
    assert re.search(text, str(caught.value))


def test_a_game_of_several_agents_is_for_one_process(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="(?s)a game of 4 agents is for a run of one process, and"
                                          " torchrun has started 2.*fix: run it without torchrun"):
        PPO(Scripted, num_workers=1, num_envs=2)


def test_settings_that_differ_between_processes_are_named():
    one, two = Config(seed=1, lr=1e-3, run_dir="a"), Config(seed=2, lr=2e-3, run_dir="b")
    def ranks_with(other):
        return types.SimpleNamespace(gather=lambda ours: [
            ours, {name: repr(getattr(other, name)) for name in ours}])
    with pytest.raises(ConfigError, match="process 0 has lr=0.001, and process 1 lr=0.002"):
        processes.check_same_settings(one, ranks_with(two))
    processes.check_same_settings(one, ranks_with(two.replace(lr=1e-3)))


def test_moments_of_parts_are_those_of_the_whole():
    rows = np.random.default_rng(0).normal(3, 2, (50, 4)).astype(np.float32)

    def moments(part):
        found = np.zeros(1), np.zeros(4), np.zeros(4)
        kernels.merge_moments(np.ascontiguousarray(part), *found)
        return found
    merged = merged_moments(merged_moments(moments(rows[:7]), moments(rows[7:30])),
                            moments(rows[30:]))
    for one, other in zip(merged, moments(rows)):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_without_torchrun_there_is_one_process(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")  # a scheduler's, without a RANK
    alone = limits.OneProcess()
    assert (alone.rank, alone.size, limits.ranks_here(), limits.device_number(None)) == (0, 1, 1, 0)
    assert alone.gather("x") == ["x"] and alone.share(5) == 5
    assert alone.own(7) == range(7)


def test_a_process_has_the_gpu_of_its_place_on_the_machine(monkeypatch):
    for name, value in (("RANK", 5), ("WORLD_SIZE", 8), ("LOCAL_RANK", 1), ("LOCAL_WORLD_SIZE", 4)):
        monkeypatch.setenv(name, f"{value}")
    assert [limits.device_number(ids) for ids in (None, (3, 2), (0, 0), (5,))] == [1, 2, 0, 5]
    assert (limits.rank_of_process(), limits.rank_count(), limits.ranks_here()) == (5, 8, 4)


def test_processes_that_share_a_gpu_are_connected_by_gloo(monkeypatch):
    monkeypatch.setattr(limits, "gpus", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    for name, text in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(processes.dist, "new_group", lambda **_: None)
    connected = []
    monkeypatch.setattr(processes, "_connect", connected.append)
    for backend, ids in (("auto", None), ("nccl", (0, 1)), ("gloo", None), ("auto", (0, 0)),
                         ("auto", (3,))):
        processes.Ranks(backend, ids)
    assert connected == ["cpu:gloo,cuda:nccl"] * 2 + ["gloo"] * 3
    monkeypatch.setattr(limits, "no_gpu", lambda: "")
    with pytest.raises(ConfigError, match="(?s)a GPU for each process.*fix: backend=.gloo"):
        PPO("CartPole-v1", backend="nccl", device="cuda", device_ids=(0, 0), num_workers=1)


def test_a_full_memory_of_ones_own_is_not_told_as_the_end_of_another_process():
    own = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    for error, told in ((own, torch.OutOfMemoryError), (RuntimeError("reset by peer"), RankError),
                        (torch.distributed.DistNetworkError("closed"), RankError)):
        with pytest.raises(told), processes.as_rank_error():
            raise error


@pytest.mark.full
def test_a_fault_of_one_process_before_it_is_connected_is_told_and_the_others_end(tmp_path):
    code = ("import os\nfrom fastppo.cli.main import main\n"
            "wrong = ['--xyzzy=1'] * int(os.environ['RANK'])\n"
            "main(['--env_name=CartPole-v1', '--num_workers=1', *wrong])")
    first, other = run_of(tmp_path, 2, ["-c", code])
    try:
        assert other.wait(timeout=60) == 2 and "no setting --xyzzy" in other.stderr.read()
        time.sleep(3.0)  # it waits for the other one
        assert first.poll() is None
        first.terminate()
        assert first.wait(timeout=5) == -signal.SIGTERM
    finally:
        close(first, other)


COMMAND = [str(ROOT / "main.py"), "--num_envs=4", "--num_steps=16", "--num_workers=1", "--seed=1",
           "--preset=none", "--eval_episodes=0", "--num_minibatches=1", "--progress=none"]


def ends(tmp_path: Path, words: list[str]) -> tuple[str, str]:
    """What two processes write on stderr until both have ended."""
    both = run_of(tmp_path, 2, [*COMMAND, "--run_dir=run", *words])
    try:
        return tuple(process.communicate(timeout=90)[1] for process in both)
    finally:
        close(*both)


@pytest.mark.full
def test_an_environment_that_raises_everywhere_is_one_error_that_names_its_rank(tmp_path):
    (tmp_path / "broken.py").write_text("""from gymnasium.envs.classic_control import CartPoleEnv

class Broken(CartPoleEnv):
    def step(self, action):
        raise ValueError("broken")
""")
    errors = ends(tmp_path, ["--env_name=broken:Broken", "--total_steps=6400"])
    assert "".join(errors).count("error: ") == 1
    assert re.search(r"^error: rank [01]: ", "".join(errors), re.M), errors


@pytest.mark.full
def test_rank_0_alone_prints_warnings(tmp_path):
    (tmp_path / "fast.py").write_text("""from gymnasium.envs.classic_control import CartPoleEnv

class Fast(CartPoleEnv):
    def step(self, action):
        obs, *rest = super().step(action)
        return obs * [1, 1e4, 1, 1], *rest
""")
    first, other = ends(tmp_path, ["--env_name=fast:Fast", "--total_steps=64", "--norm_obs=False"])
    assert first.count("warning: ") == first.count("and norm_obs is off") == 1 and other == ""


@pytest.mark.full
def test_another_process_tells_that_rank_0_was_killed(tmp_path):
    first, other = run_of(tmp_path, 2, [*COMMAND, "--env_name=CartPole-v1", "--total_steps=50M",
                                        "--progress=lines", "--run_dir=run"])
    try:
        assert any(text.startswith("step") for text in first.stdout)
        first.kill()
        first.wait()
        other.terminate()  # as torchrun does
        _, err = other.communicate(timeout=60)
    finally:
        close(first, other)
    assert re.fullmatch(r"error: rank 1: another process of this run has ended.*\n  fix: .*\n", err)


@pytest.mark.full
def test_a_script_may_train_twice(tmp_path):
    code = ("from fastppo import PPO\nfor seed in (1, 2):\n"
            "    with PPO('CartPole-v1', num_envs=4, num_steps=16, num_minibatches=1,"
            " num_workers=1, preset='none', total_steps=64, seed=seed) as ppo:\n"
            "        print(ppo.learn().step)")
    both = run_of(tmp_path, 2, ["-c", code])
    try:
        found = [process.communicate(timeout=90) for process in both]
    finally:
        close(*both)
    assert found == [("64\n64\n", "")] * 2


def test_an_error_that_rank_0_has_too_is_told_once(tmp_path):
    both = run_of(tmp_path, 2, [str(ROOT / "main.py"), "--xyzzy=1"])
    try:
        assert both[0].wait(timeout=60) == 2 and "no setting --xyzzy" in both[0].stderr.read()
        both[1].terminate()  # as torchrun does
        both[1].wait(timeout=5)
        assert "error" not in both[1].stderr.read()
    finally:
        close(*both)
