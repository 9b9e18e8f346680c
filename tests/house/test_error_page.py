"""docs/errors.md: each error of the page is provoked, and its text is the one in the page."""

import os
import re
import shlex
import sys

import gymnasium as gym
import pytest
import torch
from source_tree import ROOT

from fastppo.cli.main import main
from fastppo.envs import families

PAGE = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"^```text\n\$ (python main\.py .*)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE))
MISSING = "ale_py", "Box2D", "envpool", "wandb"  # packages that the page is without
RUN = ["--env_name=CartPole-v1", "--preset=none", "--seed=1", "--num_workers=0", "--num_envs=2",
       "--num_steps=8", "--num_minibatches=1", "--total_steps=16", "--eval_episodes=0"]
MY_MODULE = '''
import os, signal, time
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, Text

class MyEnv(gym.Env):
    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 8:
            self.fault()
        return np.zeros(2, np.float32), 0.0, self.steps == 20, False, {}

    def fault(self):
        pass

class Buggy(MyEnv):
    def fault(self):
        raise KeyError("level")

class Killed(MyEnv):
    def fault(self):
        os.kill(os.getpid(), signal.SIGKILL)

class Slow(MyEnv):
    def fault(self):
        time.sleep(1000)

class NotFinite(MyEnv):
    def step(self, action):
        return super().step(action)[0] + np.float32("nan"), 0.0, False, False, {}

class OldApi(MyEnv):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info

class Words(MyEnv):
    observation_space = Text(10)

class Level(MyEnv):
    def __init__(self, level):
        pass
'''
# What differs between machines, versions and runs.
VARIABLE = [(r"(?m)^[ ^~]+\n", ""), (r"\d+\.\d+\.\d+[\w+.]*", "VERSION"),
            (r"(?<!\d)[\d.,]+ (?=[GM]iB)", "N "), (r"--num_envs=[\d_]+$", "--num_envs=N"),
            (r"0x[0-9a-f]+", "0xN"), (r"(Current thread 0xN) \[\w+\]", r"\1"),
            (r"answered for [\d.]+ s", "answered for N s"),
            (r"import of (\w+) halted; None in sys.modules", r"No module named '\1'"),
            (r'File ".*?([\w.]+)", line \d+,? ', r'File "\1" ')]


def normalised(text: str) -> list[str]:
    for pattern, plain in VARIABLE:
        text = re.sub(pattern, plain, text)
    return [line.rstrip() for line in text.splitlines()]


@pytest.fixture
def answer(tmp_path, monkeypatch, capfd):
    """A function from a command of the page to the error that it prints."""
    monkeypatch.setattr(sys, "argv", ["main.py"])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_module.py").write_text(MY_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name == "my_module"
                 or name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    for name in MISSING:
        monkeypatch.setitem(sys.modules, name, None)
    families.register.cache_clear()
    for name in [name for name, spec in gym.registry.items() if "ale_py" in str(spec.entry_point)]:
        monkeypatch.delitem(gym.registry, name)

    def run(command: str) -> str:
        main(RUN)
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(command)[2:])
        assert ended.value.code in (1, 2)
        text = capfd.readouterr().err
        return text[text.index("error: "):].replace(f"{tmp_path}{os.sep}", "")

    return run


@pytest.mark.some(4)
@pytest.mark.parametrize("command", SHOWN)
def test_an_error_is_the_one_in_the_page(command, answer):
    if "--device=cuda" in command and torch.version.cuda is not None:
        pytest.skip("the page has the error of a torch without CUDA")
    assert normalised(answer(command)) == normalised(SHOWN[command])


def test_the_page_has_the_likeliest_errors():
    assert len(SHOWN) > 20 and all(text.startswith("error: ") for text in SHOWN.values())
