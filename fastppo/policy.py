"""The policy: normaliser, network and action head as one module, raw observations to actions."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import Tensor, nn

from fastppo.machine.kernels import ActionNoise, Purpose
from fastppo.networks import predict_input
from fastppo.networks.action_heads import Head, make_head
from fastppo.networks.normaliser import ObservationNormaliser
from fastppo.spaces.actions import ActionMapping
from fastppo.spaces.observations import ObservationLayout

if TYPE_CHECKING:
    from fastppo.networks.recurrent import Sequences


class Policy(nn.Module):
    """An actor-critic for one pair of spaces; the observation moments are part of it.

    `net(x) -> (params [b p], value [b])`: x is what the normaliser makes of observations [b ...],
    p the `size` of the head. A recurrent network has a `state_size` s, the `memory` of the policy:
    `net(x, state [b s]) -> (params, value, next state [b s])`.
    """

    def __init__(self, obs_space: Space, act_space: Space, net: nn.Module, norm_obs: bool = True,
                 head: Head | None = None, seed: int = 0, obs_limit: float = 10.0):
        super().__init__()
        self.obs_space, self.act_space, self.seed, self.draws = obs_space, act_space, seed, 0
        self.observer = ObservationNormaliser(
            ObservationLayout(obs_space, act_space), norm_obs, getattr(net, "flat", False),
            obs_limit, getattr(net, "image_leaves", None))
        self.net, self.head = net, make_head(act_space) if head is None else head
        self.actions = ActionMapping(act_space, self.head.bounds_map)
        self.memory = getattr(net, "state_size", 0)

    def forward(self, obs: Any) -> tuple[Any, Tensor]:
        """(action parameters [b p], value [b]) of stored observations [b ...], episodes' first."""
        rows = self.observer.layout.leaves[0].leaf.of(obs).shape[0]
        return self.step(obs, self.initial_state(rows) if self.memory else ())[:2]

    def step(self, obs: Any, state: Tensor) -> tuple[Any, Tensor, Tensor]:
        """(action parameters [b p], value [b], next state [b s]) of stored observations [b ...]."""
        x = self.observer(obs)
        params, val, *state = self.net(x, state) if self.memory else (*self.net(x), state)
        return self.head.masked(params, self.observer.mask(obs)), val, *state

    def initial_state(self, rows: int) -> Tensor:
        """The recurrent state f32 [rows s] at the start of an episode."""
        return self.observer.count.new_zeros(rows, self.memory, dtype=torch.float32)

    def evaluate_actions(self, obs: Any, act: Tensor, sequences: "Sequences | tuple" = ()
                         ) -> tuple[Tensor, Tensor, Tensor]:
        """(logp [b] of act, entropy [b], value [b]); `sequences` if the network is recurrent."""
        if sequences:
            from fastppo.networks.recurrent import SequencePacking, unroll_network
            packing = SequencePacking.of(sequences.first)
            params, val = unroll_network(self.net, self.observer(obs), sequences.state, packing)
            params = self.head.masked(params, self.observer.mask(obs))
        else:
            params, val = self(obs)
        return *self.head.evaluate(params, act), val

    @torch.inference_mode()
    def act(self, rows: np.ndarray, noise: np.ndarray, state: np.ndarray) -> list[np.ndarray]:
        """[act, logp, value, next state], each [b ...], sampled with `noise` [b k]."""
        params, val, state = self.step(self.observer.tensors(rows), self._tensor(state))
        sampled = self.head.sample(params, self._tensor(noise))
        return [x.cpu().numpy() for x in (*sampled, val, state)]

    @torch.inference_mode()
    def values(self, rows: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The values f32 [b] of stored observations [b ...], with `state` [b s]."""
        return self.step(self.observer.tensors(rows), self._tensor(state))[1].cpu().numpy()

    @torch.inference_mode()
    def value(self, obs: Any) -> np.ndarray:
        """The value f32 of one raw observation, or [b] of a batch; raises InputError as `predict`.

        A recurrent policy takes every observation as the first of an episode.
        """
        rows, single = predict_input.stored_batch(obs, self.observer.layout, True)
        val = self(self.observer.tensors(rows))[1].cpu().numpy()
        return val[0] if single else val

    @torch.inference_mode()
    def predict(self, obs: Any, deterministic: bool = True, noise: np.ndarray | None = None,
                state: np.ndarray | None = None, action_mask: Any = None) -> Any:
        """The environment's action for one raw observation, or an array of them for a batch.

        Deterministic: the likeliest action; else sampled with `noise` [b k], which by default
        depends on the policy's seed and the number of its calls. A recurrent policy returns
        (action, state); give that `state` with the next observation, None begins an episode.
        `action_mask`, bool [choices] or [b choices], is the mask of an environment that returns it
        in its infos or from a method. Raises InputError for an observation that training refuses,
        such as another shape or dtype or a number that is not finite, for a dict that lacks keys,
        and if no action is legal; Error if the network returns NaN.
        """
        rows, single = predict_input.stored_batch(obs, self.observer.layout, action_mask)
        predict_input.check_state(state, len(rows), self.memory)
        if not deterministic and noise is None:
            self.draws += 1
            maker = ActionNoise(self.head.noise, self.seed, 0, len(rows))
            noise = maker.at(self.draws, Purpose.EVALUATE)
        found, after = self.decide(rows, None if deterministic else noise, state)
        actions = found[0] if single else self.actions.stacked(found)
        return (actions, after) if self.memory else actions

    @torch.inference_mode()
    def decide(self, rows: np.ndarray, noise: np.ndarray | None = None,
               state: np.ndarray | None = None) -> tuple[list[Any], np.ndarray]:
        """(the environment's actions, next state [b s]) for stored observations [b ...].

        The likeliest actions, or with `noise` [b k] sampled ones. Without `state` episodes begin.
        """
        before = self.initial_state(len(rows)) if state is None else self._tensor(state)
        params, _, after = self.step(self.observer.tensors(rows), before)
        predict_input.check_parameters(params)
        act = self.head.mode(params) if noise is None else self.head.sample(
            params, self._tensor(noise))[0]
        return self.actions.to_env()(act.cpu().numpy()), after.cpu().numpy()

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.observer.count.device)
