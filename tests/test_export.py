"""Policies that leave as a graph: it acts as the policy does, or nothing is written."""

import json
import re
import sys
import types
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from gymnasium.spaces import Box, Discrete
from test_report import weights
from torch import nn

from fastppo import cli, export, exporter
from fastppo.errors import ConfigError, EnvError, ExportError, InputError

# The tests' own torch.jit.load; the package silences its deprecation itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
OBS = [Box(-9.0, 9.0, (3,), np.float32), Box(-9.0, 9.0, (2, 2), np.float64),
       Box(-9.0, 9.0, (), np.float64), Box(0, 255, (5,), np.uint8), Box(0, 1, (4,), np.bool_),
       Box(-9, 9, (2,), np.int32), Box(-9.0, 9.0, (2,), np.float16)]
ACT = [Discrete(3), Discrete(3, start=-5), Box(-0.1, 0.2, (2,)), Box(-np.inf, np.inf, (1,)),
       Box(-1, 1, (2, 2), np.float64), Box(0, 1, (), np.float32), Box(-1, 1, (2,), np.float16)]


def acting(path):
    """The function from observations to actions of a TorchScript file."""
    module = torch.jit.load(path)
    return lambda obs: module(torch.from_numpy(obs)).numpy()


def loosened(ppo):
    """`ppo`, whose policy acts differently from state to state: its last layer is no more small."""
    with torch.no_grad():
        ppo.policy.net.actor.weight.mul_(100)
    return ppo


class Net(nn.Module):
    """A network of one layer, with whatever `inner` says in its way."""

    inner = staticmethod(lambda obs: obs)

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.layer = nn.Linear(obs_space.shape[0], 3)

    def forward(self, obs):
        """(two logits, value)."""
        out = self.layer(self.inner(obs))
        return out[:, :2], out[:, 2]


# what it does

@pytest.mark.parametrize("obs_space, act_space", [*((obs, ACT[0]) for obs in OBS),
                                                  *((OBS[0], act) for act in ACT[1:])], ids=str)
def test_a_graph_acts_as_the_policy_does_on_a_batch_of_any_length(trainer, tmp_path, obs_space,
                                                                  act_space):
    policy = loosened(trainer(lambda: Chance(obs_space, act_space)).learn(32)).policy
    export(policy, tmp_path / "a.pt")
    act, obs = acting(tmp_path / "a.pt"), exporter.samples(obs_space, 50)
    wanted = policy.predict(obs)
    for n in (50, 1, 0):
        assert exporter.difference(act(obs[:n]), wanted[:n]) == ""
    assert len(np.unique(wanted)) > 1 and act(obs).dtype == act_space.dtype


@pytest.mark.filterwarnings("ignore")  # of what three big packages import
@pytest.mark.parametrize("name, obs_space, act_space", [
    ("CartPole-v1", None, None), *(pytest.param("", *spaces, marks=pytest.mark.slow) for spaces in (
        (OBS[0], ACT[1]), *((obs, ACT[2]) for obs in OBS), *((OBS[0], act) for act in ACT[3:])))])
def test_onnx_acts_as_the_policy_does_and_says_what_it_is(trainer, tmp_path, name, obs_space,
                                                          act_space):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path = tmp_path / "a.onnx"
    policy = loosened(trainer(name or (lambda: Chance(obs_space, act_space))).learn(64)).policy
    export(policy, path, env=name or None)
    session = onnxruntime.InferenceSession(path)
    (into,), (out,) = session.get_inputs(), session.get_outputs()
    assert (into.name, out.name) == ("obs", "action")
    assert into.shape[1:] == [*policy.observer.seen.store.shape]
    for n in (1, 40):
        obs = exporter.samples(policy.obs_space, n)
        found = session.run(None, {"obs": obs})[0]
        assert exporter.difference(found, policy.predict(obs)) == ""
    facts = json.loads(session.get_modelmeta().custom_metadata_map["fastppo"])
    assert facts["env_name"] == (name or None)
    assert b"tests/test_export" not in path.read_bytes()  # nor any other place it was traced at


def test_a_file_says_which_spaces_it_is_for_and_who_wrote_it(trainer, tmp_path):
    export(trainer("CartPole-v1").policy, tmp_path / "a.pt", env="CartPole-v1")
    told = {"fastppo": ""}
    torch.jit.load(tmp_path / "a.pt", _extra_files=told)
    facts = json.loads(told["fastppo"])
    assert facts["act_space"] == {"type": "Discrete", "n": 2, "start": 0}
    assert facts["obs_space"]["shape"] == [4] and facts["obs_space"]["high"][1] == "inf"
    assert facts["version"] and facts["env_name"] == "CartPole-v1"
    assert facts["input"] == {"name": "obs", "dtype": "float32"}


def test_exporting_changes_no_bit_of_training(trainer, tmp_path):
    def trained(exports):
        ppo = trainer("CartPole-v1", seed=3)
        for _ in range(3):
            rollout = ppo.collect()
            if exports:
                export(ppo.policy, tmp_path / "a.pt", env="CartPole-v1")
            ppo.update(rollout)
        return weights(ppo)
    assert torch.equal(trained(True), trained(False))


# what is refused

@pytest.mark.parametrize("inner, why", [
    (lambda obs: obs.reshape(len(obs), -1), "fails on a batch of 300: .*mat1 and mat2"),
    (lambda obs: obs if obs[0, 0] > 0 else -obs, "does not act as the policy does"),
    (lambda obs: torch.from_numpy(obs.numpy()), "does not act as the policy does|cannot be made")])
def test_a_graph_that_does_not_do_the_same_is_not_written(trainer, tmp_path, inner, why):
    net = type("Inner", (Net,), {"inner": staticmethod(inner)})
    policy = trainer("CartPole-v1", model=net, norm_obs=False).policy
    with pytest.raises(ExportError, match=why):
        export(policy, tmp_path / "a.pt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("found, why", [
    ([[1.0], [2.0]], ""), ([[1.0], [2.00001]], ""), ([[1.0], [2.0001]], "row 1"),
    ([[np.nan], [2.0]], "row 0"), ([1.0, 2.0], r"\[2\], not float32 \[2, 1\]")])
def test_continuous_actions_may_differ_by_rounding_alone(found, why):
    told = exporter.difference(np.array(found, np.float32), np.array([[1.0], [2.0]], np.float32))
    assert bool(told) == bool(why) and re.search(why, told)


def test_discrete_actions_may_not_differ_at_all():
    assert exporter.difference(np.array([0, 2]), np.array([0, 1])) == "2 for 1 in row 1"


@pytest.mark.parametrize("path, to, why", [
    ("a.bin", None, "does not say what to export to"), ("a.onnx", "tflite", "no format 'tflite'"),
    ("a.onnx", None, r"needs .* of which \S* ?nobody_has_this is not installed")])
def test_a_format_that_cannot_be_is_refused_before_any_work(monkeypatch, path, to, why):
    monkeypatch.setattr(exporter, "NEEDED", ("json", "nobody_has_this"))
    with pytest.raises(ConfigError, match=why):
        export(None, path, to)


@pytest.mark.parametrize("obs_space, act_space, what", [
    (gym.spaces.Dict(a=OBS[0]), ACT[0], "observations of the space Dict"),
    (OBS[0], gym.spaces.MultiBinary(2), "actions of the space MultiBinary")])
def test_spaces_that_no_graph_is_made_for_are_refused_by_name(tmp_path, obs_space, act_space, what):
    policy = types.SimpleNamespace(obs_space=obs_space, act_space=act_space)
    with pytest.raises(ExportError, match=what):
        export(policy, tmp_path / "a.pt")


def test_an_environment_to_check_in_must_have_the_policys_spaces_and_work(trainer, tmp_path):
    class Fails(Chance):
        def step(self, action):
            raise RuntimeError("not today")
    policy = trainer(Chance).policy
    with pytest.raises(InputError, match="give the environment it was trained on"):
        export(policy, tmp_path / "a.pt", env="CartPole-v1")
    with pytest.raises(EnvError, match=r"an environment failed in step 1: .*not today"):
        export(policy, tmp_path / "a.pt", env=Fails)


# the command

@pytest.fixture
def said(tmp_path, monkeypatch, capsys):
    """A function from argv to (exit code, stdout, stderr), in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*argv):
        code = 0
        try:
            cli.main(["export", *argv])
        except SystemExit as end:
            code = end.code
        return code, *capsys.readouterr()
    return run


def test_the_command_exports_the_policy_of_a_runs_folder(trainer, said):
    trainer("CartPole-v1").save("run/model.safetensors")
    assert said("run", "--to=torchscript") == (
        0, "exported  run/model.pt   acts as the policy does on 300 steps of CartPole-v1\n", "")
    assert acting("run/model.pt")(np.zeros((2, 4), np.float32)).shape == (2,)
    code, out, err = said("run/model.safetensors", "--output=b.pt", "--env=envs_for_tests:Chance")
    assert code == 1 and "give the environment it was trained on" in err


def test_a_file_never_names_code_to_import(trainer, said, monkeypatch):
    Path("lib").mkdir()
    Path("lib/trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend("lib")
    trainer(Chance, env_name="Chance").save("model.safetensors")
    monkeypatch.setattr("fastppo.export_verb.trained_in", lambda model: ("trap:Env-v0", {}))
    code, out, err = said("model.safetensors", "--output=a.pt")
    assert (code, err) == (0, "") and "300 samples of its observation space" in out
    assert "trap" not in sys.modules


@pytest.mark.parametrize("argv, why", [
    ([], "export needs the file of a policy"), (["--to=onnx"], "export needs the file of a policy"),
    (["a.safetensors", "--to=torchscript"], "there is no file a.safetensors"),
    (["a", "--too=onnx"], "did you mean --to"), (["a", "--to=tflite"], "one of onnx, torchscript"),
    (["a.pt", "--output=a.pt"], "is the policy itself"), (["a", "--output=b.x"], "fix: --to=onnx")])
def test_what_the_command_cannot_do_is_one_error(said, argv, why):
    code, out, err = said(*argv)
    assert code in (1, 2) and out == "" and why in err and "Traceback" not in err


def test_help_says_every_option(said):
    code, out, _ = said("--help")
    assert code == 0 and all(f"--{name} " in out for name in ("to", "output", "env_name"))


def test_an_environment_that_cannot_be_made_here_is_no_hindrance(trainer, said, monkeypatch):
    def gone(*args, **kwargs):
        raise gym.error.DependencyNotInstalled("no physics here")
    trainer("CartPole-v1").save("model.safetensors")
    monkeypatch.setattr(gym, "make", gone)
    code, out, _ = said("model.safetensors", "--to=torchscript")
    assert code == 0 and "300 samples" in out
