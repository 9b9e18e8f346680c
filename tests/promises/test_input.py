"""What is handed in from outside: every misfit is an Error that says what, why and what to do."""

import importlib
import inspect
import json
import re
import sys
import warnings
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from envs_for_tests import Chance
from envs_for_workers import Shared
from gymnasium.spaces import Box, Dict, Discrete, Graph, OneOf, Sequence, Text, Tuple
from torch.distributions import Categorical

from fastppo import PPO, Config, config, load, make_vec
from fastppo.cli import command_line
from fastppo.envs import families
from fastppo.envs.make import EnvFactory, make_envs, make_factory
from fastppo.errors import (
    ConfigError,
    EnvError,
    Error,
    InputError,
    ModelError,
    PathError,
    SpaceError,
    fix_text,
)
from fastppo.settings.presets import preset_of
from fastppo.settings.values import ANYTHING
from fastppo.spaces.leaves import action_storage, observation_storage
from fastppo.stepping import environments as checks

BYTES = Box(0, 255, (3,), np.uint8)
WIDE = Box(-9.0, 9.0, (2, 3), np.float64)


# Observations

@pytest.mark.parametrize("act_space", [Discrete(3, start=5), Box(-1, 1, (2, 2), np.float64),
                                       Box(-1, 1, (), np.float32)], ids=str)
@pytest.mark.parametrize("deterministic", [True, False])
def test_no_observations_get_no_actions_and_no_values(trainer, act_space, deterministic):
    policy, none = trainer(lambda: Chance(WIDE, act_space)).policy, np.zeros((0, 2, 3))
    actions = policy.predict(none, deterministic)
    assert actions.shape == (0, *act_space.shape) and actions.dtype == act_space.dtype
    assert policy.value(none).shape == (0,)


@pytest.mark.parametrize("obs", ["left", None, [[1.0], [2.0, 3.0]], {"a": 1}, np.zeros((2, 3), "O"),
                                 np.zeros((2, 3), complex), np.zeros(6), [], np.zeros((0, 3)),
                                 np.zeros((1, 1, 2, 3))], ids=repr)
def test_an_observation_that_is_no_array_of_the_space_is_refused(trainer, obs):
    policy = trainer(lambda: Chance(WIDE)).policy
    for ask in (policy.predict, policy.value):
        with pytest.raises(InputError, match=r"\n  fix: give an element of this space"):
            ask(obs)


@pytest.mark.parametrize("answer", [
    (np.zeros((2, 3)), {}), (np.zeros((2, 3)), 0.0, False, False, {})], ids=["reset", "step"])
def test_the_whole_answer_of_an_environment_is_refused(trainer, answer):
    fix = r"give an element of this space, which env.reset\(\) and env.step\(\) return first"
    with pytest.raises(InputError, match=f"does not fit the space Box(?s:.*)\n  fix: {fix}"):
        trainer(lambda: Chance(WIDE)).policy.predict(answer)


@pytest.mark.parametrize(("bend", "said"), [
    (lambda obs: {"a": obs["a"]}, "has no key 'b'"),
    (lambda obs: {"A": obs["a"], "b": obs["b"]}, "KeyError: 'a'"),
    (lambda obs: obs | {"b": {}}, "has no key 'd'"),
    (lambda obs: obs | {"b": 3}, "'int' object is not subscriptable"),
    (lambda obs: obs["a"], "IndexError: .*"), (lambda obs: [obs, obs], "TypeError: list ind.*")])
def test_a_dict_with_other_keys_than_its_space_is_refused(trainer, bend, said):
    space = Dict(a=Box(-1, 1, (2,)), b=Dict(d=Discrete(3)))
    policy = trainer(lambda: Chance(space)).policy
    for ask in (policy.predict, policy.value):
        ask(space.sample())
        with pytest.raises(InputError, match=f"does not fit the space Dict.*{said}\n  fix: give"):
            ask(bend(space.sample()))


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e39])
def test_a_number_that_is_not_finite_gets_no_action(trainer, bad):
    policy, obs = trainer(lambda: Chance(WIDE)).policy, np.zeros((4, 2, 3))
    obs[2, 1, 1] = bad
    with pytest.raises(InputError, match=r"observation\[4\] is (nan|inf).*row 2\n  fix: "):
        policy.predict(obs)


def test_bytes_are_not_made_of_floats_or_of_wider_integers(trainer):
    policy = trainer(lambda: Chance(BYTES)).policy
    for obs in (np.full(3, 0.7), np.full(3, 300), [1, 2, 3]):
        with pytest.raises(InputError, match="which uint8 does not keep\n  fix: "):
            policy.predict(obs)
    assert policy.predict(np.full(3, 200, np.uint8)) in (0, 1, 2)


# The verbs

@pytest.mark.parametrize("total", ["a", -5, 1.5, True, None.__class__, float("nan"), float("inf")])
def test_learn_takes_a_whole_number_of_steps(trainer, total):
    ppo = trainer(Chance)
    with pytest.raises(ConfigError, match=r"whole number.*\n  fix: ppo.learn\(1_000_000\)"):
        ppo.learn(total)
    assert ppo.learn(1e1).step == ppo.learn(np.int64(32)).step == 32


@pytest.mark.parametrize("episodes", ["a", 1.5, 0])
def test_evaluate_takes_a_whole_number_of_episodes(trainer, episodes):
    with pytest.raises(ConfigError, match="episodes is .*whole number"):
        trainer(Chance).evaluate(episodes)


def test_update_takes_a_rollout_of_the_same_spaces(trainer):
    ppo, other = trainer(Chance), trainer(lambda: Chance(WIDE, Box(-1, 1, (2,), np.float32)))
    rollout = ppo.collect()
    for wrong, said in ((None, "given NoneType"), (tuple(rollout), "given tuple"),
                        (other.collect(), "the obs of this rollout is"),
                        (rollout._replace(raw=None), "the obs of this rollout is"),
                        (rollout._replace(adv=None), "the adv of this rollout is NoneType"),
                        (rollout._replace(rew=rollout.rew.double()), "the rew .*float64")):
        with pytest.raises(InputError, match=f"{said}.*\n  fix: ppo.update"):
            ppo.update(wrong)
    with pytest.raises(InputError, match="before this trainer has collected"):
        trainer(Chance).update(rollout)
    ppo.update(type(rollout)(*(x.clone() for x in rollout)))


def net(answer):
    """A model whose forward returns answer(obs)."""
    class Net(torch.nn.Module):
        def __init__(self, *spaces):
            super().__init__()
            self.layer = torch.nn.Linear(1, 4)

        def forward(self, obs):
            return answer(self.layer(obs))
    return Net


@pytest.mark.parametrize(("answer", "said"), [
    (lambda out: 5, "returned int"), (lambda out: None, "returned NoneType"),
    (lambda out: out, r"returned float32 \[2, 4\]"),
    (lambda out: (out[:, :3], out), r"returned \(float32 \[2, 3\], float32 \[2, 4\]\)"),
    (lambda out: (out[:, :3], 0.0), r"returned \(float32 \[2, 3\], float\)"),
    (lambda out: (out[:, :3], out[:, 3].bfloat16()), r"float32 \[2, 3\], bfloat16 \[2\]"),
    (lambda out: (out[:, :3].double(), out[:, 3]), r"float64 \[2, 3\], float32 \[2\]"),
    (lambda out: (out[:, :3].long(), out[:, 3]), r"returned \(int64 \[2, 3\], float32 \[2\]\)"),
    (lambda out: 1 / 0, "failed: ZeroDivisionError"),
    (lambda out: out @ out, "failed: RuntimeError")])
def test_a_model_whose_forward_is_wrong_is_told_what_to_return(trainer, answer, said):
    with pytest.raises(ModelError, match=rf"{said}[\s\S]*\n  fix: return \(action"):
        trainer(Chance, model=net(answer))


def test_what_a_model_raises_has_its_traceback(trainer):
    with pytest.raises(ModelError, match=r'failed: ZeroDiv[\s\S]*test_input.py", line \d+, in <la'):
        trainer(Chance, model=net(lambda out: 1 / 0))
    with pytest.raises(ModelError, match=r"failed: TypeError: .*positional argument"):
        trainer(Chance, model=type("Two", (net(None),), {"forward": lambda self: None}))


def test_a_model_that_cannot_learn_is_refused_or_torchs_error(trainer):
    class Frozen(net(lambda out: (out[:, :3], out[:, 3]))):
        def __init__(self, *spaces):
            super().__init__()
            self.requires_grad_(False)

    with pytest.raises(ModelError, match="has no parameters to train"):
        trainer(Chance, model=Frozen)
    for wrong in (lambda out: (out[:, :3].detach(), out[:, 3].detach()),
                  lambda out: (Categorical(logits=out[:, :3].detach()), out[:, 3].detach())):
        ppo = trainer(Chance, model=net(wrong))
        with pytest.raises(RuntimeError, match="does not require grad"):
            ppo.update(ppo.collect())
    ppo = trainer(Chance, model=net(lambda out: (Categorical(logits=out[:, :3]),
                                                 out[:, 3].detach())))
    ppo.update(ppo.collect())


@pytest.mark.parametrize("setting", [dict(hidden_sizes=(8,)), dict(activation="relu"),
                                     dict(rnn_size=8), dict(layer_norm=True)], ids=str)
def test_what_is_for_built_in_networks_is_refused_with_a_model_of_ones_own(trainer, setting):
    with pytest.raises(ConfigError, match="for built-in networks.*\n  fix: leave"):
        trainer(Chance, model=net(lambda out: (out[:, :3], out[:, 3])), **setting)


def test_the_size_of_a_memory_that_is_not_there_is_refused(trainer):
    with pytest.raises(ConfigError, match="rnn_size is 8, but does nothing without"):
        trainer(Chance, rnn_size=8)


class NoSuper(torch.nn.Module):
    """Its constructor does not call that of Module."""

    def __init__(self, obs_space, act_space):
        pass


class LateSuper(torch.nn.Module):
    """Its constructor has a layer too soon."""

    def __init__(self, obs_space, act_space):
        self.layer = torch.nn.Linear(2, 2)
        super().__init__()


@pytest.mark.parametrize(("model", "said"), [
    (lambda: None, "takes 0 positional"), (lambda *spaces: 1 / 0, "ZeroDivisionError"),
    (NoSuper, "no attribute '_parameters'"), (LateSuper, r"before Module.__init__\(\)"),
    (lambda *spaces: None, "returned NoneType")])
def test_a_model_that_cannot_be_made_is_refused(trainer, model, said):
    with pytest.raises(ModelError, match=rf"failed: .*{said}[\s\S]*fix: give a torch.nn.Module"):
        trainer(Chance, model=model)


INSTANCE = torch.nn.Linear(2, 3)


@pytest.mark.parametrize("model", ["test_input:INSTANCE", "test_input:", INSTANCE], ids=str)
def test_a_model_that_is_no_class_is_refused(trainer, model):
    with pytest.raises(ModelError, match="(?s)is not a class.*fix: give .*Module subclass"):
        trainer(Chance, model=model)


@pytest.mark.parametrize(("space", "workers"), [(Discrete(3), 0), (Box(-1, 1, (3,)), 0),
                                                (Box(-1, 1, (3,)), 2)], ids=str)
def test_a_network_that_gives_nan_is_named_before_an_environment_gets_the_action(
        trainer, space, workers):
    given = net(lambda out: (out[:, :3], out[:, 3]))
    ppo = trainer(lambda: Chance(Box(-1, 1, (1,)), space), model=given, num_workers=workers)
    ppo.policy.net.layer.weight.data.fill_(torch.nan)
    with pytest.raises(Error, match="network's action .* environment 0 .*step 0.*\n  fix") as told:
        ppo.collect()
    assert not isinstance(told.value, EnvError)


@pytest.mark.parametrize("space", [Discrete(3), Box(-1, 1, (3,))], ids=str)
def test_so_it_is_where_the_compiled_policy_acts(trainer, space):
    ppo = trainer(lambda: Chance(Box(-1, 1, (1,)), space), acting="local")
    ppo.arena["params"].fill(np.inf)
    with pytest.raises(Error, match="network's action parameters for environment 0"):
        ppo.collect()


@pytest.mark.parametrize("callbacks", [3, [3], "end", [print, None]], ids=repr)
def test_a_callback_is_something_that_can_be_called(trainer, callbacks):
    ppo = trainer(Chance)
    with pytest.raises(ConfigError, match=r"callback .*is no function.*\n  fix: ppo.learn\(callb"):
        ppo.learn(64, callbacks=callbacks)
    assert (ppo.step, ppo.total) == (0, ppo.config.total_steps)


def test_one_callback_alone_and_those_of_a_generator_are_called_after_every_iteration(trainer):
    seen = []
    trainer(Chance).learn(64, callbacks=lambda ppo, stats: seen.append(ppo.step))
    trainer(Chance).learn(64, callbacks=(one for one in [lambda ppo, stats: seen.append(ppo.step)]))
    assert seen == [32, 64, 32, 64]


# Settings

@pytest.mark.parametrize(("setting", "value"), [
    ("env_name", 3), ("device", None), ("device", 0), ("run_dir", 3), ("wandb_project", 3),
    ("env_kwargs", 3), ("env_kwargs", [("a", 1)]), ("env_kwargs", {1: 2})])
def test_a_setting_of_the_wrong_type_is_named_and_not_the_environment(setting, value):
    env = () if setting == "env_name" else (Chance,)
    keyword = "env" if setting == "env_name" else setting
    with pytest.raises(ConfigError, match=rf"^{setting} is .* must be .*\n  fix: {keyword}="):
        PPO(*env, **{setting: value})


def test_a_device_of_torch_and_a_path_are_what_their_texts_are(trainer, tmp_path):
    ppo = trainer(Chance, device=torch.device("cpu"), run_dir=tmp_path / "run")
    assert (ppo.config.device, ppo.config.acting) == ("cpu", trainer(Chance).config.acting)
    assert (tmp_path / "run/config.json").exists()


def test_numbers_of_numpy_and_lists_are_settings_as_pythons_own_are():
    ours = Config(num_envs=16, lr=0.5, norm_obs=True, hidden_sizes=(8, 4), gamma=0.5, seed=3)
    theirs = Config(num_envs=np.int64(16), lr=np.float32(0.5), norm_obs=np.True_,
                    hidden_sizes=[np.int32(8), 4], gamma=np.array(0.5), seed=np.uint8(3))
    assert theirs == ours
    assert json.dumps(vars(theirs)) == json.dumps(vars(ours))
    assert list(map(type, vars(theirs).values())) == list(map(type, vars(ours).values()))
    assert ours.replace(lr=np.float64(0.5)) == ours
    with pytest.raises(ConfigError, match=r"num_envs is 0"):
        Config(num_envs=np.int64(0))
    with pytest.raises(ConfigError, match=r"hidden_sizes is \(0,\)"):
        Config(hidden_sizes=[0])


def test_the_fix_of_every_rule_works_on_the_command_line():
    fixes = {}
    for name, rule in config.RULES.items():
        if rule == ANYTHING:
            continue
        with pytest.raises(ConfigError) as caught:
            Config(**{name: [object]})
        fixes[name] = fix_text(caught.value.fix, shell=True)
        assert fixes[name].startswith(f"--{name}=")
        assert not set(fixes[name]) & set(" ()'\"N"), fixes[name]  # a shell takes it as it is
    found = command_line.read(list(fixes.values())).config
    beneath = {"progress": "lines"} | preset_of(config.default_of("env_name"))
    for name in fixes:
        assert getattr(found, name) == beneath.get(name, config.default_of(name))


# Spaces and packages

class Odd(gym.Env):
    """Spaces of any kind; only actions of its own are taken."""

    def __init__(self, obs_space=BYTES, act_space=None):
        self.observation_space = obs_space
        self.action_space = Discrete(2) if act_space is None else act_space

    def reset(self, *, seed=None, options=None):
        """One of the space."""
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        """One more."""
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), 1.0, False, False, {}


class Late(gym.Env):
    """Knows its spaces when it is reset."""

    def reset(self, *, seed=None, options=None):
        self.observation_space, self.action_space = BYTES, Discrete(2)


class Without(Odd):
    """Has no actions."""

    def __init__(self):
        super().__init__()
        self.action_space = None


@pytest.mark.parametrize("make", [PPO, make_vec], ids=lambda make: make.__name__)
@pytest.mark.parametrize(("env", "missing"), [
    (gym.Env, ["observation_space", "action_space"]), (Late, ["observation_space", "action_space"]),
    (Without, ["action_space"]), (lambda: gym.Wrapper(Without()), ["action_space"])])
def test_an_environment_without_spaces_is_told_which_lines_it_lacks(make, env, missing):
    with pytest.raises(SpaceError, match=f"has no {' and no '.join(missing)} of ") as caught:
        make(env, num_workers=2)
    assert re.findall(r"self\.(\w+) = gymnasium\.spaces", caught.value.fix) == missing


def test_a_vector_environment_without_spaces_is_told_so(trainer):
    class Vector(gym.vector.VectorEnv):
        num_envs = 2

    with pytest.raises(SpaceError, match="no single_observation_space and no single_action_space"):
        trainer(Vector(), num_envs=2)


def test_a_callable_that_gives_no_environment_is_a_setting_that_is_wrong(trainer):
    with pytest.raises(
            ConfigError, match="^os:getcwd returned str, not a gymnasium.Env\n  f"):
        trainer("os:getcwd")
    with pytest.raises(ConfigError, match="math:sin cannot be made .*takes exactly one.*\n  fix"):
        trainer("math:sin")


def test_an_id_whose_module_is_missing_names_it(trainer, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    monkeypatch.setitem(gym.registry, "Odd-v0", gym.envs.registration.EnvSpec(
        "Odd-v0", entry_point=lambda: importlib.import_module("jax")))
    with pytest.raises(ConfigError, match="Odd-v0 cannot be made: import of jax halted"):
        trainer("Odd-v0")


@pytest.mark.parametrize("seed", [1.5, "x", "xy", [1.5, 2], [1], [1, 2, 3], -1, [-1, 0], {},
                                  [[1], 2]], ids=repr)
def test_a_seed_that_fits_no_environments_is_refused(seed):
    with make_vec(Odd, 2, num_workers=0) as env:
        with pytest.raises(ConfigError, match=r"seed .* does not fit 2 env.*\n  fix: one whole"):
            env.reset(seed=seed)
        for fits in (3, np.array(3), [3, None], np.array([1, 2]), range(2), None):
            env.reset(seed=fits)


def test_no_environment_is_none():
    with pytest.raises(ConfigError, match="make_vec was given None, not an id"):
        make_vec(None)


@pytest.mark.parametrize(("spaces", "kind"), [
    ((Text(3), Discrete(2)), "observations"), ((WIDE, Text(3)), "actions"),
    ((Text(3), Text(3)), "observations"), ((Dict(a=WIDE, b=Text(3)), Discrete(2)), "observations"),
    ((WIDE, Tuple([Discrete(2), Text(3)])), "actions")])
def test_the_fix_of_a_space_names_the_wrappers_of_gymnasium(spaces, kind):
    with pytest.raises(SpaceError, match=f"{kind} of the space Text") as caught:
        PPO(partial(Chance, *spaces), num_workers=0)
    for name in ("TransformObservation", "TransformAction"):
        assert name in caught.value.fix and hasattr(gym.wrappers, name)


@pytest.mark.parametrize(("store", "word"), [
    (observation_storage, "obs"), (action_storage, "action")])
def test_a_space_that_is_not_served_is_an_error_wherever_it_comes_up(store, word):
    with pytest.raises(SpaceError, match=rf"{word}.*Text.*\n  fix: wrap the env"):
        store(Text(3))


@pytest.mark.parametrize("space", [Graph(WIDE, None), Sequence(WIDE), OneOf([WIDE, WIDE]),
                                   Dict(word=Text(3)), Tuple([WIDE, Dict(word=Text(3))])], ids=str)
@pytest.mark.parametrize("what", ["obs", "act"])
def test_a_space_without_arrays_of_fixed_shape_is_refused_by_its_name(trainer, space, what):
    name = str([part for part in (space, Text(3)) if str(part) in str(space)][-1]).split("(")[0]
    with pytest.raises(SpaceError, match=rf"{what}.* the space {name}.*\n  fix: "):
        trainer(lambda: Odd(**{f"{what}_space": space}))


@pytest.mark.parametrize("dtype", [np.float32, np.int64])
def test_actions_without_a_number_are_refused_as_empty(trainer, dtype):
    with pytest.raises(SpaceError, match=r"\(0,\).* are empty.*\n  fix: "):
        trainer(lambda: Odd(WIDE, Box(0, 1, (0,), dtype)))


def test_an_id_whose_package_is_missing_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    monkeypatch.setattr(gym, "registry", {})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    families.register.cache_clear()  # the ids are registered already
    for name in ("ALE/Pong-v5", "Pong-v5", "PongNoFrameskip-v4", "PongDeterministic-v4",
                 "Pong-ram-v0", "ale_py:ALE/Pong-v5"):
        with pytest.raises(ConfigError, match=r'\n  fix: pip install "fastppo\[atari\]"'):
            make_factory(name)


@pytest.mark.parametrize("name", ["levels_of_mine", "levels_of_mine.hard", "a b", "a-b.c"])
def test_a_name_without_a_colon_is_an_id_and_imports_nothing(tmp_path, monkeypatch, name):
    (tmp_path / "levels_of_mine.py").write_text('raise RuntimeError("imported")')
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=f"no environment '{name}': .*\n  fix: .*give its module"):
        make_factory(name)
    assert "levels_of_mine" not in sys.modules


CALLS = [
    (lambda: PPO("CartPole-v1", progress=True), 'progress="lines"'),
]


@pytest.mark.parametrize("call, fix", CALLS, ids=[fix for _, fix in CALLS])
def test_a_fix_in_python_is_the_argument_of_the_call_that_was_made(call, fix):
    with pytest.raises(ConfigError) as caught:
        call()
    assert str(caught.value).endswith(f"\n  fix: {fix}")


@pytest.mark.parametrize("name", [":Good", ".mods:Good", "..:Good", "mods.py:Good", ":CartPole-v1",
                                  ".mods:Good-v1"])
def test_a_name_without_a_module_before_its_colon_is_refused(trainer, name):
    for setting in ("model", "env_name", "eval_env")[name.endswith("-v1"):]:
        with pytest.raises(ConfigError, match=f"{setting} is '{name}'"):
            trainer(**{"env": None, "env_name": "CartPole-v1", setting: name})


def test_an_environment_whose_dependency_is_missing_names_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    def missing():
        raise gym.error.DependencyNotInstalled("no engine")
    spec = gym.envs.registration.EnvSpec("A-v0", entry_point=missing)
    for entry, said in (("gymnasium.envs.mujoco.a:B", r'pip install "fastppo\[mujoco\]"'),
                        ("gymnasium.envs.box2d:B", "pip install Box2D"), ("a:B", "no engine")):
        make = EnvFactory(spec, "A-v0", None, {})
        spec.entry_point = entry
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ConfigError, match=said):
            patch.setattr(gym, "make", lambda *_, **__: missing())
            make_envs([make])


# Answers of environments

class Says(Odd):
    """Gives any answer to reset or to step."""

    def __init__(self, reset=None, step=None, **spaces):
        super().__init__(**spaces)
        self.says = reset, step

    def reset(self, *, seed=None, options=None):
        """What it was told to, or the usual."""
        answer = super().reset(seed=seed)
        return self.says[0](*answer) if self.says[0] else answer

    def step(self, action):
        """What it was told to, or the usual."""
        answer = super().step(action)
        return self.says[1](*answer) if self.says[1] else answer


OLD = [{"step": lambda obs, rew, term, trunc, info: (obs, rew, term, info)},
       {"step": lambda *answer: answer[:2]}, {"step": lambda *answer: None},
       {"reset": lambda obs, info: obs}, {"reset": lambda obs, info: None}]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("says", OLD)
def test_answers_of_the_old_api_are_told_todays(trainer, says, wrapped):
    name = next(iter(says))
    ppo = trainer(lambda: Says(**says), max_episode_steps=9 if wrapped else None)
    for ask in (ppo.collect, lambda: ppo.evaluate(1)):
        with pytest.raises(EnvError, match=rf"unpack(.|\n)*{name}\(\) must take .*return "):
            ask()


def test_an_unpacking_error_of_the_environments_own_is_not_taken_for_the_old_api(trainer):
    def broken(*answer):
        first, second = answer
    with pytest.raises(EnvError, match="to unpack") as caught:
        trainer(lambda: Says(step=broken)).collect()
    assert "must take" not in str(caught.value)


class Pair(gym.Env):
    """Observations of two numbers, which alone look like a pair of observation and info."""

    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def __init__(self, reset=None, step=None):
        self.first, self.next = reset, step

    def reset(self, *, seed=None, options=None):
        return (np.zeros(2, np.float32), {}) if self.first is None else self.first

    def step(self, action):
        return (np.zeros(2, np.float32), 1.0, True, False, {}) if self.next is None else self.next


class NoAction(Pair):
    """Takes no action."""

    def step(self):
        return super().step(0)


ZERO = np.zeros(2, np.float32)


@pytest.mark.parametrize("make, what, fix", [
    (lambda: Pair(reset=ZERO), "the observation has shape (), its space (2,)",
     " must take "),
    (lambda: Pair(step=({}, 1.0, False, False, {})), "the observation is dict, not an array",
     " must take "),
    (lambda: Pair(step=("go", 1.0, False, False, {})), "the observation is str, not an array",
     " must take "),
    (NoAction, "takes 1 positional argument but 2 were given", "step() must take the action")])
def test_an_answer_of_another_type_is_named_with_what_to_return(trainer, make, what, fix):
    with pytest.raises(EnvError) as caught:
        trainer(make).collect()
    text = str(caught.value)
    assert what in text and fix in text.partition("\n  fix: ")[2] and "Traceback" not in text


@pytest.mark.parametrize("vector", [gym.vector.SyncVectorEnv, None])
def test_a_vector_environment_of_the_old_api_is_recognised(trainer, vector):
    env = gym.vector.SyncVectorEnv([lambda: Odd()] * 2)
    step = env.step
    env.step = lambda actions: step(actions)[:4] if vector else None
    with pytest.raises(EnvError, match=r"unpack(.|\n)*step\(\) must take"):
        trainer(env, num_envs=2).collect()


@pytest.mark.parametrize("value", [True, False, np.True_, np.array(False), 1, 0, np.int64(1)])
def test_a_truth_value_is_a_flag(value):
    assert checks.checked_flag(value, "term") is bool(value)


@pytest.mark.parametrize("value", [None, "False", 2, {}, [True], np.array([True]), np.nan])
def test_anything_else_is_no_flag(value):
    with pytest.raises(ValueError, match="terminated is .*, not True or False"):
        checks.checked_flag(value, "terminated")


def test_an_end_that_is_none_is_a_fault_in_evaluation_vectors_and_native(trainer):
    def none(obs, rew, term, trunc, info):
        return obs, rew, None, None, info
    with pytest.raises(EnvError, match="terminated is None"):
        trainer(lambda: Says(step=none), max_episode_steps=9).evaluate(1)
    env = make_vec(lambda: Says(step=none), num_envs=2, num_workers=0)
    env.reset()
    with pytest.raises(EnvError, match="terminated is None"):
        env.step(np.zeros(2, np.int64))
    native = gym.vector.SyncVectorEnv([lambda: Odd()] * 2)
    step = native.step
    native.step = lambda actions: (*step(actions)[:2], np.array([None] * 2), None, {})
    with pytest.raises(EnvError, match="its terminations: ValueError: they are object"):
        trainer(native, num_envs=2).collect()


def test_a_number_beyond_float32_is_one_error_without_a_warning_beside_it(trainer):
    huge = {"reset": lambda obs, info: (np.full((2, 3), 1e300), info), "obs_space": WIDE}
    policy = trainer(lambda: Chance(WIDE)).policy
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(EnvError, match="is inf in float32"):
            trainer(lambda: Says(**huge)).evaluate(1)
        with pytest.raises(InputError, match="is inf in float32"):
            policy.predict(np.full((2, 3), 1e300))


@pytest.mark.parametrize(("workers", "quiet"), [
    (0, "nobody"), (0, "all"), (2, "nobody"), (2, "the last")])
def test_noise_from_a_shared_generator_is_said_once_whoever_draws_it(
        trainer, caplog, capfd, workers, quiet):
    silent = {"nobody": (), "the last": (2, 3), "all": range(4)}[quiet]
    draws = [lambda env: np.random.rand(), lambda env: 1.0]
    ppo = trainer([partial(Shared, draws[e in silent]) for e in range(4)], num_workers=workers)
    ppo.collect()
    ppo.collect()
    ppo.close()
    said = caplog.text + capfd.readouterr().err
    assert said.count("global generator of numpy.random") == (quiet != "all")


# The host's torch

HOSTS = {"meta": lambda: torch.device("meta"), "inference": torch.inference_mode,
         "no_grad": torch.no_grad}
PLAIN = {}  # what a life comes to, by model and acting
GLOBALS = torch.get_default_device, torch.is_grad_enabled, torch.is_inference_mode_enabled


def lived(tmp_path, model, acting):
    """The life of a trainer from birth to its file: weights, actions, value."""
    with PPO(lambda: Chance(WIDE), model=model, preset="none", seed=1, num_envs=4, num_steps=8,
             acting=acting, num_minibatches=2, epochs=1, num_workers=0) as ppo:
        ppo.update(ppo.collect())
        ppo.learn(64)
        ppo.evaluate(2)
        ppo.save(tmp_path / "policy.safetensors")
        again = load(tmp_path / "policy.safetensors", model=None if model == "mlp" else model)
        obs = np.ones((3, 2, 3))
        return [ppo.learner.flat.values.numpy().tolist(), ppo.policy.predict(obs).tolist(),
                again.predict(obs, deterministic=False).tolist(), again.value(obs).tolist()]


class Wide(torch.nn.Module):
    """A network of a user's."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.layer = torch.nn.Linear(6, 4)

    def forward(self, obs):
        """Three logits and the value."""
        out = self.layer(obs.flatten(1))
        return out[:, :3], out[:, 3]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(("model", "acting"), [
    ("mlp", "local"), ("mlp", "central"), (Wide, "auto")])
def test_what_the_host_script_has_set_in_torch_changes_nothing(tmp_path, host, model, acting):
    plain = PLAIN.get((model, acting)) or lived(tmp_path, model, acting)
    PLAIN[model, acting] = plain
    with HOSTS[host]():
        before = [ask() for ask in GLOBALS]
        assert lived(tmp_path, model, acting) == plain
        assert [ask() for ask in GLOBALS] == before


def test_a_default_device_that_was_set_for_good_changes_nothing(tmp_path):
    plain = lived(tmp_path, "mlp", "auto")
    torch.set_default_device("meta")
    try:
        assert lived(tmp_path, "mlp", "auto") == plain
        assert torch.get_default_device().type == "meta"
    finally:
        torch.set_default_device(None)


def test_an_environment_keeps_the_hosts_gradients_off(trainer):
    seen = []
    with torch.no_grad():
        trainer(lambda: Says(step=lambda *answer: (seen.append(torch.is_grad_enabled()), answer)[1])
                ).collect()
    assert set(seen) == {False}


@pytest.mark.parametrize("mode", ["human", "rgb_array"])
def test_training_in_environments_that_draw_themselves_is_refused(mode):
    with pytest.raises(ConfigError, match="has a render_mode") as error:
        PPO("CartPole-v1", env_kwargs={"render_mode": mode})
    assert "evaluate(" in fix_text(error.value.fix, shell=True)
    make_vec("CartPole-v1", env_kwargs={"render_mode": "rgb_array"}, num_workers=0).close()


@pytest.mark.parametrize("call", [
    lambda: PPO("MlpPolicy", "CartPole-v1"), lambda: PPO("MlpPolicy", "CartPole-v1", 3e-4),
    lambda: PPO("CartPole-v1", 1), lambda: PPO("CartPole-v1", "MlpPolicy")])
def test_more_than_an_environment_by_position_is_pythons_error(call):
    with pytest.raises(TypeError, match="takes from 1 to 2 positional arguments but"):
        call()


def test_the_name_of_a_policy_is_no_environment():
    with pytest.raises(ConfigError, match="there is no environment 'MlpPolicy': "):
        PPO("MlpPolicy")


@pytest.mark.parametrize("name", ["set_env", "get_env", "num_timesteps", "train", "load", "fit"])
def test_an_attribute_of_another_librarys_trainer_is_pythons_error(trainer, name):
    ppo = trainer("CartPole-v1")
    with pytest.raises(AttributeError, match=f"'PPO' object has no attribute '{name}'"):
        getattr(ppo, name)("x")


def test_an_attribute_that_nobody_has_and_an_error_in_a_property_are_as_ever(trainer):
    class Mine(PPO):
        @property
        def score(self):
            raise AttributeError("inside")

    with pytest.raises(AttributeError, match="'PPO' object has no attribute 'xyzzy'"):
        trainer("CartPole-v1").xyzzy()
    with Mine("CartPole-v1", num_workers=0) as ppo, pytest.raises(AttributeError, match="inside"):
        _ = ppo.score


def test_an_argument_that_a_policy_does_not_take_is_pythons_error(trainer, tmp_path):
    ppo = trainer("CartPole-v1")
    ppo.save(path := tmp_path / "policy.safetensors")
    policy, obs = load(path), np.zeros(4, np.float32)
    for call, name in ((lambda **x: policy.evaluate(**x), "n_eval_episodes"),
                       (lambda **x: ppo.evaluate(**x), "episode"),
                       (lambda **x: policy.predict(obs, **x), "episode_start"),
                       (lambda **x: ppo.predict(obs, **x), "action_masks"),
                       (lambda **x: load(path, **x), "env")):
        with pytest.raises(TypeError, match=rf"\(\) got an unexpected keyword argument '{name}'"):
            call(**{name: 1})


def test_the_settings_are_the_signature_of_ppo():
    found = inspect.signature(PPO).parameters
    assert {"env", "lr", "num_envs", "init_from"} <= {*found}
    assert found["gamma"].default == Config.gamma and "env_name" not in found


def test_an_environment_that_is_made_already_is_refused_by_the_name_of_its_setting(trainer):
    env = Chance()
    for name, ask in (("env", lambda: trainer(env)),
                      ("env", lambda: trainer(Chance).evaluate(env=env)),
                      ("eval_env", lambda: trainer("CartPole-v1", eval_env=env))):
        with pytest.raises(ConfigError, match=f"^{name} is .*Chance.* a callable that makes"):
            ask()


def test_an_environment_in_the_place_of_the_episodes_is_an_error(trainer):
    ppo = trainer("CartPole-v1")
    for env in (gym.make("CartPole-v1"), "CartPole-v1"):
        with pytest.raises(ConfigError, match="^episodes is .*CartPole-v1.*, but must be a"):
            ppo.evaluate(env)


def test_a_config_in_the_place_of_settings_is_answered_with_a_call_that_works():
    config = Config(env_name="CartPole-v1", num_workers=0, lr=0.5)
    with pytest.raises(ConfigError, match="settings by name, and no Config") as caught:
        PPO(config)
    with eval(caught.value.fix, {"PPO": PPO, "config": config}) as ppo:
        assert ppo.config.lr == 0.5


@pytest.mark.parametrize("name", ["gamma", "lr", "num_steps", "clip_range", "env_name"])
def test_a_setting_that_is_assigned_to_a_trainer_is_refused(trainer, name):
    ppo = trainer("CartPole-v1")
    with pytest.raises(AttributeError, match=f"{name} is a setting, which is for a whole run"):
        setattr(ppo, name, 0.5)
    ppo.mine, ppo.total = 3, ppo.total


def test_a_device_that_load_cannot_use_is_one_error(trainer, tmp_path):
    trainer("CartPole-v1").save(path := tmp_path / "policy.safetensors")
    assert load(path, device=torch.device("cpu"))
    for device, said in (("gpu", 'must be one of .*\n  fix: device="cpu"'),
                         ("cuda:99", "cuda:99, but|GPU 99, but")):
        with pytest.raises(ConfigError, match=said):
            load(path, device=device)


def test_predict_and_save_without_an_argument_are_errors_of_ours(trainer):
    ppo = trainer("CartPole-v1")
    with pytest.raises(InputError, match="the observation does not fit the space"):
        ppo.predict()
    with pytest.raises(Error, match="cannot write"):
        ppo.save()


def test_a_zip_is_not_taken_for_a_damaged_policy(tmp_path):
    torch.save({"a": 1}, tmp_path / "theirs.zip")
    with pytest.raises(PathError, match="is not a safetensors file"):
        load(tmp_path / "theirs.zip")
    with pytest.raises(Error, match="is a folder"):
        load("")


def test_a_mistyped_environment_ends_the_benchmark_before_its_first_line(command):
    code, out, err = command("bench", "--env_name=Cartpole-v1")
    assert (code, out) == (2, "") and err.startswith("error: ") and "round" not in err
