"""Prints one digest of trained weights for each acting path, head, network and learner.

    python bench/digests.py > before.txt      at one commit
    python bench/digests.py > after.txt       at another one, on the same machine
    diff before.txt after.txt                 empty: both train the same weights, bit for bit

For changes that must not change a result. Digests differ between machine types and versions of
libraries; only two runs on one machine can be compared.
"""

import functools
import hashlib
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

sys.path.insert(0, str(Path(__file__).parents[1]))
from fastppo import PPO  # noqa: E402

SMALL = {"preset": "none", "seed": 3, "num_envs": 4, "num_steps": 32, "epochs": 2,
         "num_minibatches": 4, "num_workers": 0}
ITERATIONS = 4


class Toy(gym.Env):
    """A random walk of ten steps, whose observations and actions are of the spaces given."""

    def __init__(self, obs: gym.Space, act: gym.Space, masked: bool = False):
        self.observation_space, self.action_space, self.masked = obs, act, masked
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        """A random observation."""
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed % 2**31)
        self.steps = 0
        return self.observation_space.sample(), self._info()

    def step(self, action):
        """A random observation; the reward depends on the action."""
        self.steps += 1
        rew = float(np.mean([np.sum(part) for part in (
            action.values() if isinstance(action, dict) else [action])]))
        end = self.steps >= 10
        return self.observation_space.sample(), rew, end and rew > 1, end, self._info()

    def _info(self):
        mask = np.arange(5) % 2 == self.steps % 2
        return {"action_mask": mask} if self.masked else {}


class Small(torch.nn.Module):
    """A network of the user's."""

    def __init__(self, obs_space, act_space):
        super().__init__()
        self.actor, self.critic = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)

    def forward(self, obs):
        """(action parameters, value)."""
        return self.actor(obs), self.critic(obs)[:, 0]


def half_entropy(fresh, batch, now):
    """A loss of the user's."""
    ratio = (fresh.logp - batch.logp).exp()
    return (-ratio * batch.adv).mean() + (fresh.val - batch.ret).square().mean(), {}


def toy(obs, act, masked=False):
    """A factory of a Toy."""
    return functools.partial(Toy, obs, act, masked)


FLOATS = Box(-1, 1, (4,), np.float32)
IMAGE = Box(0, 255, (36, 36, 1), np.uint8)
RUNS = {
    "categorical, local, compiled": ("CartPole-v1", {}),
    "categorical, local, two workers": ("CartPole-v1", {"num_workers": 2}),
    "categorical, central, torch": ("CartPole-v1", {"acting": "central", "learner": "torch"}),
    "categorical, central, two workers": ("CartPole-v1", {"acting": "central", "num_workers": 2}),
    "gaussian, local, compiled": ("Pendulum-v1", {"clip_range_vf": 0.2, "dual_clip": 3.0}),
    "gaussian, local, torch": ("Pendulum-v1", {"learner": "torch", "adaptive_kl": 0.01}),
    "squashed": ("Pendulum-v1", {"distribution": "squashed", "num_microbatches": 2}),
    "beta, recomputed": ("Pendulum-v1", {"distribution": "beta", "recompute_advantages": True}),
    "state gaussian, rollout": ("Pendulum-v1", {
        "distribution": "state_gaussian", "norm_advantages": "rollout", "target_kl": 0.01}),
    "gaussian, torch, entropy": ("Pendulum-v1", {"learner": "torch", "entropy_coef": 0.01}),
    "squashed, entropy": ("Pendulum-v1", {"distribution": "squashed", "entropy_coef": 0.01}),
    "categorical, compiled, entropy": ("CartPole-v1", {"entropy_coef": 0.01}),
    "bytes without moments": (toy(Box(0, 255, (6, 6), np.uint8), Discrete(5)), {
        "norm_obs": False, "model": "mlp"}),
    "gsde": ("Pendulum-v1", {"sde": True, "sde_sample_freq": 4}),
    "rpo, values, own rates": ("Pendulum-v1", {
        "rpo_alpha": 0.3, "norm_values": True, "critic_lr": 1e-3, "grad_clipping": "network"}),
    "masks in infos": (toy(FLOATS, Discrete(5), True), {"num_workers": 2}),
    "dict, multidiscrete": (toy(Dict(a=FLOATS, b=Discrete(3, start=1)), MultiDiscrete([3, 2])), {}),
    "composite actions": (toy(FLOATS, Dict(a=Discrete(3), b=Box(-2, 2, (2,)))), {}),
    "gru": ("CartPole-v1", {"rnn": "gru", "rnn_size": 16}),
    "lstm, shared": ("CartPole-v1", {"rnn": "lstm", "rnn_size": 16, "shared_critic": True}),
    "cnn": (toy(IMAGE, Discrete(5)), {"num_envs": 2, "num_steps": 16}),
    "own model, optimizer, loss": ("Pendulum-v1", {
        "model": Small, "optimizer": torch.optim.SGD, "loss": half_entropy}),
    "vector, next step": (functools.partial(gym.make_vec, "CartPole-v1", 4), {}),
    "vector, same step": (functools.partial(
        gym.make_vec, "CartPole-v1", 4, vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}), {"rnn": "gru"}),
}


def digest(env, settings: dict) -> str:
    """The digest of what a short training leaves: weights, moments, actions, returns."""
    if isinstance(env, functools.partial) and env.func is gym.make_vec:
        env = env()
    sha = hashlib.sha256()
    with PPO(env, **SMALL | settings) as ppo:
        ppo.learn(ITERATIONS * ppo.config.num_envs * ppo.config.num_steps)
        for tensor in (*ppo.policy.parameters(), *ppo.policy.observer.state):
            sha.update(tensor.detach().numpy().tobytes())
        if isinstance(env, str):
            evaluation = ppo.evaluate(3, deterministic=False)
            sha.update(evaluation.returns.tobytes())
    return sha.hexdigest()[:16]


def main() -> None:
    """Print a line for every run."""
    for name, (env, settings) in RUNS.items():
        print(f"{digest(env, settings)}  {name}", flush=True)


if __name__ == "__main__":
    main()
