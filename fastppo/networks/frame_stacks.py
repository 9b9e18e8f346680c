"""Stacked images of which each frame is stored once."""

from typing import Any

import torch
from torch import Tensor

from fastppo.errors import InputError
from fastppo.machine.shared_memory import Arena


class FrameStacks:
    """Observations [... k h w]: `frames` [n h w], and `stacks` i64 [... k], the numbers of theirs.

    It stands for the tensor of the observations. `flatten`, `narrow`, `index_select`, `to`
    and `clone` return FrameStacks and copy no stack; an index returns a tensor, and so does every
    other method of tensors, which makes the whole tensor first. What is written must be written to
    `frames`, which stacks share: an assignment or a method in place raises InputError.
    """

    def __init__(self, frames: Tensor, stacks: Tensor):
        self.frames, self.stacks = frames, stacks
        self.shape = torch.Size((*stacks.shape, *frames.shape[1:]))
        self.dtype, self.device = frames.dtype, frames.device

    def __len__(self) -> int:
        return len(self.stacks)

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, tuple):  # it may reach into the frames
            return self.tensor()[index]
        return FrameStacks(self.frames, self.stacks[index]).tensor()

    def __setitem__(self, index: Any, value: Any) -> None:
        raise _read_only()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("_"):
            raise _read_only()
        return getattr(self.tensor(), name)

    def tensor(self) -> Tensor:
        """The observations as a tensor of their own."""
        return self.frames.index_select(0, self.stacks.reshape(-1)).reshape(self.shape)

    def flatten(self, first: int, last: int) -> "FrameStacks":
        """The same with axes `first` to `last`, which are no frames', as one."""
        return FrameStacks(self.frames, self.stacks.flatten(first, last))

    def narrow(self, axis: int, first: int, length: int) -> "FrameStacks":
        """Those from `first` on along an axis that is no frame's."""
        return FrameStacks(self.frames, self.stacks.narrow(axis, first, length))

    def index_select(self, axis: int, which: Tensor) -> "FrameStacks":
        """Those at `which`, i64 [n], along an axis that is no frame's."""
        return FrameStacks(self.frames, self.stacks.index_select(axis, which))

    def to(self, device: torch.device, **how: bool) -> "FrameStacks":
        """The same on `device`; with a dtype, the frames as that."""
        stacks = self.stacks if isinstance(device, torch.dtype) else self.stacks.to(device, **how)
        return FrameStacks(self.frames.to(device, **how), stacks)

    def clone(self) -> "FrameStacks":
        """The same in memory of their own."""
        return FrameStacks(self.frames.clone(), self.stacks.clone())


def _read_only() -> InputError:
    """The error for stacked observations that are written to."""
    return InputError("stacked observations are read from single frames, and cannot be written to",
                      "change rollout.obs.frames, which the stacks share")


def stacked_observations(arena: Arena) -> FrameStacks:
    """The observations [t+1 e ...] of a rollout whose frames are in the arena once each."""
    frames, stacks = (torch.from_numpy(arena[name]) for name in ("frames", "stacks"))
    return FrameStacks(frames.flatten(0, 1), stacks)
