"""What stands before and after each fragment of the docs, so that a test can run it.

The key is the fragment's first line. A surrounding that draws on a package which may be missing
names it in `needs`.
"""

from typing import NamedTuple

from compiled_for_tests import C_CODE


class Surrounding(NamedTuple):
    """Code around a fragment."""

    before: str = ""
    after: str = ""
    needs: str = ""  # a package
    indent: int = 0  # columns of the fragment: it is a method of the class before it


TINY = "num_envs=2, num_steps=16, num_minibatches=1, total_steps=32, num_workers=0"
TRAINED = f"""
import fastppo
from fastppo import load
with fastppo.PPO("CartPole-v1", {TINY}) as ppo:
    ppo.learn()
    ppo.save("lander.safetensors")
"""

SURROUNDINGS = {
    'library = ctypes.CDLL("./native.so")': Surrounding(f"""
import ctypes, pathlib, subprocess
import numpy as np
from fastppo import compiled_env
from gymnasium.spaces import Box, Discrete
pathlib.Path("native.c").write_text({C_CODE!r})
subprocess.run("cc -shared -fPIC -o native.so native.c".split(), check=True)""", """
env = Native()
assert env.reset(seed=1)[0] == 0.5 and env.step(0)[:3] == (0.25, 0.25, False)"""),
    "class MyEnv(gymnasium.Env):": Surrounding(
        "import gymnasium, numpy\nframe = numpy.zeros((8, 8, 3), numpy.uint8)",
        'assert MyEnv("rgb_array").render() is frame'),
    'policy = load("lander.safetensors")': Surrounding(
        f"{TRAINED}\nfrom pathlib import Path\nPath('my_module.py').write_text("
        "'import gymnasium\\ndef MyEnv(): return gymnasium.make(\"CartPole-v1\")')",
        "assert len(policy.evaluate(episodes=3).returns) == 3"),
    "def make():                                             # --env_name=my_module:make, or"
    " PPO(make)": Surrounding("""
import fastppo, gymnasium, numpy as np
class MyEnv(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Text(4), gymnasium.spaces.Sequence(
        gymnasium.spaces.Discrete(2))
    def reset(self, *, seed=None, options=None):
        return "abcd", {}
    def step(self, action):
        assert isinstance(action, tuple)
        return "abcd", 1.0, True, False, {}
def to_array(obs):
    return np.array([ord(letter) for letter in obs], np.float32)
def to_action(choice):
    return (int(choice) % 2,)
""", f"fastppo.PPO(make, {TINY}).learn().close()"),
    'action = policy.predict(obs, action_mask=info["action_mask"])      # or env.action_masks(); a'
    " batch has one mask per row": Surrounding(f"""
import fastppo, gymnasium, numpy as np
class Masked(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(3)
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), dict(action_mask=np.int8([0, 1, 0]))
    def step(self, action):
        return *self.reset()[:1], 1.0, True, False, self.reset()[1]
policy = fastppo.PPO(Masked, {TINY}).learn().policy
mask, info, obs = np.int8([0, 1, 0]), dict(action_mask=np.int8([0, 1, 0])), np.zeros(2, np.float32)
""", "assert action == 1"),
    "# Ray: one task a machine, each with all of its GPUs, which runs torchrun.": Surrounding("""
import sys, types
ray, tasks = types.ModuleType("ray"), []
ray.init, ray.get = lambda address: None, tasks.extend
ray.nodes = lambda: [dict(NodeManagerAddress="10.0.0.1", Alive=True)]
ray.remote = lambda **resources: lambda task: types.SimpleNamespace(remote=lambda: task)
sys.modules["ray"] = ray
""", 'del sys.modules["ray"]\nassert first == "10.0.0.1" and len(tasks) == 2'),
    "class JsonLines:": Surrounding(
        "import json, fastppo\nfrom pathlib import Path",
        f'fastppo.PPO("CartPole-v1", {TINY}).learn(callbacks=[JsonLines("a.jsonl")]).close()\n'
        'assert json.loads(Path("a.jsonl").read_text())["global_step"] == 32'),
    "class MyNet(nn.Module):": Surrounding(
        "from torch import nn", "assert issubclass(MyNet, nn.Module)"),
    "def forward(self, obs):        # squashed into a Box from -1 to 1": Surrounding("""
import fastppo, gymnasium, torch
from torch import nn
class TwoActions(gymnasium.ActionWrapper):
    action_space = gymnasium.spaces.Box(-1, 1, (2,))
    def action(self, action):
        return int(action[0] > 0)
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution
class Net(nn.Module):
    def __init__(self, obs_space, act_space):
        super().__init__()
        self.layers = nn.Linear(obs_space.shape[0], 3)
        self.log_std = nn.Parameter(torch.zeros(2))
""", f"""
def make():
    return TwoActions(gymnasium.make("CartPole-v1"))
fastppo.PPO(make, model=Net, entropy_coef=0, {TINY}).learn().close()
""", indent=4),
    'act = torch.jit.load("runs/latest/model.pt")': Surrounding(f"""{TRAINED}
import gymnasium, torch
from fastppo.cli.main import main
main(["export", "lander.safetensors", "--to=torchscript", "--output=runs/latest/model.pt"])
obs = gymnasium.make("CartPole-v1").reset()[0]
""", "assert action in (0, 1)"),
    "from fastppo import load": Surrounding("""
import fastppo
ppo = fastppo.PPO("CarRacing-v3", num_envs=1, num_steps=2, num_minibatches=1, epochs=1)
ppo.learn(2)
ppo.save("runs/latest/model.safetensors")
ppo.close()
""", "assert action.shape == (3,)"),
    "from stable_baselines3 import PPO": Surrounding(needs="stable_baselines3"),
}
