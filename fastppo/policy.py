"""The policy: normaliser, network and action head as one module, raw observations to actions."""

from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from fastppo.envs.actions import ActionMapping
from fastppo.envs.observations import ObservationLayout
from fastppo.machine.kernels import Purpose
from fastppo.machine.noise import ActionNoise
from fastppo.networks import predict_input
from fastppo.networks.heads import Head, make_head
from fastppo.networks.normaliser import ObservationNormaliser
from fastppo.networks.recurrent import SequencePacking, Sequences, unroll_network


class Acted(NamedTuple):
    """What a policy records of acting, arrays [b ...]."""

    act: np.ndarray
    logp: np.ndarray
    val: np.ndarray
    state: np.ndarray


class Policy(nn.Module):
    """An actor-critic for one pair of spaces; the observation moments are part of it.

    `net(seen) -> (params [b p], value [b])` of what the observer makes of observations [b ...]; p
    is what the head wants. A network with memory has `state_size` numbers of it an environment, and
    takes and returns them too: `net(seen, state [b s]) -> (params, value, state [b s])`.
    """

    def __init__(self, obs_space: Space, act_space: Space, net: nn.Module, norm_obs: bool = True,
                 head: Head | None = None, seed: int = 0, obs_limit: float = 10.0):
        super().__init__()
        self.obs_space, self.act_space, self.seed, self.draws = obs_space, act_space, seed, 0
        seen = ObservationLayout(obs_space, act_space)
        self.observer = ObservationNormaliser(seen, norm_obs, getattr(net, "flat", False), obs_limit)
        self.net, self.head = net, make_head(act_space) if head is None else head
        self.actions = ActionMapping(act_space, self.head.form)
        self.memory = getattr(net, "state_size", 0)

    def forward(self, obs: Any) -> tuple[Any, Tensor]:
        """(action parameters [b p], value [b]) of stored observations [b ...], without a past."""
        rows = self.observer.seen.columns[0].leaf.of(obs).shape[0]
        return self.advance(obs, self.start(rows))[:2]

    def advance(self, obs: Any, state: Tensor) -> tuple[Any, Tensor, Tensor]:
        """(action parameters [b p], value [b], state after) of observations, state [b s] before."""
        seen = self.observer(obs)
        params, val, *state = (*self.net(seen), state) if not self.memory else self.net(seen, state)
        return self.head.masked(params, self.observer.mask(obs)), val, *state

    def start(self, rows: int) -> Tensor:
        """The state [rows s] in which an episode begins."""
        return self.observer.count.new_zeros(rows, self.memory, dtype=torch.float32)

    def judge(self, obs: Any, act: Tensor, past: Sequences | tuple = ()
              ) -> tuple[Tensor, Tensor, Tensor]:
        """(logp [b] of act, entropy [b], value [b]); with a `past` the samples are sequences."""
        if past:
            seen, packing = self.observer(obs), SequencePacking.of(past.first)
            params, val = unroll_network(self.net, seen, past.state, packing)
            params = self.head.masked(params, self.observer.mask(obs))
        else:
            params, val = self(obs)
        return *self.head.judge(params, act), val

    @torch.inference_mode()
    def act(self, rows: np.ndarray, noise: np.ndarray, state: np.ndarray) -> Acted:
        """Sample for stored observations with `noise` [b k], the memory being `state` [b s]."""
        params, val, state = self.advance(self.observer.tensors(rows), self._tensor(state))
        act, logp = self.head.sample(params, self._tensor(noise))
        return Acted(*(x.cpu().numpy() for x in (act, logp, val, state)))

    @torch.inference_mode()
    def worth(self, rows: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The value f32 [b] of stored observations, the memory being `state` [b s]."""
        return self.advance(self.observer.tensors(rows), self._tensor(state))[1].cpu().numpy()

    @torch.inference_mode()
    def value(self, obs: Any) -> np.ndarray:
        """The value f32 of one raw observation, or [b] of a batch; of one with NaN it is NaN.

        Of a policy with memory it is the value at an episode's start, whatever was seen before.
        Raises InputError for what training would refuse: another shape, a dtype that is not kept.
        """
        rows, single = predict_input.stored_batch(obs, self.observer.seen, True)
        val = self(self.observer.tensors(rows))[1].cpu().numpy()
        return val[0] if single else val

    @torch.inference_mode()
    def predict(self, obs: Any, deterministic: bool = True, noise: np.ndarray | None = None,
                state: np.ndarray | None = None, action_mask: Any = None) -> Any:
        """The environment's action for one raw observation, or an array of them for a batch.

        Deterministic: the likeliest action; else sampled with `noise` [b k], by default numbers
        counted from the policy's first call. A policy with memory returns (action, state), and is
        given that `state` with the next observation; without one an episode begins. `action_mask`,
        bool [choices] or [b choices], is that of an environment which has it in its infos or a
        method. Raises InputError as `value` does, for what is not finite, and for no legal action;
        Error where the network answers NaN.
        """
        rows, single = predict_input.stored_batch(obs, self.observer.seen, action_mask)
        predict_input.check_rows(rows, self.observer.seen)
        predict_input.check_state(state, len(rows), self.memory)
        found, after = self.decide(rows, deterministic, noise, state)
        actions = found[0] if single else self.actions.stacked(found)
        return (actions, after) if self.memory else actions

    @torch.inference_mode()
    def decide(self, rows: np.ndarray, deterministic: bool = True, noise: np.ndarray | None = None,
               state: np.ndarray | None = None) -> tuple[list[Any], np.ndarray]:
        """(the environment's actions, state [b s] after) for stored observations; see predict."""
        obs = self.observer.tensors(rows)
        before = self.start(len(rows)) if state is None else self._tensor(state)
        params, _, after = self.advance(obs, before)
        predict_input.check_parameters(params)
        if deterministic:
            act = self.head.mode(params)
        else:
            noise = self._noise(len(rows)) if noise is None else noise
            act = self.head.sample(params, self._tensor(noise))[0]
        return self.actions.to_env()(act.cpu().numpy()), after.cpu().numpy()

    def _noise(self, count: int) -> np.ndarray:
        self.draws += 1
        return ActionNoise(self.head.noise, self.seed, 0, count).at(self.draws, Purpose.EVALUATE)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.observer.count.device)
