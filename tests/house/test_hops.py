"""The way of a call through the package: frames on the stack, files and functions, imports.

The numbers only fall. Functions without a name of their own, such as comprehensions, do not count:
newer versions of Python have no frame for them.
"""

import ast
import json
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import pytest
import torch
from optional_packages import NEEDS_EXTENSION
from source_tree import CHAPTERS, ROOT, code_lines, parsed

from fastppo import PPO
from fastppo.machine import kernels

PACKAGE_FOLDER = str(ROOT / "fastppo")
SMALL = dict(seed=1, num_workers=0, num_envs=2, num_steps=8, epochs=1, num_minibatches=1)

# What a user calls: all of it is in ppo.py.
METHODS = {"learn", "collect", "update", "evaluate", "predict", "value", "save", "checkpoint",
           "resume", "close", "check_open", "coefficients", "lr", "progress", "step",
           "complete_steps", "pending"}

# A default run of CartPole in one process, in a fresh interpreter: what runs, and what is imported.
RUN = """
import json, sys
folder = sys.argv[1]
from fastppo import PPO
used = set()
def called(frame, event, arg):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(folder) and code.co_name[0] != "<":
        used.add((code.co_filename, code.co_firstlineno))
def traced(work):
    used.clear()
    sys.setprofile(called)
    result = work()
    sys.setprofile(None)
    return result, len({file for file, _ in used}), len(used)
def whole():
    with PPO("CartPole-v1", seed=1, num_workers=0) as ppo:
        return ppo.learn(4096)
_, *run = traced(whole)
imported = [module.__file__ for name, module in sys.modules.items()
            if name.startswith("fastppo.") and module.__file__.endswith(".py")]
with PPO("CartPole-v1", seed=1, num_workers=0) as ppo:
    ppo.learn(2048)
    _, *iteration = traced(lambda: ppo.learn(4096))
print(json.dumps({"run": run, "iteration": iteration, "imported": imported}))
"""


class Deep(gym.Env):
    """An environment that records the stack of each step."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)
    stacks: list[list[str]] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.low, {}

    def step(self, action):
        self.stacks.append(ours())
        return self.observation_space.low, 0.0, False, False, {}


def ours() -> list[str]:
    """The functions of the package that are on the stack, the innermost last."""
    frame, found = sys._getframe(1), []
    while frame:
        if frame.f_code.co_filename.startswith(PACKAGE_FOLDER) and frame.f_code.co_name[0] != "<":
            found.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return found[::-1]


@pytest.fixture(scope="module")
def measured():
    ran = subprocess.run([sys.executable, "-c", RUN, PACKAGE_FOLDER], capture_output=True,
                         text=True, check=True)
    return json.loads(ran.stdout)


@pytest.mark.parametrize("settings", [{}, {"acting": "central", "learner": "torch"}])
def test_env_step_is_five_functions_from_learn(settings):
    Deep.stacks.clear()
    with PPO(Deep, **SMALL, norm_obs=False, **settings) as ppo:
        ppo.learn(16)
    assert {tuple(stack) for stack in Deep.stacks} == {
        ("PPO.learn", "PPO.collect", "Collector.collect", "Serial.rollout", "Serial._step")}


def test_backward_is_five_functions_from_learn(monkeypatch):
    grad, stacks = torch.autograd.grad, []
    monkeypatch.setattr(torch.autograd, "grad",
                        lambda *args, **named: stacks.append(ours()) or grad(*args, **named))
    with PPO(Deep, **SMALL, learner="torch") as ppo:
        ppo.learn(16)
    assert stacks == [["PPO.learn", "PPO.update", "Learner.update", "Learner._epoch",
                       "Learner._minibatch"]]


@NEEDS_EXTENSION
def test_the_compiled_update_is_four_functions_from_learn(monkeypatch):
    minibatch, stacks = kernels.MinibatchUpdate.minibatch, []

    def watched(self, *args):
        stacks.append(ours())
        return minibatch(self, *args)
    monkeypatch.setattr(kernels.MinibatchUpdate, "minibatch", watched, raising=False)
    with PPO(Deep, **SMALL) as ppo:
        ppo.learn(16)
    assert stacks == [["PPO.learn", "PPO.update", "Learner.update", "CompiledLearner._epoch"]]


@NEEDS_EXTENSION
def test_a_default_run_enters_few_files_and_functions(measured):
    files, functions = measured["run"]
    assert (files <= 45, functions <= 250) == (True, True), (files, functions)


@NEEDS_EXTENSION
def test_an_iteration_enters_few_files_and_functions(measured):
    files, functions = measured["iteration"]
    assert (files <= 25, functions <= 120) == (True, True), (files, functions)


@NEEDS_EXTENSION
def test_a_default_run_imports_what_it_needs(measured):
    files = [Path(file) for file in measured["imported"]]
    lines = sum(map(code_lines, files))
    assert (len(files) <= 70, lines <= 6_500) == (True, True), (len(files), lines)


@NEEDS_EXTENSION
def test_a_default_run_imports_no_chapter(measured):
    assert {Path(file).parent.name for file in measured["imported"]} & CHAPTERS == set()


def test_every_public_method_of_ppo_is_in_ppo_py():
    assert {name for name in dir(PPO) if name[0] != "_"} == METHODS
    assert METHODS <= vars(PPO).keys()


def test_ppo_py_sets_or_names_every_attribute_that_it_uses():
    tree = parsed(ROOT / "fastppo" / "ppo.py")
    own = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)
           and isinstance(node.value, ast.Name) and node.value.id == "self"]
    named = METHODS | PPO.__annotations__.keys() | {
        node.attr for node in own if isinstance(node.ctx, ast.Store)}
    assert {node.attr for node in own} <= named
