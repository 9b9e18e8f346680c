"""A simulator that steps all its environments at once, with tensors on one device.

What PPO takes as one is any object with `device`, `num_envs`, `single_observation_space`,
`single_action_space` and

    reset(seed=...)  -> (obs [e ...], info)
    step(act)        -> (obs [e ...], rewards [e], terminated [e], truncated [e], info)

as Isaac Lab's environments have them. It resets an environment within the step that ends its
episode; if info has "final_obs", those are the observations [e ...] before these resets. Actions
are tensors on the device. Arrays of other libraries, such as JAX's, come without a copy by DLPack.
"""

from typing import Any, ContextManager, NamedTuple

import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from fastppo.envs import faults
from fastppo.errors import ConfigError
from fastppo.spaces.observations import ObservationLayout, StoredLeaf

NEEDED = "num_envs", "single_observation_space", "single_action_space", "reset", "step"


class Transition(NamedTuple):
    """The results of a step, tensors on the simulator's device."""

    obs: list[Tensor]  # the leaves [e ...], as stored
    rew: Tensor  # f32 [e]
    term: Tensor  # bool [e]
    trunc: Tensor  # bool [e]
    final: list[Tensor] | None  # leaves [e ...] of the observations before resets, if it has them


class Simulator(VectorEnv):
    """A simulator `env` as a VectorEnv; `transition` and `first` return checked tensors.

    Raises ConfigError for an object that is none, and EnvError for a fault. Checks wait for no
    device: they look at shapes, dtypes and devices, not at numbers.
    """

    def __init__(self, env: Any):
        if missing := [name for name in NEEDED if not hasattr(env, name)]:
            raise ConfigError(f"{type(env).__name__} has a device, as a simulator has, but no"
                              f" {missing[0]}", f"add {', '.join(missing)}, or remove `device`")
        self.env, self.num_envs = env, int(env.num_envs)
        self.simulator_name = type(env).__name__
        if str(env.device or "cpu").partition(":")[0] not in ("cpu", "cuda"):
            raise ConfigError(f"the simulator's device is {env.device!r}", "make it cpu or cuda")
        self.device = torch.empty(0, device=env.device or "cpu").device  # cuda is cuda:0
        self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.observation_space, self.action_space = (
            batch_space(space, self.num_envs)
            for space in (env.single_observation_space, env.single_action_space))
        given = getattr(env, "metadata", None) or {}
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP, **given}
        if self.metadata["autoreset_mode"] is not AutoresetMode.SAME_STEP:
            raise ConfigError(f"the simulator {type(env).__name__} has the autoreset mode"
                              f" {self.metadata['autoreset_mode']}", "reset an environment within"
                              " the step that ends its episode: AutoresetMode.SAME_STEP")
        self.layout = ObservationLayout(self.single_observation_space, self.single_action_space)
        self.starts = [None if leaf.counts is None else torch.from_numpy(leaf.start).to(self.device)
                       for leaf in self.layout.leaves]

    def first(self, seed: int) -> list[Tensor]:
        """Begins an episode in every environment; the leaves [e ...] of the observations."""
        with self.fault_in("reset()"):
            obs, _ = self.env.reset(seed=seed)
            return self._leaves(obs)

    def transition(self, act: Tensor) -> Transition:
        """Takes a step with actions [e ...]."""
        with self.fault_in("step()"):
            obs, rew, term, trunc, info = self.env.step(act)
            final = info.get("final_obs") if isinstance(info, dict) else None
            return Transition(
                self._leaves(obs), self._tensor(rew, "rewards", (self.num_envs,)).float(),
                self._flags(term, "terminations"), self._flags(trunc, "truncations"),
                None if final is None else self._leaves(final))

    def fault_in(self, field: str) -> ContextManager[None]:
        """Raises an EnvError that names the simulator and `field`."""
        return faults.fault_in(lambda: f"the simulator {self.simulator_name}", field,
                               "step the simulator alone to see it")

    def _leaves(self, obs: Any) -> list[Tensor]:
        return [self._stored(stored, start, stored.leaf.of(obs))
                for stored, start in zip(self.layout.leaves, self.starts)]

    def _stored(self, stored: StoredLeaf, start: Tensor | None, value: Any) -> Tensor:
        """A leaf [e ...] as the rollout stores it; choices count from 0."""
        x = self._tensor(value, str(stored.leaf), (self.num_envs, *stored.shape))
        if x.is_floating_point() and stored.dtype.kind != "f":
            raise ValueError(f"the {stored.leaf} is {x.dtype}, which {stored.dtype} does not keep")
        return x if start is None else x - start

    def _flags(self, value: Any, what: str) -> Tensor:
        if (x := self._tensor(value, what, (self.num_envs,))).is_floating_point():
            raise ValueError(f"the {what} are {x.dtype}, not bool")
        return x.bool()

    def _tensor(self, value: Any, what: str, shape: tuple[int, ...]) -> Tensor:
        if not hasattr(value, "__dlpack__"):
            raise ValueError(f"the {what}: {type(value).__name__}, not a tensor or an array")
        x = value.detach() if isinstance(value, Tensor) else torch.from_dlpack(value)
        if x.shape != shape or x.device != self.device:
            raise ValueError(f"the {what} is {list(x.shape)} on {x.device}, not {list(shape)} on"
                             f" {self.device}")
        return x


def as_simulator(env: Any) -> Any:
    """`env`, as a Simulator if it is an object with `device`, `step` and `reset`, but no class."""
    given = env is not None and not isinstance(env, (type, str, Simulator))
    has_all = all(hasattr(env, name) for name in ("device", "step", "reset"))
    return Simulator(env) if given and has_all else env
