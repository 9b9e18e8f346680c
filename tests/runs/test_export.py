"""Policies that leave as a graph: it acts as the policy does, or nothing is written."""

import contextlib
import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch
from asked_of_runs import weights
from envs_for_tests import Chance, Fenced, legal_places
from games_for_tests import MaskedTurns, Scripted
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import nn
from torch.distributions import Categorical

from fastppo import export
from fastppo.envs.make import make_factory
from fastppo.errors import ConfigError, EnvError, ExportError, InputError
from fastppo.machine import installation
from fastppo.machine.installation import format_of
from fastppo.runs import export as exporter
from fastppo.runs.export import env_action_function
from fastppo.runs.policy_file import POLICY_FORMAT
from fastppo.runs.tensor_file import read_tensor_file, write_tensor_file
from fastppo.spaces.actions import ActionMapping

# The tests' own torch.jit.load; the package silences its deprecation itself.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
VECTOR, CHOICE = Box(-9.0, 9.0, (3,), np.float32), Discrete(3)
MIXED = Dict(a=Tuple([Discrete(3, start=2), MultiBinary(3)]), b=Box(0, 255, (4,), np.uint8),
             c=Box(-9.0, 9.0, (2,), np.float64))
HYBRID = Dict(aim=Box(-0.5, 0.2, (2, 2), np.float64), go=Discrete(3, start=1),
              keys=Tuple([MultiBinary(2), MultiDiscrete([3, 2])]))
OBS = [VECTOR, Box(-9.0, 9.0, (2, 2), np.float64), Box(-9.0, 9.0, (), np.float64),
       Box(0, 255, (5,), np.uint8), Box(0, 1, (4,), np.bool_), Box(-9, 9, (2,), np.int32),
       Box(-9.0, 9.0, (2,), np.float16), Box(0, 9, (4,), np.uint16), Discrete(4, start=-7),
       Discrete(3, start=2**40), MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [-5, 9]]),
       MultiDiscrete([3, 2], dtype=np.uint16), MultiBinary((2, 3)), MIXED, Tuple([VECTOR, CHOICE])]
ACT = [CHOICE, Discrete(3, start=-5), Box(-0.1, 0.2, (2,)), Box(-np.inf, np.inf, (1,)),
       Box(-1, 1, (2, 2), np.float64), Box(0, 1, (), np.float32), Box(-1, 1, (2,), np.float16),
       Box(-5, 9, (2,), np.int16), MultiDiscrete([[2, 3], [3, 4]], start=[[4, -2], [0, 1]]),
       MultiDiscrete([2, 3], dtype=np.int8), MultiBinary((2, 2)), HYBRID]
BOARDS = [Box(0, 1, (3, 3, 2), np.bool_), Box(-1, 1, (6, 7, 2), np.int8),
          Box(0, 1, (8, 8, 11), np.bool_)]
MASKABLE = Discrete(4, start=-5), MultiDiscrete([3, 2], start=[4, -2]), MultiBinary(3)
PAIRS = [*((obs, CHOICE) for obs in OBS), *((VECTOR, act) for act in ACT[1:])]


def memory(rnn="none", **settings):
    """Settings with a small memory of this kind, or none."""
    return dict(settings, rnn=rnn, rnn_size=5) if rnn != "none" else settings


def acting(path):
    """The function from inputs to outputs, lists of arrays, of a TorchScript or ONNX file."""
    runs = exporter.run_onnx if path.suffix == ".onnx" else exporter.run_torchscript
    return runs(path.read_bytes())


def written(policy, path, env=None, count=15):
    """What a file acts like, checked on `count` samples or steps of `env` only; and those."""
    steps = exporter.play_episodes(policy, env, count) if env else \
        exporter.sample_episodes(policy, count)
    exporter.write_graph(policy, path, format_of(path, None), steps, None)
    return acting(path), steps


def same(policy, found, wanted):
    """True if the outputs of a graph are the policy's; else AssertionError."""
    assert len(found) == len(wanted)
    for pair in zip(found, wanted, exporter.tolerances(policy, wanted)):
        exporter.assert_alike(*pair)
    return True


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

@pytest.mark.some(13)
@pytest.mark.parametrize("obs_space, act_space", PAIRS, ids=str)
def test_a_graph_acts_as_the_policy_does_on_a_batch_of_any_length(trainer, tmp_path, obs_space,
                                                                  act_space):
    policy = loosened(trainer(lambda: Chance(obs_space, act_space)).learn(32)).policy
    act, steps = written(policy, tmp_path / "a.pt")
    wanted = exporter.expected_outputs(policy, steps)
    for n in (15, 1, 0):
        assert same(policy, act([x[:n] for x in steps.obs]), [x[:n] for x in wanted])
    assert all(len(np.unique(x)) > 1 for x in wanted)
    assert policy.act_space.contains(policy.actions.to_env()(np.zeros(
        (1, *policy.actions.store.shape), policy.actions.store.dtype))[0])


@pytest.mark.parametrize("how, space, rnn", [
    *(("info", space, "none") for space in MASKABLE), ("obs", MASKABLE[0], "none"),
    ("info", MASKABLE[1], "gru")], ids=str)
def test_a_graph_takes_the_mask_and_keeps_to_it(trainer, tmp_path, how, space, rnn):
    def env():
        return Fenced(how, space)
    policy = loosened(trainer(env, **memory(rnn)).learn(32)).policy
    act, steps = written(policy, tmp_path / "a.pt", make_factory(env))  # fails on a masked action
    place = [port.name for port in exporter.inputs_of(policy)].index("action_mask")
    for mask, action in zip(steps.obs[place], act(exporter.graph_inputs(policy, steps))[0]):
        assert mask[legal_places(space, action)].all()


@pytest.mark.parametrize("settings, spaces", [
    (dict(rnn="gru"), (VECTOR, ACT[2])), (dict(rnn="lstm"), (VECTOR, CHOICE)),
    (dict(rnn="mingru"), (VECTOR, ACT[2])),
    (dict(rnn="lstm", shared_critic=True), (MIXED, HYBRID))], ids=str)
def test_memory_goes_in_as_state_and_comes_out_as_next_state(trainer, tmp_path, settings, spaces):
    policy = loosened(trainer(lambda: Chance(*spaces), **memory(**settings)).learn(32)).policy
    act, steps = written(policy, tmp_path / "a.pt")
    state, plain = np.zeros((1, policy.memory), np.float32), policy.observer.layout.structure
    for i in range(9):  # of one episode, its first step included
        obs = steps.part(i, i + 1).obs
        *found, after = act([*obs, state])
        wanted, state = policy.predict(plain(obs), state=state if i else None)
        assert same(policy, [*found, after], [leaf.of(wanted) for leaf in exporter.leaves(
            policy.act_space)] + [state])
    found = act(exporter.graph_inputs(policy, steps))
    with pytest.raises(AssertionError):
        same(policy, found, act([*steps.obs, 0 * steps.state]))
    assert same(policy, found, exporter.expected_outputs(policy, steps))


@pytest.mark.some(1)
@pytest.mark.filterwarnings("ignore")  # of what three big packages import
@pytest.mark.parametrize("spaces, settings", [
    ((), {}), ((MIXED, HYBRID), dict(rnn="lstm", final_tanh=True)), ((), dict(rnn="mingru")),
    ((BOARDS[1], CHOICE), dict(model="impala", precision="fp32")), *(pytest.param(
        pair, dict(rnn=rnn), marks=pytest.mark.slow) for rnn in ("none", "gru", "lstm", "mingru")
        for pair in PAIRS)],
    ids=str)
def test_onnx_acts_as_the_policy_does_and_says_what_it_is(trainer, tmp_path, spaces, settings):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    path, env = tmp_path / "a.onnx", (lambda: Chance(*spaces)) if spaces else "CartPole-v1"
    policy = loosened(trainer(env, **memory(**settings)).learn(64)).policy
    export(policy, path, env=None if spaces else env)
    session = onnxruntime.InferenceSession(path)
    for ports, found in ((exporter.inputs_of(policy), session.get_inputs()),
                         (exporter.outputs_of(policy), session.get_outputs())):
        assert [(port.name, *port.shape) for port in ports] == [
            (one.name, *one.shape[1:]) for one in found]
    for n in (1, 40):
        steps = exporter.sample_episodes(policy, n)
        found = acting(path)(exporter.graph_inputs(policy, steps))
        assert same(policy, found, exporter.expected_outputs(policy, steps))
    facts = json.loads(session.get_modelmeta().custom_metadata_map["fastppo"])
    assert facts["env_name"] == (None if spaces else env)
    assert b"tests/test_export" not in path.read_bytes()  # nor any other place it was traced at


@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("board", BOARDS, ids=str)
def test_a_graph_of_convolutions_takes_boards_of_any_size(trainer, tmp_path, board, frames):
    policy = loosened(trainer(lambda: Chance(board), model="impala", precision="fp32",
                              frame_stack=frames).learn(16)).policy
    act, steps = written(policy, tmp_path / "a.pt")
    assert steps.obs[0].dtype == board.dtype and steps.obs[0].ndim == 3 + frames
    found = [act([x[:n] for x in steps.obs]) for n in (15, 2)]
    assert same(policy, found[1], [x[:2] for x in found[0]])


@pytest.mark.slow
@pytest.mark.parametrize("obs_space, act_space, rnn", [
    *((obs, act, "none") for obs in OBS for act in ACT),
    *((*pair, rnn) for pair in PAIRS for rnn in ("gru", "lstm", "mingru"))], ids=str)
def test_every_pair_of_spaces_leaves_with_memory_and_without(trainer, tmp_path, obs_space,
                                                             act_space, rnn):
    def env():
        return Chance(obs_space, act_space)
    policy = loosened(trainer(env, **memory(rnn)).learn(32)).policy
    written(policy, tmp_path / "a.pt", make_factory(env), 100)
    written(policy, tmp_path / "a.pt")


def test_a_file_says_which_spaces_it_is_for_and_who_wrote_it(trainer, tmp_path):
    export(trainer("CartPole-v1").policy, tmp_path / "a.pt", env="CartPole-v1")
    told = {"fastppo": ""}
    torch.jit.load(tmp_path / "a.pt", _extra_files=told)
    facts = json.loads(told["fastppo"])
    assert facts["act_space"] == {"n": 2, "start": 0}
    assert facts["obs_space"]["dtype"] == "<f4" and facts["arrays"]["obs_space.high"][1] == "inf"
    assert facts["version"] and facts["env_name"] == "CartPole-v1"
    assert facts["inputs"] == [{"name": "obs", "dtype": "float32", "shape": [4]}]
    assert facts["outputs"] == [{"name": "action", "dtype": "int64", "shape": []}]


def test_each_leaf_is_an_input_or_an_output_that_the_file_names(trainer):
    ppo = trainer(lambda: Chance(MIXED, HYBRID), **memory("lstm", shared_critic=True))
    facts = exporter.graph_metadata(ppo.policy, None)
    names = {key: [one["name"] for one in facts[key]] for key in ("inputs", "outputs")}
    assert names == {
        "inputs": ["obs.a.0", "obs.a.1", "obs.b", "obs.c", "state"],
        "outputs": ["action.aim", "action.go", "action.keys.0", "action.keys.1", "next_state"]}
    assert facts["inputs"][-1] == {"name": "state", "dtype": "float32", "shape": [10]}
    assert facts["obs_space"]["keys"] == ["a", "b", "c"]
    assert facts["obs_space"]["parts"][0]["parts"][0] == {"n": 3, "start": 2}


@pytest.mark.parametrize("obs_space, names", [
    (VECTOR, ["action_mask", "obs"]), (Dict(go=VECTOR), ["action_mask", "obs.go"])], ids=str)
def test_a_mask_is_an_input_of_its_own_beside_the_observation(trainer, obs_space, names):
    policy = trainer(lambda: Fenced("info", CHOICE, obs_space)).policy
    assert sorted(port.name for port in exporter.inputs_of(policy)) == names
    assert "action_mask" in exporter.graph_metadata(policy, None)["obs_space"]["keys"]


class Spread(Net):
    """Net, with a distribution for logits."""

    def forward(self, obs):
        """(distribution over two actions, value)."""
        logits, val = super().forward(obs)
        return Categorical(logits=logits), val


class Sum(Net):
    """Net on the sum of the observations since the episode began; `way`: what it does with it."""

    state_size, way = 4, staticmethod(lambda obs, state: obs + state)

    def forward(self, obs, state):
        """(two logits, value, sum)."""
        after = self.way(obs, state)
        return *super().forward(after), after


@pytest.mark.parametrize("net", [Spread, Sum])
def test_networks_of_ones_own_leave_with_distributions_and_memory(trainer, tmp_path, net):
    export(trainer("CartPole-v1", model=net).learn(32).policy, tmp_path / "a.pt", env="CartPole-v1")
    assert (tmp_path / "a.pt").exists()


def test_a_graph_keeps_whole_numbers_within_the_largest_bounds():
    space = Box(np.int64([-2**53, 2**51 + 1]), np.int64([2**53, 2**52 - 1]), dtype=np.int64)
    act = np.float32([[1e30, 1e30], [-1e30, -1e30]])
    found = env_action_function(ActionMapping(space))(torch.from_numpy(act))[0].numpy()
    np.testing.assert_array_equal(found, ActionMapping(space).to_env()(act))
    assert all(map(space.contains, found))


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
    (lambda obs: obs.reshape(len(obs), -1), "on a batch of 300, failed: (.|\\n)*mat1 and mat2"),
    (lambda obs: obs if obs[0, 0] > 0 else -obs, "Not equal to tolerance"),
    (lambda obs: torch.from_numpy(obs.numpy()), "Not equal to tolerance|not equal|cannot be made")])
def test_a_graph_that_does_not_do_the_same_is_not_written(trainer, tmp_path, inner, why):
    net = type("Inner", (Net,), {"inner": staticmethod(inner)})
    policy = trainer("CartPole-v1", model=net, norm_obs=False).policy
    with pytest.raises(ExportError, match=why):
        export(policy, tmp_path / "a.pt")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("found, why", [
    ([[1.0], [2.0]], ""), ([[1.0], [2.00001]], ""), ([[1.0], [2.0001]], "1 / 2"),
    ([[np.nan], [2.0]], "nan"), ([1.0, 2.0], r"not equal")])
def test_continuous_actions_may_differ_by_rounding_alone(found, why):
    wanted = np.array([[1.0], [2.0]], np.float32)
    with pytest.raises(AssertionError, match=why) if why else contextlib.nullcontext():
        exporter.assert_alike(np.array(found, np.float32), wanted, 2e-5)


def test_actions_near_the_middle_of_their_bounds_may_round_as_the_bounds_do(trainer):
    policy = trainer(lambda: Chance(act_space=Box(-2, 2, (2,))), distribution="beta").policy
    steps, middle = exporter.sample_episodes(policy, 9), [np.zeros((9, 2), np.float32)]
    allowed = exporter.tolerances(policy, middle)

    def off(by):
        wanted = exporter.expected_outputs(policy, steps)[0]
        return lambda inputs: [wanted[:len(inputs[0])] + np.float32(by)]
    exporter.compare_outputs(policy, off(1e-5), steps, allowed, "onnx")
    with pytest.raises(ExportError, match="Not equal to tolerance"):
        exporter.compare_outputs(policy, off(1e-4), steps, allowed, "onnx")
    free = trainer(lambda: Chance(act_space=Box(-2, 2, (2,)))).policy
    assert allowed == [pytest.approx(2e-5)] and exporter.tolerances(free, middle) == [0.0]


def test_discrete_actions_may_not_differ_at_all(trainer):
    with pytest.raises(AssertionError):
        exporter.assert_alike(np.array([0, 2]), np.array([0, 1]), 0)
    policy = trainer(lambda: Chance(act_space=Dict(a=Discrete(70_000), b=MultiBinary(2)))).policy
    assert exporter.tolerances(policy, [np.array([69_999]), np.ones((1, 2), np.int8)]) == [0, 0]


@pytest.mark.parametrize("largest, gap, why", [
    (255.0, 0, ""), (255.0, 1, "1 / 1"), (65535.0, 1, ""), (65535.0, 2, "1 / 1"),
    (0.0, 1, "1 / 1")])
def test_whole_numbers_may_differ_where_their_range_makes_rounding_common(largest, gap, why):
    wanted, mapped = np.array([[100]]), SimpleNamespace(bounds_map="scale")
    space = Box(0, int(largest), (1,), np.int64)
    policy = SimpleNamespace(act_space=space, actions=mapped, memory=0)
    allowed, = exporter.tolerances(policy, [wanted])
    with pytest.raises(AssertionError, match=why) if why else contextlib.nullcontext():
        exporter.assert_alike(wanted + gap, wanted, allowed)


@pytest.mark.parametrize("settings", [dict(action_scaling=True), dict(distribution="squashed")],
                         ids=str)
@pytest.mark.parametrize("high, dtype", [(65535, "u2"), (10**6, "i4"), (2**40, "i8")])
def test_whole_numbers_of_a_wide_range_leave(trainer, tmp_path, high, dtype, settings):
    space = Box(0, high, (2,), np.dtype(dtype))
    policy = trainer(lambda: Chance(VECTOR, space), **settings).policy
    run, steps = written(policy, tmp_path / "a.pt", count=50)
    found, = run(exporter.graph_inputs(policy, steps))
    wanted, = exporter.expected_outputs(policy, steps)
    assert len(np.unique(wanted)) > 10
    np.testing.assert_allclose(found.astype(float), wanted.astype(float), rtol=0,
                               atol=max(1, 1e-5 * high))


@pytest.mark.parametrize("given", ["model.safetensors", None, 3])
def test_what_is_no_policy_is_refused_with_the_call_that_loads_one(given):
    with pytest.raises(ConfigError, match="export needs a policy, but was given") as refused:
        export(given, "a.pt")
    assert "fastppo.load(" in str(refused.value)


@pytest.mark.parametrize("path, to, why", [
    ("a.bin", None, "no format '.bin'"), ("a.onnx", "tflite", "no format 'tflite'"),
    ("a.onnx", None, "needs packages that are not installed: nobody_has_this")])
def test_a_format_that_cannot_be_is_refused_before_any_work(monkeypatch, path, to, why):
    monkeypatch.setattr(installation, "ONNX_PACKAGES", ("json", "nobody_has_this"))
    with pytest.raises(ConfigError, match=why):
        export(None, path, to)


@pytest.mark.parametrize("way", [
    lambda obs, state: obs + state if state.any() else 1 - obs,
    lambda obs, state: obs + (state if state.abs().sum() > 9 else state * 0.5)])
def test_a_graph_that_remembers_otherwise_is_not_written(trainer, tmp_path, way):
    net = type("Forgets", (Sum,), {"way": staticmethod(way)})
    policy = trainer("CartPole-v1", model=net, norm_obs=False).policy
    with pytest.raises(ExportError, match="Not equal to tolerance"):
        export(policy, tmp_path / "a.pt", env="CartPole-v1")
    assert list(tmp_path.iterdir()) == []


def test_an_environment_to_check_in_must_have_the_policys_spaces_and_work(trainer, tmp_path):
    class Fails(Chance):
        def step(self, action):
            raise RuntimeError("not today")
    policy = trainer(Chance).policy
    with pytest.raises(InputError, match="give the environment it was trained on"):
        export(policy, tmp_path / "a.pt", env="CartPole-v1")
    with pytest.raises(EnvError, match=r"an environment failed: .*not today"):
        export(policy, tmp_path / "a.pt", env=Fails)


@pytest.mark.parametrize("make", [
    Chance, partial(Chance, Discrete(4)), partial(Chance, Dict(a=Discrete(3), b=Box(-1, 1, (2,)))),
    partial(Fenced, "info")], ids=["box", "discrete", "dict", "masked"])
def test_as_many_frames_are_stacked_as_the_policy_sees(trainer, tmp_path, make):
    policy = trainer(make, frame_stack=3).policy
    export(policy, tmp_path / "a.pt", env=make)
    assert (tmp_path / "a.pt").exists()
    with pytest.raises(InputError, match="give the environment it was trained on"):
        export(policy, tmp_path / "b.pt", env="CartPole-v1")


# the command

@pytest.fixture
def said(tmp_path, monkeypatch, command):
    """A function from the words after export to (exit code, stdout, stderr), in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    return partial(command, "export")


def test_the_command_exports_the_policy_of_a_runs_folder(trainer, said):
    trainer("CartPole-v1").save("run/model.safetensors")
    assert said("run", "--to=torchscript") == (
        0, "exported  run/model.pt   acts as the policy does on 300 steps of CartPole-v1\n"
        "inputs    obs float32 [batch 4]\noutputs   action int64 [batch]\n", "")
    assert acting(Path("run/model.pt"))([np.zeros((2, 4), np.float32)])[0].shape == (2,)
    code, out, err = said("run/model.safetensors", "--output=b.pt", "--env=envs_for_tests:Chance")
    assert code == 2 and "give the environment that it was trained on" in err


def test_the_command_stacks_as_training_did_and_is_told_the_class_of_an_own_network(trainer, said):
    Path("mine.py").write_text("from test_export import Net\n")
    trainer("CartPole-v1", model=Net).save("own.safetensors")
    assert "holds a model of your own" in said("own.safetensors", "--to=torchscript")[2]
    code, out, _ = said("own.safetensors", "--to=torchscript", "--model=mine:Net")
    assert code == 0 and "300 steps of CartPole-v1" in out
    trainer("CartPole-v1", frame_stack=3).save("stacked.safetensors")
    code, out, _ = said("stacked.safetensors", "--to=torchscript")
    assert code == 0 and "300 steps of CartPole-v1" in out


def test_the_command_names_every_input_in_the_order_in_which_a_graph_takes_them(trainer, said):
    space = gym.spaces.Dict(speed=Discrete(3), camera=Box(0, 1, (3, 4)))
    ppo = trainer(lambda: Chance(space), rnn="gru", rnn_size=8)
    ppo.save("model.safetensors")
    code, out, _ = said("model.safetensors", "--to=torchscript")
    _, inputs, outputs = out.splitlines()
    assert code == 0 and outputs == "outputs   action int64 [batch], next_state float32 [batch 16]"
    assert inputs == ("inputs    obs.speed int64 [batch], obs.camera float32 [batch 3 4],"
                      " state float32 [batch 16]")
    graph = torch.jit.load("model.pt")
    given = [torch.zeros(2, dtype=torch.int64), torch.zeros(2, 3, 4), torch.zeros(2, 16)]
    assert [list(x.shape) for x in graph(*given)] == [[2], [2, 16]]


@pytest.mark.parametrize("make", [Scripted, MaskedTurns])
def test_the_policy_of_a_game_is_checked_on_samples(make, trainer, said):
    ppo = trainer(make)
    with pytest.raises(InputError, match=f"{make.__name__} is a game of several agents"):
        written(ppo.policy, "a.pt", make_factory(make))
    ppo.save("model.safetensors")
    code, out, err = said("model.safetensors", "--output=a.pt")
    assert (code, err) == (0, "") and "300 samples of its observation space" in out


def forge(path: str, **settings):
    """Changes settings in the file of a policy, with a checksum that fits."""
    tensors, texts = read_tensor_file(Path(path), POLICY_FORMAT)
    texts["config"] |= settings
    write_tensor_file(Path(path), POLICY_FORMAT, tensors, texts)


def test_a_file_never_names_code_to_import(trainer, said, monkeypatch):
    Path("lib").mkdir()
    Path("lib/trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend("lib")
    trainer(Chance, env_name="Chance").save("model.safetensors")
    forge("model.safetensors", env_name="trap:Env-v0")
    code, out, err = said("model.safetensors", "--output=a.pt")
    assert (code, err) == (0, "") and "300 samples of its observation space" in out
    assert "trap" not in sys.modules


@pytest.mark.parametrize("argv, why", [
    ([], "export takes MODEL beside its options"), (["--to=onnx"], "export takes MODEL"),
    (["a.safetensors", "--to=torchscript"], "there is no file a.safetensors"),
    (["a", "--too=onnx"], "did you mean --to?"), (["a", "--to=tflite"], "one of onnx, torchscript"),
    (["a.pt", "--output=a.pt"], "is the policy itself"), (["a", "--output=b.x"], "fix: --to=onnx"),
    (["a", "--output=."], ". is a folder"),
    (["a", "--output=/", "--to=torchscript"], "/ is a folder")])
def test_what_the_command_cannot_do_is_one_error(said, argv, why):
    for name in ("a", "a.pt"):
        Path(name).write_bytes(b"\x02" + bytes(7) + b"{}")  # as the file of a policy begins
    code, out, err = said(*argv)
    assert code in (1, 2) and out == "" and why in err and "Traceback" not in err


def test_help_says_every_option(said):
    code, out, _ = said("--help")
    assert code == 0 and all(f"--{name} " in out for name in ("to", "output", "env_name"))


def test_a_text_in_a_file_is_no_argument_of_an_environment(trainer, said):
    trainer("CartPole-v1").save("model.safetensors")
    forge("model.safetensors", env_kwargs={"render_mode": "rgb_array"})
    code, out, _ = said("model.safetensors", "--to=torchscript")
    assert code == 0 and "300 samples" in out


def test_an_environment_that_cannot_be_made_here_is_no_hindrance(trainer, said, monkeypatch):
    def gone(*args, **kwargs):
        raise gym.error.DependencyNotInstalled("no physics here")
    trainer("CartPole-v1").save("model.safetensors")
    monkeypatch.setattr(gym, "make", gone)
    code, out, _ = said("model.safetensors", "--to=torchscript")
    assert code == 0 and "300 samples" in out
