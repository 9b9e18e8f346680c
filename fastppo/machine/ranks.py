"""The processes that torchrun starts for one run, and what they tell each other.

Rank r of n has environments [E*r/n, E*(r+1)/n) of the run. torch.distributed connects the ranks;
it is imported only if there are several.
"""

import contextlib
import os
import re
import signal
import threading
from datetime import timedelta
from typing import Any, Iterator, Sequence

from fastppo.errors import ConfigError, RankError
from fastppo.machine import limits
from fastppo.settings.fixes import Set

LONGEST_WAIT = timedelta(hours=24)  # while rank 0 evaluates, the others wait
stores: list[Any] = []  # those through which this process has met the others; the last counts


class Ranks:
    """The ranks of a run, of which this process is number `rank` of `size`.

    All must make the same calls in the same order. Raises RankError if another one has ended.
    """

    def __init__(self, backend: str = "auto", device_ids: Sequence[int] | None = None):
        self.rank, self.size = rank_of_process(), rank_count()
        self.group, self.owned = None, False
        if self.size == 1:
            return
        import torch.distributed as dist
        self.dist, self.owned = dist, not dist.is_initialized()
        with _told_if_one_has_ended(), _ended_by_sigterm():
            if self.owned:
                _connect(_backends(backend, device_ids))
            self.group = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)  # for objects

    def first(self, count: int) -> int:
        """The first of `count` environments, or other things, that this rank has."""
        return count * self.rank // self.size

    def last(self, count: int) -> int:
        """The end of those that this rank has."""
        return count * (self.rank + 1) // self.size

    def gather(self, one: Any) -> list[Any]:
        """The objects that all ranks give, in the order of the ranks."""
        if self.size == 1:
            return [one]
        found: list[Any] = [None] * self.size
        with _told_if_one_has_ended():
            self.dist.all_gather_object(found, one, group=self.group)
        return found

    def join(self, *tensors: Any) -> list[Any]:
        """Tensors [t e ...] of this rank's environments, completed by those of the others."""
        if self.size == 1:
            return [*tensors]
        import torch
        parts = self.gather([x.clone() for x in tensors])  # a view would be sent with all it is of
        return [torch.cat(found, 1) for found in zip(*parts)]

    def share(self, one: Any) -> Any:
        """The object that rank 0 gives."""
        return self.gather(one)[0]

    def add(self, tensor: Any) -> None:
        """Replaces a tensor by the sum over all ranks, which has the same bits in all of them."""
        if self.size > 1:
            with _told_if_one_has_ended():
                self.dist.all_reduce(tensor)

    def close(self) -> None:
        """Leaves the group of processes, if it was made here; a second call does nothing."""
        if self.owned:
            self.owned = False
            self.dist.destroy_process_group()


def _connect(backends: str) -> None:
    """Connects the processes of this attempt of torchrun.

    The prefix keeps the addresses of an earlier attempt apart, which gloo would try otherwise, and
    those of an earlier trainer of a script.
    """
    import torch.distributed as dist
    store, rank, size = next(iter(dist.rendezvous("env://", timeout=LONGEST_WAIT)))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    stores.append(dist.PrefixStore(f"attempt {attempt}, trainer {len(stores)}", store))
    dist.init_process_group(backends, store=stores[-1], rank=rank, world_size=size,
                            timeout=LONGEST_WAIT)


def is_first_to_tell() -> bool:
    """True, once, for the first of the processes that asks; and if it cannot ask the others."""
    with contextlib.suppress(RuntimeError):  # the process with the store has ended
        return not stores or stores[-1].add("told", 1) == 1
    return True


def _backends(backend: str, device_ids: Sequence[int] | None) -> str:
    """The libraries of torch.distributed by device.

    Raises ConfigError if NCCL is asked for, and missing or for ranks that share a GPU.
    """
    import torch.distributed as dist
    numbers = [device_ids[i % len(device_ids)] for i in range(ranks_here())] if device_ids else []
    nccl = limits.gpus() > 0 and dist.is_nccl_available() and len({*numbers}) == len(numbers)
    if backend == "nccl" and not nccl:
        raise ConfigError("backend=nccl needs a GPU for each process, and a torch with NCCL",
                          Set(backend="gloo"))
    return "cpu:gloo,cuda:nccl" if nccl and backend != "gloo" else "gloo"


def rank_of_process() -> int:
    """The number of this process among those that torchrun has started; 0 without torchrun."""
    return int(os.environ.get("RANK", 0)) if rank_count() > 1 else 0


def rank_count() -> int:
    """The number of processes that torchrun has started; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", 1)) if "RANK" in os.environ else 1


def ranks_here() -> int:
    """The number of these processes on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", rank_count())) if rank_count() > 1 else 1


def device_number(device_ids: Sequence[int] | None) -> int:
    """The number of the GPU that this process uses: of `device_ids` that of its place here.

    Ranks share GPUs where there are fewer.
    """
    local = int(os.environ.get("LOCAL_RANK", 0)) if rank_count() > 1 else 0
    return device_ids[local % len(device_ids)] if device_ids else local


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the process inside: no handler runs while torch waits for other processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextlib.contextmanager
def _told_if_one_has_ended() -> Iterator[None]:
    """Raises RankError for the RuntimeError with which torch tells that a connection is closed.

    What torch says of this process's own device, such as that its memory is full, has other types.
    """
    import torch.distributed as dist
    try:
        yield
    except RuntimeError as error:
        if type(error) is not RuntimeError and not isinstance(error, dist.DistError):
            raise
        text = str(error).partition("\n")[0]
        reason = "" if re.search("closed by peer|reset by peer", text, re.I) else f": {text}"
        raise RankError(f"another process of this run has ended{reason}",
                        "its own error says why; torchrun --max_restarts=3 with --resume=auto"
                        " starts all of them again") from error
