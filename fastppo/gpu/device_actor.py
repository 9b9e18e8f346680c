"""Central acting on a device: observations go there once, and stay for the update.

    arena obs[t] of a group -> mirror -> one graph: network, sampling -> act logp val state -> arena

The graph of a group reads and writes tensors at fixed places. On the CPU the same step runs as it
is, on a mirror in ordinary memory.
"""

import logging
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fastppo.errors import Error
from fastppo.gpu.graphs import captured
from fastppo.machine.shared_memory import Arena
from fastppo.networks.frame_stacks import FrameStacks
from fastppo.policy import Policy
from fastppo.spaces.leaves import leaf_arrays
from fastppo.spaces.observations import ObservationLayout
from fastppo.stepping.actors import CentralActor
from fastppo.stepping.rollout_recorder import rows_by_step

log = logging.getLogger("fastppo")


class ObservationMirror:
    """The observations [t+1 e ...] of the arena's rollout on a device, copied step by step.

    Of stacked images the frames, each of which is copied once, and the numbers of those in a stack.
    """

    def __init__(self, arena: Arena, layout: ObservationLayout, device: torch.device):
        self.arena, self.layout, self.steps = arena, layout, len(arena["raw"])
        self.device = device
        self.rows = rows_by_step(arena["obs"], self.steps)
        self.stacked = len(arena["frames"]) > 0
        shape = self.steps + 1, *arena["obs"].shape[1:2]
        arrays = [arena["stacks"]] if self.stacked else [
            np.empty((*shape, *x.shape[2:]), x.dtype) for x in leaf_arrays(arena["obs"])]
        self.parts = [torch.zeros(x.shape, dtype=torch.from_numpy(x).dtype, device=device)
                      for x in arrays]
        if self.stacked:
            frames = torch.from_numpy(arena["frames"])
            self.frames = torch.zeros_like(frames, device=device)
            self.newest = fixed_memory(torch.empty_like(frames[:, 0]), device)

    def upload(self, t: int, part: slice = slice(None)) -> None:
        """Copies the observations of step t."""
        if self.stacked:
            depth, frames = self.arena["stacks"].shape[2], self.arena["frames"]
            if t == 0:  # those with which the rollout begins
                self.frames[part, :depth] = torch.from_numpy(frames[part, :depth]).to(self.frames)
            else:
                self.newest[part] = torch.from_numpy(frames[part, t + depth - 1])
                self.frames[part, t + depth - 1].copy_(self.newest[part], non_blocking=True)
        own = [self.arena["stacks"][t]] if self.stacked else leaf_arrays(self.rows[t])
        for there, here in zip(self.parts, own):
            there[t, part].copy_(torch.from_numpy(here[part]), non_blocking=True)

    def wait(self) -> None:
        """Waits until a GPU has what was uploaded: the memory that it comes from may change."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    def structure(self) -> Any:
        """All observations in the structure of their space, stacks as FrameStacks."""
        return self._stacks(self.parts[0]) if self.stacked else self.layout.structure(self.parts)

    def tensors(self, parts: Sequence[Tensor]) -> Any:
        """The observations whose `parts` are given, tensors in the structure of their space."""
        return self._stacks(parts[0]).tensor() if self.stacked else self.layout.structure(parts)

    def _stacks(self, numbers: Tensor) -> FrameStacks:
        return FrameStacks(self.frames.flatten(0, 1), numbers)


class GroupStep:
    """The choice of actions for a group of environments, captured when it runs first."""

    def __init__(self, policy: Policy, mirror: ObservationMirror, group: range):
        self.policy, self.mirror, self.part = policy, mirror, slice(group.start, group.stop)
        device, rows = policy.observer.count.device, len(group)
        self.inputs = [torch.zeros_like(x[0, self.part]) for x in mirror.parts]
        self.noise = torch.zeros(rows, len(policy.head.noise), device=device)
        self.state = policy.initial_state(rows)
        self.replay, self.outputs, self.results = None, [], []

    @torch.no_grad()
    def __call__(self, t: int, noise: np.ndarray, state: np.ndarray) -> list[np.ndarray]:
        """[act, logp, value, next state], good until the next call."""
        for own, there in zip(self.inputs, self.mirror.parts):
            own.copy_(there[t, self.part])
        self.noise.copy_(torch.from_numpy(noise), non_blocking=True)
        self.state.copy_(torch.from_numpy(state), non_blocking=True)
        if self.replay is None:
            self.replay = self._step
            try:
                if self.noise.is_cuda:
                    with torch.cuda.device(self.noise.device):
                        self.replay = captured(self._step)
            except Error as error:
                log.warning("actions are chosen without a CUDA graph, because their step cannot be"
                            " captured: %s", error.what)
        self.replay()
        self.results = self.results or [fixed_memory(torch.empty_like(x, device="cpu"), x.device)
                                        for x in self.outputs]
        for own, there in zip(self.results, self.outputs):
            own.copy_(there, non_blocking=True)
        self.mirror.wait()
        return [x.numpy() for x in self.results]

    def _step(self) -> None:
        params, val, after = self.policy.step(self.mirror.tensors(self.inputs), self.state)
        self.outputs = [*self.policy.head.sample(params, self.noise), val, after]


class DeviceActor(CentralActor):
    """A CentralActor with a mirror of the observations on the device of its policy."""

    def __init__(self, arena: Arena, policy: Policy, groups: Sequence[range], seed: int):
        super().__init__(arena, policy, groups, seed)
        self.mirror = ObservationMirror(arena, policy.observer.layout, policy.observer.count.device)
        self.chosen = {group: GroupStep(policy, self.mirror, group) for group in groups}

    def attach(self, collector: Any) -> None:
        """Makes the observations of the rollout and of the warm-up those on the device."""
        vec = collector.vec
        vec.warmup = partial(self._warmup, vec.warmup)
        collector.rollout = collector.rollout._replace(obs=self.mirror.structure())

    def _warmup(self, warmup: Callable[[int], None], steps: int) -> None:
        """Does what the environments' `warmup` does, and copies its observations."""
        warmup(steps)
        for t in range(steps):
            self.mirror.upload(t)
            self.mirror.wait()  # the next newest frames have the same place

    def choose(self, t: int, group: range, noise: np.ndarray, state: np.ndarray
               ) -> Sequence[np.ndarray]:
        """See CentralActor."""
        self.mirror.upload(t, slice(group.start, group.stop))
        return self.chosen[group](t, noise, state)

    @torch.no_grad()
    def values(self, t: int, group: range) -> np.ndarray:
        """See CentralActor."""
        part = slice(group.start, group.stop)
        self.mirror.upload(t, part)
        obs = self.mirror.tensors([x[t, part] for x in self.mirror.parts])
        state = torch.from_numpy(self.arena["state"][t, part]).to(self.chosen[group].state)
        return self.policy.step(obs, state)[1].cpu().numpy()


def fixed_memory(x: Tensor, device: torch.device) -> Tensor:
    """`x` in memory that the system may not move, for copies that a GPU makes by itself."""
    if device.type != "cuda":
        return x
    with torch.cuda.device(device):
        return x.pin_memory()


@contextmanager
def pinned(arena: Arena, device: str) -> Iterator[bool]:
    """Registers the arena with CUDA, for the GPU `device`; yields whether that worked.

    A copy from it to the device then need not wait.
    """
    runtime, block = torch.cuda.cudart(), arena.block
    with torch.cuda.device(device):  # any other GPU would get a context, and lose memory to it
        code = int(runtime.cudaHostRegister(block.ctypes.data, block.nbytes, 0))
    if code:
        with suppress(RuntimeError):  # CUDA tells of the refusal again, at the next launch
            torch.zeros(1, device=device)
        log.warning("the shared memory is not pinned, so copies from it to the GPU are slower:"
                    " cudaHostRegister answered %d", code)
    try:
        yield not code
    finally:
        if not code:
            with torch.cuda.device(device):
                runtime.cudaHostUnregister(block.ctypes.data)
