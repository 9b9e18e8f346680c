"""A saved policy comes back bit for bit, and no other file comes back at all."""

import errno
import inspect
import json
import os
import threading

import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete, Tuple
from safetensors import safe_open
from safetensors.torch import save_file

from fastppo import PPO, load
from fastppo.errors import CheckpointError, ConfigError, PathError, path_errors
from fastppo.runs.facts import fingerprint
from fastppo.runs.folder import policy_at

TINY = dict(preset="none", seed=1, num_envs=2, num_steps=8, num_minibatches=1, epochs=1,
            num_workers=0, hidden_sizes=(4,))
SPACES = {
    "vectors": (Box(-np.inf, np.inf, (3,), np.float32), Discrete(3, start=-1)),
    "float64": (Box(-5.0, 5.0, (2, 2), np.float64),
                Box(np.array([-1, 0], np.float32), np.array([1, np.inf], np.float32))),
    "scalars": (Box(-1.0, 1.0, (), np.float64), Box(-2.0, 2.0, (), np.float64)),
    "bytes": (Box(0, 255, (4, 2), np.uint8), Discrete(2)),
    "swapped": (Box(-5.0, 5.0, (3,), np.dtype(">f8")), Box(-2.0, np.inf, (2,), np.dtype(">f4"))),
    "long": (Box(-5.0, 5.0, (3,), np.longdouble), Box(-2.0, 2.0, (2,), np.longdouble)),
    "small": (Box(-5, 5, (3,), np.dtype(">i2")), Discrete(2)),
}


class Net(torch.nn.Module):
    """A network of a user's."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)
        self.register_buffer("offset", torch.randn(1))

    def forward(self, obs):
        out = self.layer(obs.flatten(1))
        return out[:, :3] + self.offset, out[:, 3]


@pytest.fixture
def saved(tmp_path):
    """A trained policy and its file."""
    path = tmp_path / "policy.safetensors"
    with PPO(lambda: Chance(*SPACES["vectors"]), **TINY) as ppo:
        ppo.learn(32)
        ppo.save(path)
    return ppo.policy, path


def rows(policy, count=5):
    rng = np.random.default_rng(0)
    return rng.normal(2, 3, (count, *policy.obs_space.shape)).astype(policy.obs_space.dtype)


@pytest.mark.parametrize("name", SPACES)
def test_a_loaded_policy_is_the_saved_one_bit_for_bit(name, tmp_path):
    path = tmp_path / "policy.safetensors"
    with PPO(lambda: Chance(*SPACES[name]), **TINY) as ppo:
        ppo.learn(32)
        ppo.save(str(path))
    again, obs = load(str(path)), rows(ppo.policy)
    assert (again.obs_space, again.act_space) == SPACES[name]
    assert again.act_space.dtype == SPACES[name][1].dtype
    for key, value in ppo.policy.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    assert np.array_equal(again.value(obs), ppo.policy.value(obs))
    for deterministic in (True, False):
        acts = [policy.predict(obs, deterministic) for policy in (again, ppo.policy)]
        assert np.array_equal(*acts)
    assert not again.training


@pytest.mark.parametrize("kinds", [("i4", "u1", "f2"), ("u8", "i2", "u4"), (">i4", ">i8", "?")])
def test_every_space_of_a_file_keeps_its_dtype(kinds, tmp_path):
    first, second, third = map(np.dtype, kinds)
    wanted = Tuple([MultiDiscrete([[2, 3]], second), MultiBinary(3), MultiBinary((1, 2)),
                    Box(0, 1, (2,), third)])
    if "dtype" in inspect.signature(Discrete).parameters:  # Gymnasium before 1.4 has none
        wanted = Tuple([Discrete(3, start=2, dtype=first), *wanted])
    with PPO(lambda: Chance(act_space=wanted), **TINY) as ppo:
        ppo.save(tmp_path / "policy")
    found = load(tmp_path / "policy")
    assert found.act_space == wanted and wanted.contains(found.predict(np.zeros(1, np.float32)))
    assert [part.dtype for part in found.act_space] == [part.dtype for part in wanted]


def test_bounds_that_only_longdouble_has_are_saved_as_none(tmp_path):
    far = np.longdouble("1e4000")
    space = Box(np.full(2, -far), np.full(2, 0.1, np.longdouble), (2,), np.longdouble)
    with PPO(lambda: Chance(space), **TINY) as ppo:
        ppo.save(tmp_path / "policy.safetensors")
    again = load(tmp_path / "policy.safetensors").obs_space
    assert again.dtype == np.longdouble and np.allclose(again.high.astype(float), 0.1)
    assert (again.low <= -1e300).all()


def test_a_file_says_under_which_fingerprint_it_was_made_and_loads_under_any(saved, monkeypatch):
    policy, path = saved
    with safe_open(path, "pt") as file:
        held = json.loads(file.metadata()["fingerprint"])
    assert held == fingerprint(1)
    assert {"machine", "cpu_flags", "fastppo", "torch", "numpy", "gymnasium", "kernels",
            "torch_cpu", "torch_threads"} == set(held)
    assert held["torch"] == torch.__version__
    monkeypatch.setattr("fastppo.runs.policy_file.fingerprint",
                        lambda threads: {"machine": "another"})
    with PPO(lambda: Chance(*SPACES["vectors"]), **TINY) as ppo:
        ppo.save(path)
    monkeypatch.undo()
    assert load(path).seed == 1


@pytest.mark.parametrize(("code", "words"), [
    (errno.ENOSPC, "free space"), (errno.EDQUOT, "free space"), (errno.EACCES, "you may write"),
    (errno.EROFS, "you may write"), (errno.ENAMETOOLONG, "shorter name"), (errno.EIO, "a folder")])
def test_the_fix_of_a_write_that_fails_fits_the_reason(tmp_path, monkeypatch, code, words):
    def failing(*_):
        raise OSError(code, os.strerror(code))
    monkeypatch.setattr(os, "fsync", failing)
    with PPO(lambda: Chance(*SPACES["vectors"]), **TINY) as ppo:
        with pytest.raises(CheckpointError, match=f"{os.strerror(code)}\n  fix: .*{words}"):
            ppo.save(tmp_path / "policy.safetensors")


def test_a_directory_is_no_file_to_save_to(tmp_path):
    (tmp_path / "file").write_text("")
    with PPO(lambda: Chance(*SPACES["vectors"]), **TINY) as ppo:
        for place in (tmp_path, tmp_path / "file" / "policy.safetensors"):
            with pytest.raises(CheckpointError, match="cannot write .*: .*\n  fix: save to a"):
                ppo.save(place)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_is_missing_is_made(tmp_path):
    path = tmp_path / "my runs" / "deep" / "policy.safetensors"
    with PPO(lambda: Chance(*SPACES["vectors"]), **TINY) as ppo:
        for _ in range(2):
            ppo.save(path)
    assert load(path).seed == 1


@pytest.mark.parametrize("name, why", [(300 * "x", "name too long"), ("a\0b", "no file|no run")])
def test_a_name_that_no_file_can_have_is_an_error_of_ours(name, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    env = lambda: Chance(*SPACES["vectors"])  # noqa: E731
    for call in (load, PPO.resume, lambda path: PPO(env, init_from=path, **TINY)):
        with pytest.raises(PathError, match=f"(?i){why}"):
            call(name)
    with PPO(env, **TINY) as ppo, pytest.raises(CheckpointError, match="cannot write"):
        ppo.save(name)
    with pytest.raises(ConfigError, match="run_dir|(?i:name too long)"):
        PPO(env, run_dir=name, **TINY)


def test_an_exception_of_other_code_is_no_error_of_ours(tmp_path):
    with pytest.raises(PermissionError), path_errors():
        raise PermissionError(errno.EACCES, "Permission denied", "/secret")
    with pytest.raises(PathError, match="cannot be used"):
        policy_at(tmp_path / ("x" * 300))


def test_saving_again_replaces_the_file_and_leaves_no_other(saved):
    policy, path = saved
    with PPO(lambda: Chance(*SPACES["vectors"]), **(TINY | dict(seed=2))) as ppo:
        ppo.save(path)
    assert os.listdir(path.parent) == ["policy.safetensors"]
    assert load(path).seed == 2


@pytest.mark.parametrize("broken", ["replace", "fsync"])
def test_a_write_that_fails_keeps_the_old_file(saved, monkeypatch, broken):
    policy, path = saved
    old = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(os, broken, full)
    with PPO(lambda: Chance(*SPACES["vectors"]), **TINY) as ppo:
        with pytest.raises(CheckpointError, match="cannot write .*No space left.*\n  fix: "):
            ppo.save(path)
    assert path.read_bytes() == old and os.listdir(path.parent) == ["policy.safetensors"]


def test_an_interrupted_write_keeps_the_old_file_and_leaves_no_other(saved, monkeypatch):
    policy, path = saved
    old = path.read_bytes()

    def struck(*_):
        raise KeyboardInterrupt
    monkeypatch.setattr(os, "fsync", struck)
    with PPO(lambda: Chance(*SPACES["vectors"]), **TINY) as ppo, pytest.raises(KeyboardInterrupt):
        ppo.save(path)
    assert path.read_bytes() == old and os.listdir(path.parent) == ["policy.safetensors"]


def test_a_place_that_cannot_be_written_is_an_error_of_ours(saved):
    policy, path = saved
    with PPO(lambda: Chance(*SPACES["vectors"]), **TINY) as ppo:
        for place in (path.parent, path / "below", "/proc/nowhere/policy"):
            with pytest.raises(CheckpointError, match="cannot write"):
                ppo.save(place)


def test_a_truncated_file_is_refused_at_any_length(saved):
    policy, path = saved
    data = path.read_bytes()
    for size in {0, 1, 7, 8, 9, 100, *range(200, len(data), 97), len(data) - 1}:
        path.write_bytes(data[:size])
        with pytest.raises(CheckpointError):
            load(path)


def test_a_flipped_bit_is_refused_anywhere(saved):
    policy, path = saved
    data = bytearray(path.read_bytes())
    for place in [*range(0, 64), *range(64, len(data), 13)]:
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        try:
            again = load(path)
        except CheckpointError:
            pass
        else:  # white space of the header may change without a change of meaning
            assert data[place] ^ 1 << place % 8 in b" " or data[place] in b" ", (place, again)
        data[place] ^= 1 << place % 8


def test_what_is_appended_to_a_file_is_refused(saved):
    policy, path = saved
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(CheckpointError):
        load(path)


@pytest.mark.parametrize("text", [b"", b"PK\x03\x04", b"\x80\x04\x95.", b"x" * 10_000,
                                  b"\xff" * 16, (2**40).to_bytes(8, "little") + b"{}"])
def test_a_foreign_file_is_refused(tmp_path, text):
    (tmp_path / "file").write_bytes(text)
    with pytest.raises(CheckpointError, match="\n  fix: "):
        load(tmp_path / "file")


def test_a_missing_file_is_refused_and_of_a_folder_the_last_policy_is_read(tmp_path):
    for path, why in ((tmp_path / "none", "there is no file"), (tmp_path, "is a folder")):
        with pytest.raises(CheckpointError, match=why):
            load(path)
    with PPO("CartPole-v1", **TINY) as ppo:
        assert ppo.save(tmp_path / "model.safetensors") == tmp_path / "model.safetensors"
    assert load(tmp_path).config.env_name == "CartPole-v1"


@pytest.mark.parametrize("damaged", [None, b"", b"PK", bytes(64)], ids=repr)
def test_what_is_no_file_of_tensors_is_one_error(tmp_path, damaged):
    if damaged is not None:
        (tmp_path / "mine.safetensors").write_bytes(damaged)
    with pytest.raises(CheckpointError, match="fix: give the file of a policy"):
        load(tmp_path / "mine.safetensors")


def test_tensors_of_another_program_are_refused(tmp_path):
    for tensors in ({"weight": torch.ones(3)}, {"half": torch.ones(2, dtype=torch.bfloat16)}):
        save_file(tensors, tmp_path / "file")
        with pytest.raises(CheckpointError, match="not a policy of this version"):
            load(tmp_path / "file")


def forged(path, **changes):
    """The file with other texts and a checksum that fits them."""
    from fastppo.runs.tensor_file import _digest
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}
    metadata = {name: text for name, text in (metadata | changes).items() if text is not None}
    metadata.pop("sha256")
    save_file(tensors, path, metadata | {"sha256": _digest(tensors, metadata)})


@pytest.mark.parametrize("changes", [
    {"config": None}, {"config": "{"}, {"config": "[]"}, {"config": "{}"}, {"obs_space": "7"},
    {"act_space": '{"n": -1, "start": 0}'}, {"act_space": '{"dtype": "<f4"}'},
    {"obs_space": '{"dtype": "no"}'}, {"format": "fastppo policy 2"},
])
def test_texts_that_make_no_sense_are_refused(saved, changes):
    forged(saved[1], **changes)
    with pytest.raises(CheckpointError, match="\n  fix: "):
        load(saved[1])


@pytest.mark.parametrize("name, value", [
    ("rnn_size", -1), ("hidden_sizes", [5]), ("model", "os.system"), ("model", "cnn")])
def test_settings_that_do_not_fit_the_weights_are_refused(saved, name, value):
    with safe_open(saved[1], "pt") as file:
        config = json.loads(file.metadata()["config"])
    forged(saved[1], config=json.dumps(config | {name: value}))
    with pytest.raises(CheckpointError):
        load(saved[1])


def test_a_setting_of_a_later_version_is_passed_over(saved):
    with safe_open(saved[1], "pt") as file:
        config = json.loads(file.metadata()["config"])
    forged(saved[1], config=json.dumps(config | {"from_the_future": 1}))
    assert np.array_equal(load(saved[1]).value(rows(saved[0])), saved[0].value(rows(saved[0])))


def test_a_policy_of_a_users_network_needs_its_class(tmp_path):
    path = tmp_path / "policy"
    own = {name: value for name, value in TINY.items() if name != "hidden_sizes"}
    with PPO(lambda: Chance(*SPACES["vectors"]), model=Net, **own) as ppo:
        ppo.learn(16)
        ppo.save(path)
    with pytest.raises(CheckpointError, match="model of your own.*\n.*my_module:MyNet"):
        load(path)
    again, obs = load(path, model=Net), rows(ppo.policy)
    assert np.array_equal(again.value(obs), ppo.policy.value(obs))
    assert torch.equal(again.net.offset, ppo.policy.net.offset)

    class Other(Net):
        def __init__(self, obs_space, act_space):
            super().__init__(obs_space, act_space)
            self.more = torch.nn.Linear(2, 2)
    with pytest.raises(CheckpointError, match="does not fit the model"):
        load(path, model=Other)


def test_a_class_for_a_built_in_network_is_refused(saved):
    with pytest.raises(CheckpointError, match="(?s)does not fit the model.*a built-in network"):
        load(saved[1], model=Net)


def test_settings_that_are_no_text_are_saved_as_what_they_are_called(tmp_path):
    lock = threading.Lock()
    with PPO(lambda lock: Chance(*SPACES["vectors"]), env_kwargs={"lock": lock}, **TINY) as ppo:
        ppo.save(tmp_path / "policy")
    assert load(tmp_path / "policy").act_space == SPACES["vectors"][1]


def test_a_file_holds_no_pickle_and_loading_imports_nothing(saved, monkeypatch):
    import builtins
    import pickle

    def refuse(*args, **kwargs):
        raise AssertionError("unpickled")
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    real, seen = builtins.__import__, []

    def watched(name, *args):
        seen.append(name)
        return real(name, *args)
    monkeypatch.setattr(builtins, "__import__", watched)
    load(saved[1])
    assert [name for name in seen if "test" in name or "env" in name] == []


def test_a_loaded_policy_outlives_its_trainer_and_its_file(saved):
    policy, path = saved
    again = load(path)
    path.write_bytes(b"gone")
    path.unlink()
    assert np.array_equal(again.value(rows(policy)), policy.value(rows(policy)))


@pytest.mark.parametrize("model, what", [
    ("foo", "model is 'foo'"), ("nosuch:Net", "cannot import 'nosuch'")])
def test_a_wrong_model_is_no_fault_of_the_file(tmp_path, model, what):
    with PPO("CartPole-v1", **TINY) as ppo:
        ppo.save(tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=what):
        load(tmp_path, model=model)
