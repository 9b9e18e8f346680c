"""Environments of other packages: what their ids need, what registers them, and known faults."""

import sys

import gymnasium as gym
import numpy as np
import pytest

from fastppo.envs import families
from fastppo.envs.families import FAMILIES_KNOWN, Family, family_of_id, is_registered, register
from fastppo.envs.make import make_factory
from fastppo.errors import ConfigError, EnvError
from fastppo.settings.presets import GAMES

REGISTER = ("import gymnasium\n"
            "gymnasium.register('{id}', 'gymnasium.envs.classic_control:CartPoleEnv')\n")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A function that writes a package `others`, whose ids are forgotten after the test."""
    before = dict(gym.registry)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text="", **modules):
        (tmp_path / "others").mkdir()
        (tmp_path / "others" / "__init__.py").write_text(text)
        for name, text in modules.items():
            (tmp_path / "others" / f"{name}.py").write_text(text)
    yield write
    for name in set(gym.registry) - set(before):
        del gym.registry[name]
    for name in [name for name in sys.modules if name.partition(".")[0] == "others"]:
        del sys.modules[name]
    register.cache_clear()


def message(name: str) -> str:
    with pytest.raises(ConfigError) as error:
        make_factory(name)
    return str(error.value)


@pytest.mark.parametrize("name, package", [
    ("dm_control/cheetah-run-v0", "dm_control"), ("shimmy:dm_control/x-y-v0", "dm_control"),
    ("FetchReachDense-v4", "gymnasium_robotics"), ("Meta-World/MT1", "metaworld"),
    ("PandaReachDense-v3", "panda_gym"), ("highway-fast-v0", "highway_env"),
    ("MinAtar/Breakout-v1", "minatar"), ("VizdoomBasic-v1", "vizdoom"),
    ("PyFlyt.gym_envs:PyFlyt/QuadX-Hover-v4", "PyFlyt"), ("Pong-v5", "ale_py")])
def test_an_id_has_the_family_of_its_package_with_or_without_its_module(name, package):
    assert family_of_id(name).package == package
    assert is_registered(name) == (":" not in name)


def test_no_id_of_gymnasium_is_that_of_a_package():
    ours = [spec for spec in gym.registry.values()
            if families.entry_module(spec).startswith("gymnasium.") and spec.name not in GAMES]
    assert len(ours) > 30 and not any(family_of_id(spec.id) for spec in ours)


def test_an_id_whose_package_is_missing_is_answered_with_the_line_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    register.cache_clear()
    text = message("dm_control/cheetah-run-v0")
    assert "cannot import 'dm_control'" in text
    assert text.endswith('\n  fix: pip install "fastppo[dm-control]"')


@pytest.mark.parametrize("module", ["others", "others:register_envs", "others.deep"])
def test_a_family_is_registered_by_an_import_or_by_a_function(package, monkeypatch, module):
    text = REGISTER.format(id="others/One-v0")
    function = text.replace("gymnasium.register", "def register_envs():\n    gymnasium.register")
    package(text if module == "others" else function, deep=text)
    family = Family("others", "", module, "others", "pip install others", ("others/*",))
    monkeypatch.setattr(families, "FAMILIES_KNOWN", (*FAMILIES_KNOWN, family))
    assert make_factory("others/One-v0").constructor.id == "others/One-v0"
    assert make_factory("others:others/One-v0").constructor.id == "others/One-v0"


def test_an_id_that_a_module_lacks_is_answered_by_gymnasium(package):
    package(deep=REGISTER.format(id="others/One-v1").replace("gymnasium.envs.classic_control:",
                                                            "others.deep:"))
    assert "`v2`" in message("others.deep:others/One-v2")
    assert "there is no environment 'others:others/Two-v0'" in message("others:others/Two-v0")


def test_an_id_that_envpool_alone_has_is_answered_with_its_engine(monkeypatch):
    pool = type(sys)("envpool")
    pool.list_all_envs = lambda: ["CartPole-v1", "OnlyThere-v0"]
    pool.__spec__ = sys.__spec__
    monkeypatch.setitem(sys.modules, "envpool", pool)
    assert message("OnlyThere-v0").endswith('\n  fix: vec="envpool"')
    assert families.envpool_ids() == ["OnlyThere-v0"]


class Failing(gym.Env):
    """One that raises `error` in its first step, or returns the reward that it is."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, answer):
        self.answer = answer

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return np.zeros(2, np.float32), self.answer, False, False, {}


class NoSuchDisplayException(Exception):
    """As pyglet's."""


@pytest.mark.parametrize("answer, fix", [
    (NoSuchDisplayException('Cannot connect to "None"'), "PYGLET_HEADLESS=1 in front"),
    (RuntimeError("gladLoadGL error"), "MUJOCO_GL=egl in front"),
    (RuntimeError("Cannot create multiple emulator instances per process, make sure"),
     "give num_workers the number of environments"),
    (np.array([0.7, -1.0]), "mo_gymnasium.wrappers.LinearReward")])
def test_a_fault_whose_cause_is_known_is_answered_with_what_mends_it(answer, fix, trainer):
    with pytest.raises(EnvError) as error:
        trainer(lambda: Failing(answer), num_workers=0).learn(64)
    assert fix in str(error.value).rpartition("\n  fix: ")[2]


def test_a_missing_display_at_import_is_answered_too(package):
    package("class NoSuchDisplayException(Exception): pass\nraise NoSuchDisplayException")
    text = message("others:Game")
    assert "importing 'others' failed" in text and "fix: PYGLET_HEADLESS=1" in text
