"""A run that is stopped and resumed is the same, bit for bit, as one that was never stopped."""

import errno
import json
import os
import types
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_tests import Chance, Fenced
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from optional_packages import NEEDS_BOX2D, NEEDS_MUJOCO
from safetensors.torch import save_file

from fastppo import PPO, load
from fastppo.errors import CheckpointError, ConfigError, Error
from fastppo.machine import limits
from fastppo.runs import checkpoint, tensor_file
from fastppo.runs.checkpoint import find_checkpoint, read_checkpoint
from fastppo.runs.folder import checkpoints_in
from fastppo.runs.tensor_file import join_tree, split_tree
from fastppo.trainer.callbacks import rollout_collected
from fastppo.trainer.given_settings import resumed_settings

TINY = dict(preset="none", seed=1, num_envs=4, num_steps=16, num_minibatches=2, epochs=2,
            hidden_sizes=(8,), num_workers=0, total_steps=4000)
FLOATS = Box(-np.inf, np.inf, (3,), np.float32)
TIMED = ("charts/SPS", "time/collect", "time/update", "time/environment", "time/policy",
         "time/advantages", "time/start")




class Net(torch.nn.Module):
    """A network of a user's, with a buffer that its forward changes."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, obs):
        self.calls += 1
        out = self.layer(obs.flatten(1))
        return out[:, :3], out[:, 3]


def own_loss(output, batch, coefficients):
    ratio = (output.logp - batch.logp).exp()
    return (0.5 * (output.val - batch.ret).square() - ratio * batch.adv).mean(), {}


CASES = {
    "kernel": (partial(Chance, FLOATS, Discrete(3)), {}),
    "rewards": (partial(Chance, FLOATS, Box(-1, 1, (2,), np.float32)),
                dict(norm_rewards=True, center_rewards=True)),
    "adapted": (partial(Chance, FLOATS, Discrete(3)),
                dict(norm_values=True, adaptive_kl=0.01, critic_lr=1e-3, anneal_lr=False)),
    "memory": (partial(Chance, FLOATS, Discrete(3)), dict(rnn="gru", rnn_size=4)),
    "mingru": (partial(Chance, FLOATS, Discrete(3)), dict(rnn="mingru", rnn_size=4)),
    "lstm": (partial(Chance, FLOATS, MultiDiscrete([2, 3])), dict(rnn="lstm", rnn_size=4)),
    "masked": (partial(Fenced, "method", Discrete(4), FLOATS, ends=0.1), {}),
    "parts": (partial(Chance, Dict(a=Box(0, 255, (2,), np.uint8), b=Discrete(3)), Discrete(2)), {}),
    "own": (partial(Chance, FLOATS, Discrete(3)),
            dict(model=Net, hidden_sizes=(64, 64), loss=own_loss,
                 optimizer=partial(torch.optim.SGD, momentum=0.9))),
    "sde": (partial(Chance, FLOATS, Box(-1, 1, (2,), np.float32)), dict(sde=True)),
    "general": (partial(Chance, FLOATS, Box(-1, 1, (2,), np.float32)), dict(preset="general")),
}
CODE = ("model", "optimizer", "loss")
IDS = ["CartPole-v1", "MountainCarContinuous-v0", "Taxi-v4",
       pytest.param("LunarLander-v3", marks=NEEDS_BOX2D),
       pytest.param("BipedalWalker-v3", marks=NEEDS_BOX2D),
       pytest.param("HalfCheetah-v5", marks=NEEDS_MUJOCO)]


def result(ppo):
    """Everything that an iteration leaves behind, in a form that can be compared."""
    state = {name: x.numpy().tobytes() for name, x in ppo.policy.state_dict().items()}
    rows = {f"rollout {name}": x.numpy().tobytes() for name, x in ppo.rollout._asdict().items()
            if name not in ("obs", "state")}
    stats = {name: value for name, value in ppo.episodes.stats().items() if name not in TIMED}
    return {**state, **rows, **stats, "step": ppo.step, "lr": ppo.lr,
            "obs": ppo.arena["obs"].tobytes(), "memory": ppo.arena["state"].tobytes()}


def iterations(ppo, count):
    for _ in range(count):
        rollout = ppo.rollout if ppo.pending else ppo.collect()
        rollout_collected(ppo, rollout)
        ppo.update(rollout)
    return result(ppo)


def differing(one, two):
    return [name for name in one if one[name] != two.get(name)]


def resumed(path, env, settings, workers=0, **changes):
    code = {name: value for name, value in settings.items() if name in CODE}
    return PPO.resume(path, env, num_workers=workers, **code, **changes)


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_same_bit_for_bit(case, tmp_path):
    env, settings = CASES[case]
    settings, path = TINY | settings, tmp_path / "c.safetensors"
    with PPO(env, **settings) as ppo:
        iterations(ppo, 3)
        ppo.checkpoint(path)
        want = iterations(ppo, 3)
    with resumed(path, env, settings) as ppo:
        assert differing(want, iterations(ppo, 3)) == []


@pytest.mark.full
def test_a_run_can_be_resumed_with_any_number_of_workers_and_again(tmp_path):
    env, settings = CASES["rewards"]
    settings, path = TINY | settings, tmp_path / "c.safetensors"
    with PPO(env, **settings) as ppo:
        want = [iterations(ppo, 2) for _ in range(4)]
    for i, workers in enumerate((2, 0, 1, 2)):
        with resumed(path, env, settings, workers) if i else PPO(
                env, **settings | {"num_workers": workers}) as ppo:
            assert differing(want[i], iterations(ppo, 2)) == []
            ppo.checkpoint(path)


@pytest.mark.parametrize("name", IDS)
def test_the_environments_of_gymnasium_go_on_where_they_were(name, tmp_path):
    path = tmp_path / "c.safetensors"
    with PPO(name, **TINY | {"num_steps": 64}) as ppo:
        iterations(ppo, 3)
        ppo.checkpoint(path)
        want = iterations(ppo, 1)
    with PPO.resume(path) as ppo:
        assert differing(want, iterations(ppo, 1)) == []


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("lives", [False, True])
def test_a_game_of_atari_goes_on_where_it_was_in_any_of_its_lives(workers, lives, tmp_path, caplog):
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    path = tmp_path / "c.safetensors"
    settings = TINY | dict(num_envs=2, num_steps=40, num_minibatches=1, epochs=1, model="mlp",
                           preprocessing="atari", end_on_life_loss=lives)
    with PPO("ALE/Breakout-v5", **settings) as ppo:
        iterations(ppo, 5)
        ppo.checkpoint(path)
        episodes = ppo.collector.snapshots.log.state.episodes
        assert (episodes[:, 0] > episodes[:, 2]).any() == lives  # not in their first life
        want = iterations(ppo, 2)
    with PPO.resume(path, num_workers=workers) as ppo:
        assert differing(want, iterations(ppo, 2)) == []
    assert "bit for bit" not in caplog.text


def test_a_replay_that_takes_too_long_is_given_up(tmp_path, caplog):
    env, path = partial(Chance, FLOATS, Discrete(3), ends=0.0), tmp_path / "c.safetensors"
    with PPO(env, **TINY) as ppo:
        iterations(ppo, 2)
        ppo.checkpoint(path)
    with PPO.resume(path, env, replay_timeout=0.0) as ppo:
        iterations(ppo, 1)
    assert "environments 0, 1, 2, 3 could not be replayed" in caplog.text


def test_a_checkpoint_between_collect_and_update_or_inside_collect_is_of_the_last_iteration(
        tmp_path):
    env, settings = CASES["memory"]
    settings, path = TINY | settings, tmp_path / "c.safetensors"
    with PPO(env, **settings) as ppo:
        want = [iterations(ppo, 1) for _ in range(4)]
    with PPO(env, **settings) as ppo:
        iterations(ppo, 2)
        ppo.collect()
        ppo.checkpoint(path)
        assert ppo.complete_steps == 2 * 64
    with resumed(path, env, settings) as ppo:
        assert differing(want[2], iterations(ppo, 1)) == []
        ppo.collector.vec.rollout = lambda iteration: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            ppo.collect()
        ppo.checkpoint(path)
    with resumed(path, env, settings) as ppo:
        ppo.checkpoint(path)  # before anything was collected here
    with resumed(path, env, settings) as ppo:
        assert differing(want[3], iterations(ppo, 1)) == []


def test_a_checkpoint_before_the_first_iteration_is_that_of_a_new_run(tmp_path):
    env, path = CASES["kernel"][0], tmp_path / "c.safetensors"
    with PPO(env, **TINY) as ppo:
        ppo.checkpoint(path)
        want = iterations(ppo, 2)
    with PPO.resume(path, env) as ppo:
        assert differing(want, iterations(ppo, 2)) == []


class Worth(Chance):
    """An environment of which a step is worth `reward`."""

    def __init__(self, reward, **settings):
        super().__init__(FLOATS, Discrete(3), **settings)
        self.reward = reward

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, self.reward, *rest


@pytest.mark.parametrize("workers", [0, 2])
def test_other_rewards_in_a_replay_are_another_run(workers, tmp_path, caplog):
    paths = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    with PPO(partial(Worth, 1.0), **TINY) as ppo:
        iterations(ppo, 2)
        ppo.checkpoint(paths[0])
    with PPO.resume(paths[0], partial(Worth, 1.0), num_workers=workers) as ppo:
        ppo.checkpoint(paths[1])
    one, two = (find_checkpoint(path).state["boundary"]["totals"].tolist() for path in paths)
    assert one == two and any(one) and caplog.text == ""
    with PPO.resume(paths[0], partial(Worth, 2.0), num_workers=workers) as ppo:
        iterations(ppo, 1)
    running = ", ".join(str(e) for e, total in enumerate(one) if total)
    assert f"the running episodes of environments {running} could not be replayed" in caplog.text


class Wild(Chance):
    """An environment whose episodes are no function of seed and actions."""

    count = 0

    def step(self, action):
        Wild.count += 1
        obs, *rest = super().step(action)
        return obs + np.float32(Wild.count), *rest


@pytest.mark.full
@pytest.mark.parametrize("workers", [0, 2])
def test_an_episode_that_cannot_be_replayed_is_followed_by_a_new_one_and_named(
        workers, tmp_path, caplog):
    env, path = partial(Wild, FLOATS, Discrete(3), ends=0.0), tmp_path / "c.safetensors"
    with PPO(env, **TINY) as ppo:
        iterations(ppo, 2)
        ppo.checkpoint(path)
    with PPO.resume(path, env, num_workers=workers) as ppo:
        iterations(ppo, 2)
        assert ppo.collector.snapshots.log.state.episodes.tolist() == [[1, 32, 1, 32]] * 4
        ppo.checkpoint(path)
    assert "not bit for bit: the running episodes of environments 0, 1, 2, 3 " in caplog.text
    assert find_checkpoint(path).step == 4 * 64


def test_an_episode_longer_than_the_limit_is_followed_by_a_new_one(tmp_path, caplog):
    env, path = partial(Chance, FLOATS, Discrete(3), ends=0.0), tmp_path / "c.safetensors"
    with PPO(env, replay_limit=20, **TINY) as ppo:
        iterations(ppo, 2)
        assert sum(len(rows) for _, rows in ppo.collector.snapshots.log.state.rollouts) <= 20 + 16
        ppo.checkpoint(path)
    with PPO.resume(path, env) as ppo:
        ppo.checkpoint(path)
        iterations(ppo, 1)
    assert "environments 0, 1, 2, 3 could not be replayed" in caplog.text


def test_a_vector_environment_begins_new_episodes_and_the_log_says_so(tmp_path, caplog):
    path = tmp_path / "c.safetensors"

    def vector():
        return gym.make_vec("CartPole-v1", 4, "sync")
    with PPO(vector(), **TINY) as ppo:
        iterations(ppo, 2)
        ppo.checkpoint(path)
        weights = ppo.learner.flat.values.clone()
    with PPO.resume(path, vector()) as ppo:
        assert torch.equal(ppo.learner.flat.values, weights)
        iterations(ppo, 1)
    assert "environments 0, 1, 2, 3 could not be replayed" in caplog.text


@pytest.fixture
def folder(tmp_path):
    """The folder of a run with two checkpoints."""
    with PPO(CASES["kernel"][0], **TINY, run_dir=str(tmp_path), checkpoint_interval=1e-9) as ppo:
        ppo.learn(6 * 64)
    return tmp_path


def test_a_run_keeps_its_last_two_checkpoints(folder):
    assert [path.name for path in checkpoints_in(folder)] == [
        f"checkpoint-{steps:012d}.safetensors" for steps in (6 * 64, 5 * 64)]
    assert not [path for path in folder.iterdir() if ".part" in path.name]


def test_metrics_go_on_without_a_seam_or_a_doubled_row(folder):
    table = (folder / "metrics.csv").read_text().splitlines()
    checkpoints_in(folder)[0].unlink()
    with PPO.resume(folder, CASES["kernel"][0], run_dir=str(folder)) as ppo:
        assert ppo.step == 5 * 64
        ppo.learn(8 * 64)
    rows = (folder / "metrics.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [str(64 * i) for i in range(1, 9)]
    assert rows[:6] == table[:6] and not (folder / "metrics-1.csv").exists()


def test_episodes_go_on_without_a_seam_or_a_doubled_row(folder):
    with PPO.resume(folder, CASES["kernel"][0], run_dir=str(folder)) as ppo:
        ppo.learn(8 * 64)
    table = (folder / "episodes.csv").read_text()
    checkpoints_in(folder)[0].unlink()
    (folder / "episodes.csv").write_text(table + "44")
    with PPO.resume(folder, CASES["kernel"][0], run_dir=str(folder)) as ppo:
        begin = ppo.step
        ppo.learn(8 * 64)
    steps = [int(row.split(",")[0]) for row in table.splitlines()[1:]]
    assert min(steps) <= begin < max(steps) and not (folder / "episodes-1.csv").exists()
    assert (folder / "episodes.csv").read_text() == table


def test_half_a_row_of_a_run_that_was_killed_is_dropped(folder):
    table = folder / "metrics.csv"
    table.write_text(table.read_text() + "44")
    with PPO.resume(folder, CASES["kernel"][0], run_dir=str(folder)) as ppo:
        ppo.learn(7 * 64)
    rows = table.read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [str(64 * i) for i in range(1, 8)]


def test_parts_of_a_write_that_was_cut_off_are_removed(folder):
    part = folder / ".model.safetensors.123.part"
    part.write_bytes(b"half")
    PPO.resume(folder, CASES["kernel"][0], run_dir=str(folder)).close()
    assert not part.exists()


DAMAGES = {
    "truncated": lambda data: data[:len(data) // 2], "empty": lambda data: b"",
    "flipped": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "text": lambda data: b"not a checkpoint", "long header": lambda data: b"\xff" * 8 + data[8:],
    "future": lambda data: data.replace(b"fastppo checkpoint 2", b"fastppo checkpoint 9"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_one_error_or_the_one_before_is_taken_and_named(
        damage, folder, caplog):
    newest, before = checkpoints_in(folder)
    newest.write_bytes(DAMAGES[damage](newest.read_bytes()))
    with pytest.raises(CheckpointError, match="damaged"):
        read_checkpoint(newest)
    assert find_checkpoint(folder).path == before
    assert newest.name in caplog.text and before.name in caplog.text
    before.write_bytes(b"")
    with pytest.raises(CheckpointError, match=newest.name):
        find_checkpoint(folder)


def test_texts_nested_without_end_are_an_error(tmp_path):
    texts = {"state": '{"list": [' * 10**5, "format": "fastppo checkpoint 2"}
    texts["sha256"] = tensor_file._digest({}, texts)
    save_file({}, tmp_path / "c.safetensors", texts)
    with pytest.raises(CheckpointError, match="damaged: maximum recursion"):
        read_checkpoint(tmp_path / "c.safetensors")


def test_a_policy_is_no_checkpoint_and_a_place_without_one_is_named(folder):
    with PPO(CASES["kernel"][0], **TINY) as ppo:
        ppo.save(folder / "policy.safetensors")
    with pytest.raises(CheckpointError, match="is a policy, not a checkpoint"):
        PPO.resume(folder / "policy.safetensors")
    (folder / "empty").mkdir()
    for place in (folder / "nowhere", folder / "empty"):
        with pytest.raises(CheckpointError, match="there is no .*\n  fix: .*the folder of "):
            PPO.resume(place)


def test_a_state_that_lies_about_itself_is_an_error(folder):
    found = checkpoints_in(folder)[0]
    tensors, texts = tensor_file.read_tensor_file(found, "fastppo checkpoint 2")
    for wrong in ({"dict": []}, {"tensor": "nowhere"}, {"code": "import os"}, [], 3):
        tensor_file.write_tensor_file(found, "fastppo checkpoint 2", tensors,
                                      texts | {"state": wrong})
        with pytest.raises(CheckpointError):
            read_checkpoint(found)
    texts["state"]["dict"] = [[name, value] for name, value in texts["state"]["dict"]]
    for name in list(tensors):
        less = {one: x[:-1].clone() if one == name and x.ndim else x for one, x in tensors.items()}
        if all(torch.equal(less[one], tensors[one]) for one in less):
            continue
        tensor_file.write_tensor_file(found, "fastppo checkpoint 2", less, texts)
        with pytest.raises(Error):
            PPO.resume(found, CASES["kernel"][0])


@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_a_write_that_is_cut_off_leaves_the_older_checkpoints(call, folder, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_, **__):
        raise Killed
    before = [path.read_bytes() for path in checkpoints_in(folder)]
    with PPO.resume(folder, CASES["kernel"][0]) as ppo:
        iterations(ppo, 1)
        with monkeypatch.context() as patch:
            patch.setattr(os, call, killed)
            with pytest.raises(Killed):
                ppo.checkpoint(folder / "checkpoint-000000009999.safetensors")
    if call != "open":  # which comes last, when the new file is there already
        assert [path.read_bytes() for path in checkpoints_in(folder)] == before
    find_checkpoint(folder)


def test_a_full_disk_is_noted_once_and_tried_again(tmp_path, monkeypatch, capsys):
    real, full = tensor_file.write_file, [True]

    def write(path, data, private):
        if full[0] and "checkpoint-" in path.name:
            raise CheckpointError(f"cannot write {path}: {os.strerror(errno.ENOSPC)}")
        real(path, data, private)
    monkeypatch.setattr(tensor_file, "write_file", write)
    with PPO(CASES["kernel"][0], **TINY, run_dir=str(tmp_path), checkpoint_interval=1e-9) as ppo:
        ppo.learn(3 * 64)
        assert capsys.readouterr().err.count("No space left") == 1
        full[0] = False
        ppo.learn(4 * 64)
    assert len(checkpoints_in(tmp_path)) == 1


@pytest.mark.parametrize(("changes", "words"), [
    (dict(num_envs=8), "num_envs is 8, but the run that is resumed has 4"),
    (dict(gamma=0.5), "gamma is 0.5"), (dict(seed=2), "seed is 2"),
    (dict(hidden_sizes=(9,)), "hidden_sizes"), (dict(nonsense=1), "nonsense")])
def test_a_change_that_would_make_it_another_run_is_refused(changes, words, folder):
    with pytest.raises(ConfigError, match=words):
        PPO.resume(folder, CASES["kernel"][0], **changes)


def test_another_number_of_environments_in_a_list_is_refused_with_the_right_one(folder):
    with pytest.raises(ConfigError, match="there are 3 environments.*has 4\n  fix: give 4 env"):
        PPO.resume(folder, [CASES["kernel"][0]] * 3)


def test_what_is_the_same_or_changes_no_weight_may_be_given(folder):
    with PPO.resume(folder, CASES["kernel"][0], num_envs=4, hidden_sizes=(8,), total_steps=900,
                    progress="none", eval_episodes=3, lr=TINY.get("lr", 3e-4), model="auto",
                    seed=None) as ppo:
        assert (ppo.config.total_steps, ppo.config.eval_episodes) == (900, 3)


def test_a_resumed_run_keeps_the_device_that_auto_took(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    monkeypatch.setattr(limits, "gpus", lambda: 0)
    with PPO(CASES["kernel"][0], **TINY | {"hidden_sizes": (256,), "device": "auto"}) as ppo:
        ppo.checkpoint(path)
    monkeypatch.setattr(limits, "gpus", lambda: 1)
    for given in ({}, {"device": "auto"}):
        with PPO.resume(path, CASES["kernel"][0], **given) as ppo:
            assert ppo.config.device == "cpu"
    found = find_checkpoint(path)
    changed = resumed_settings(path, found.settings, found.code, CASES["kernel"][0],
                               {"device": "cuda:1"})
    assert changed["device"] == "cuda:1"  # the user says so


def test_a_checkpoint_does_not_name_the_gpu_that_one_of_several_processes_took(tmp_path):
    path = tmp_path / "c.safetensors"
    with PPO(CASES["kernel"][0], **TINY, device="auto") as ppo:
        ppo.config = ppo.config.replace(device="cuda:1")
        ppo.checkpoint(path)
    assert find_checkpoint(path).settings["device"] == "cuda"


def test_code_is_never_taken_from_a_file(tmp_path):
    env, settings = CASES["own"]
    path = tmp_path / "c.safetensors"
    with PPO(env, **TINY | settings) as ppo:
        ppo.checkpoint(path)
    with pytest.raises(ConfigError, match="never imported") as caught:
        PPO.resume(path)
    assert "Chance" in caught.value.what
    with pytest.raises(ConfigError, match="your own model and optimizer and loss"):
        PPO.resume(path, env)
    with pytest.raises(ConfigError, match="env_name is"):
        PPO.resume(path, "CartPole-v1")


def test_a_password_of_the_environment_is_not_in_the_file(tmp_path):
    path, kwargs = tmp_path / "c.safetensors", {"api_key": "swordfish", "level": 1}

    def env(api_key, level):
        assert api_key == "swordfish"
        return Chance(FLOATS, Discrete(3))
    with PPO(env, env_kwargs=kwargs, **TINY) as ppo:
        ppo.checkpoint(path)
        ppo.save(tmp_path / "policy.safetensors")
    assert b"swordfish" not in path.read_bytes()
    assert b"swordfish" not in (tmp_path / "policy.safetensors").read_bytes()
    load(tmp_path / "policy.safetensors")
    with pytest.raises(ConfigError, match="env_kwargs"):
        PPO.resume(path, env)
    PPO.resume(path, env, env_kwargs=kwargs).close()


def test_a_policy_starts_a_new_run_and_the_log_says_what_it_lacks(folder, caplog):
    env, path = CASES["kernel"][0], folder / "policy.safetensors"
    with PPO.resume(folder, env) as old:
        old.save(path)
    with PPO(env, **TINY, init_from=path) as ppo:
        for name, value in ppo.policy.state_dict().items():
            assert torch.equal(value, old.policy.state_dict()[name])
        assert ppo.step == 0 and "optimizer's moments" in caplog.text
        iterations(ppo, 1)
    with pytest.raises(CheckpointError, match="is for observations of the space Box"):
        PPO("CartPole-v1", **TINY, init_from=path)
    with pytest.raises(CheckpointError, match="has another network") as caught:
        PPO(env, **TINY | {"hidden_sizes": (9,), "rnn": "gru"}, init_from=path)
    assert caught.value.fix.settings == {"hidden_sizes": old.config.hidden_sizes, "rnn": "none"}


@pytest.mark.parametrize("value", [
    None, True, 3, 2.5, float("inf"), "text", (), (1, (2, "x")), {}, {"a": 1, 2: (None,)}],
    ids=str)
def test_numbers_and_texts_pass_through_a_file(value):
    assert join_tree(json.loads(json.dumps(split_tree(value, "x", {}))), {}) == value


def test_arrays_and_tensors_pass_through_a_file_and_objects_do_not():
    tensors = {}
    tree = split_tree({"a": [np.arange(3), torch.ones(2)]}, "x", tensors)
    back = join_tree(json.loads(json.dumps(tree)), tensors)
    assert back["a"][0].tolist() == [0, 1, 2] and back["a"][1].tolist() == [1, 1]
    with pytest.raises(TypeError, match="x.0 is object"):
        split_tree([object()], "x", {})


def test_a_file_of_tensors_alone_is_no_checkpoint(tmp_path):
    save_file({"x": torch.ones(3)}, tmp_path / "checkpoint-1.safetensors")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        find_checkpoint(tmp_path)


def test_a_checkpoint_is_due_after_the_interval_and_at_the_end(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(checkpoint, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    written = []
    monkeypatch.setattr(checkpoint, "write_checkpoint", lambda ppo, path: written.append(path))

    def later(ppo, rollout):
        now[0] += 4.0
    for interval, wanted in ((10.0, [3, 6]), (0.0, [6])):
        written.clear()
        with PPO(CASES["kernel"][0], **TINY, run_dir=str(tmp_path),
                 checkpoint_interval=interval) as ppo:
            ppo.learn(6 * 64, callbacks=[types.SimpleNamespace(on_collect=later)])
        assert [int(path.name[11:23]) // 64 for path in written] == wanted


def test_checkpoints_of_a_run_that_is_not_continued_are_set_aside(tmp_path, caplog):
    env, settings = CASES["kernel"][0], TINY | dict(checkpoint_interval=1e-9)
    with PPO(env, **settings, run_dir=str(tmp_path)) as ppo:
        ppo.learn(4 * 64)
    older = sorted(checkpoints_in(tmp_path))[0]
    with PPO.resume(older, env, run_dir=str(tmp_path)) as ppo:
        assert ppo.step == 3 * 64
        assert len(checkpoints_in(tmp_path)) == 2  # nothing changes before training begins
        ppo.learn(5 * 64)
    assert [read_checkpoint(path).step for path in checkpoints_in(tmp_path)] == [5 * 64, 4 * 64]
    assert caplog.text.count("is not continued, and is now abandoned-") == 1
    with PPO(env, **settings, run_dir=str(tmp_path)) as ppo:  # another run in the same folder
        ppo.learn(64)
    assert find_checkpoint(tmp_path).step == 64
    assert len([*tmp_path.glob("abandoned-*")]) == 2


def test_where_no_checkpoint_can_be_read_the_policy_is_proposed_to_start_with(tmp_path):
    for step in (64, 128):
        (tmp_path / f"checkpoint-{step:012d}.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="none of the 2 checkpoints") as caught:
        find_checkpoint(tmp_path)
    assert "start a new run" in str(caught.value)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(tmp_path)
    assert f'init_from="{tmp_path / "model.safetensors"}"' in str(caught.value)
