"""The policy: normaliser, network and action head as one module, raw observations to actions."""

import math
from typing import Sequence

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from . import contract, kernels
from .actors import Noise, Recipe
from .heads import head_of
from .kernels import Purpose
from .nets import MLP
from .spaces import observation_store, stacked, to_env

EPSILON = 1e-8


class Policy(nn.Module):
    """An actor-critic for one pair of spaces; the observation moments are part of it.

    `net(obs [b ...]) -> (params [b p], value [b])`; p is what the action space's head wants.
    """

    def __init__(self, obs_space: Space, act_space: Space, net: nn.Module, norm_obs: bool = True,
                 log_std_init: float = 0.0, seed: int = 0, obs_limit: float = 10.0):
        super().__init__()
        self.obs_space, self.act_space, self.seed, self.draws = obs_space, act_space, seed, 0
        self.store = store = observation_store(obs_space)
        self.row, self.scaled = store.shape, store.dtype == "|u1"
        self.obs_limit, self.norm_obs = obs_limit, norm_obs and store.dtype == "<f4"
        self.net, self.head = net, head_of(act_space, log_std_init)
        size = math.prod(self.row) if self.norm_obs else 0
        for name, x in (("count", np.zeros(1)), ("mean", np.zeros(size)), ("m2", np.zeros(size))):
            self.register_buffer(name, torch.from_numpy(x))
        self.register_buffer("shift", torch.zeros(size, dtype=torch.float32), persistent=False)
        self.register_buffer("scale", torch.ones(size, dtype=torch.float32), persistent=False)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """(action parameters [b p], value [b]) of stored observations [b ...]."""
        return self.net(self.normalised(obs))

    def normalised(self, obs: Tensor) -> Tensor:
        """clip((obs - mean) / sqrt(var + 1e-8), +-obs_limit), or bytes over 255, as float32."""
        if self.norm_obs:
            flat = (obs.reshape(obs.shape[0], len(self.shift)) - self.shift) * self.scale
            return flat.clamp(-self.obs_limit, self.obs_limit).reshape(obs.shape)
        return obs.float() / 255 if self.scaled else obs.float()

    def judge(self, obs: Tensor, act: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(logp [b] of act, entropy [b], value [b])."""
        params, val = self(obs)
        return *self.head.judge(params, act), val

    @torch.inference_mode()
    def act(self, obs: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(act, logp, val) of stored observations, sampled with `noise` [b k]."""
        params, val = self(self._tensor(obs))
        act, logp = self.head.sample(params, self._tensor(noise))
        return act.cpu().numpy(), logp.cpu().numpy(), val.cpu().numpy()

    @torch.inference_mode()
    def value(self, obs) -> np.ndarray:
        """The value f32 of one raw observation, or [b] of a batch; of one with NaN it is NaN.

        Raises InputError for what training would refuse: another shape, a dtype that is not kept.
        """
        rows, single = contract.batch(obs, self.store)
        val = self(self._tensor(rows))[1].cpu().numpy()
        return val[0] if single else val

    @torch.inference_mode()
    def predict(self, obs, deterministic: bool = True, noise: np.ndarray | None = None):
        """The environment's action for one raw observation, or an array of them for a batch.

        Deterministic: the likeliest action; else sampled with `noise` [b k], by default numbers
        counted from the policy's first call. Raises InputError as `value` does, and for what is not
        finite; Error where the network answers NaN.
        """
        rows, single = contract.batch(obs, self.store)
        contract.check_finite(rows)
        params = contract.numbers(self(self._tensor(rows))[0])
        if deterministic:
            act = self.head.mode(params)
        else:
            noise = self._noise(len(rows)) if noise is None else noise
            act = self.head.sample(params, self._tensor(noise))[0]
        actions = to_env(self.act_space)(act.cpu().numpy())
        return actions[0] if single else stacked(self.act_space, actions)

    @property
    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """(count [1], mean [o], sum of squared deviations [o]) of the observations so far, f64."""
        return self.count.clone(), self.mean.clone(), self.m2.clone()

    def set_moments(self, values: Sequence[Tensor]) -> None:
        """Replace the moments, and the float32 snapshot of them that everybody reads."""
        count, mean, m2 = values
        if self.norm_obs and count.item() > 0:
            self.shift.copy_(mean)
            self.scale.copy_((m2 / count + EPSILON).rsqrt())
        # The count last: interrupted before it, the first moments are still to be set.
        for buffer, value in ((self.mean, mean), (self.m2, m2), (self.count, count)):
            buffer.copy_(value)

    def learn_moments(self, obs: np.ndarray) -> None:
        """Merge observations [n ...] into the moments; the network sees them from now on."""
        if self.norm_obs and len(obs):
            count, mean, m2 = (value.cpu().numpy() for value in self.moments)
            kernels.merge_moments(np.ascontiguousarray(obs.reshape(len(obs), -1)), count, mean, m2)
            self.set_moments([torch.from_numpy(value) for value in (count, mean, m2)])

    def recipe(self, offsets: dict[int, int]) -> Recipe | None:
        """What the compiled twin needs, or None where only torch can run this network."""
        if type(self.net) is not MLP or observation_store(self.obs_space).dtype != "<f4":
            return None
        log_std = getattr(self.head, "log_std", None)
        return Recipe(self.net.plan(offsets), None if log_std is None else offsets[id(log_std)],
                      self.obs_limit)

    def _noise(self, count: int) -> np.ndarray:
        self.draws += 1
        return Noise(self.act_space, self.seed, 0, count).at(self.draws, Purpose.EVALUATE)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.count.device)
