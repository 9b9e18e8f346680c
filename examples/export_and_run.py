"""Export a policy, then run it without fastppo: with onnxruntime if installed, else torch.jit.

For ONNX: pip install "fastppo[export]"
"""

import importlib.util
import json

import gymnasium as gym
import numpy as np

from fastppo import PPO, export

onnx = importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnxscript")
path = "cartpole.onnx" if onnx else "cartpole.pt"
with PPO("CartPole-v1", seed=1, total_steps=50_000, progress="lines") as ppo:
    ppo.learn()
    export(ppo.policy, path, env="CartPole-v1")  # compared on 300 steps, then written

# From here on only the file is needed. Its input is a batch of raw observations (here: one).
if onnx:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    metadata = session.get_modelmeta().custom_metadata_map["fastppo"]

    def act(obs):
        """The environment's actions [b ...] for observations [b ...]."""
        return session.run(["action"], {"obs": obs})[0]
else:
    import torch

    files = {"fastppo": ""}
    module = torch.jit.load(path, _extra_files=files)
    metadata = files["fastppo"]

    def act(obs):
        """The environment's actions [b ...] for observations [b ...]."""
        return module(torch.from_numpy(obs)).numpy()

print("trained in", json.loads(metadata)["env_name"])
env = gym.make("CartPole-v1")
obs, _ = env.reset(seed=0)
total, done = 0.0, False
while not done:
    obs, reward, terminated, truncated, _ = env.step(act(np.asarray(obs)[None])[0])
    total, done = total + reward, terminated or truncated
env.close()
print("return", total)
