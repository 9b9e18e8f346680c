"""The processes that torchrun starts for one run, connected by torch.distributed.

    a rank's environments step into columns [first, last) of the arena  ->  the other columns of
    act logp val raw nxt term trunc ... come from the other ranks; observations stay where they are
"""

import contextlib
import os
import re
import signal
import threading
from datetime import timedelta
from typing import Any, Iterator, Sequence

import numpy as np
import torch
import torch.distributed as dist

from fastppo.config import Config, having
from fastppo.errors import ConfigError, RankError
from fastppo.machine import limits
from fastppo.machine.shared_memory import Arena
from fastppo.stepping.replay import ResumedEpisodes
from fastppo.stepping.rollout_recorder import read_infos, rows_by_step, write_infos

LONGEST_WAIT = timedelta(hours=24)  # while rank 0 evaluates, the others wait
stores: list[Any] = []  # those through which this process has met the others; the last counts
# Arrays [t e ...] that every rank has completely after a rollout.
EXCHANGED = ("act", "logp", "val", "raw", "nxt", "term", "trunc", "valid", "same_game", "total",
             "length")


class Ranks(limits.OneProcess):
    """The ranks of a run that torchrun has started; see OneProcess.

    Rank r of n has environments [E*r/n, E*(r+1)/n). Raises RankError if another one has ended.
    """

    def __init__(self, backend: str = "auto", device_ids: Sequence[int] | None = None):
        self.rank, self.size = limits.rank_of_process(), limits.rank_count()
        self.owned = not dist.is_initialized()
        with as_rank_error(), _ended_by_sigterm():
            if self.owned:
                nccl = backend != "gloo" and nccl_fits(device_ids)
                _connect("cpu:gloo,cuda:nccl" if nccl else "gloo")
            self.group = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)  # for objects

    def gather(self, one: Any) -> list[Any]:
        """The objects that all ranks give, in the order of the ranks."""
        found: list[Any] = [None] * self.size
        with as_rank_error():
            dist.all_gather_object(found, one, group=self.group)
        return found

    def join(self, *tensors: Any) -> list[Any]:
        """Tensors [t e ...] of this rank's environments, completed by those of the others."""
        parts = self.gather([x.clone() for x in tensors])  # a view would be sent with all it is of
        return [torch.cat(found, 1) for found in zip(*parts)]

    def add(self, tensor: torch.Tensor) -> None:
        """Replaces a tensor by the sum over all ranks, which has the same bits in all of them."""
        with as_rank_error():
            dist.all_reduce(tensor)

    def close(self) -> None:
        """Leaves the group of processes, if it was made here; a second call does nothing."""
        if self.owned:
            self.owned = False
            dist.destroy_process_group()


def _connect(backends: str) -> None:
    """Connects the processes of this attempt of torchrun.

    The prefix keeps the addresses of an earlier attempt apart, which gloo would try otherwise, and
    those of an earlier trainer of a script.
    """
    store, rank, size = next(iter(dist.rendezvous("env://", timeout=LONGEST_WAIT)))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    stores.append(dist.PrefixStore(f"attempt {attempt}, trainer {len(stores)}", store))
    dist.init_process_group(backends, store=stores[-1], rank=rank, world_size=size,
                            timeout=LONGEST_WAIT)


def first_to_report() -> bool:
    """True, once, for the first of the processes that asks; and if it cannot ask the others."""
    with contextlib.suppress(RuntimeError):  # the process with the store has ended
        return not stores or stores[-1].add("reported", 1) == 1
    return True


def check_same_settings(config: Config, ranks: Ranks) -> None:
    """Raises ConfigError for a setting with another value in another process."""
    first, *others = ranks.gather({name: repr(value) for name, value in vars(config).items()
                                   if name not in having("of_rank")})
    for rank, other in enumerate(others, 1):
        for name, value in first.items():
            if other[name] != value:
                raise ConfigError(f"process 0 has {name}={value}, and process {rank}"
                                  f" {name}={other[name]}", "start all with the same settings")


def nccl_fits(device_ids: Sequence[int] | None) -> bool:
    """True if there is NCCL, which needs GPUs that no processes share."""
    numbers = [device_ids[i % len(device_ids)]
               for i in range(limits.ranks_here())] if device_ids else []
    return limits.gpus() > 0 and dist.is_nccl_available() and len({*numbers}) == len(numbers)


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
def as_rank_error() -> Iterator[None]:
    """Raises RankError for the RuntimeError with which torch reports that a connection is closed.

    What torch says of this process's own device, such as that its memory is full, has other types.
    """
    try:
        yield
    except RuntimeError as error:
        if type(error) is not RuntimeError and not isinstance(error, dist.DistError):
            raise
        text = str(error).partition("\n")[0]
        reason = "" if re.search("closed by peer|reset by peer", text, re.I) else f": {text}"
        raise RankError(f"another process of this run has ended{reason}",
                        "its own error says why") from error


class RankEnvs:
    """The calls of a Serial on `vec`, the environments [first, last) of a rank.

    After a rollout all ranks have the same arena but for the observations, of which only the last
    ones are exchanged: a checkpoint of one rank is one of the whole run.
    """

    def __init__(self, vec: Any, arena: Arena, ranks: Ranks):
        self.vec, self.arena, self.ranks = vec, arena, ranks
        self.own = ranks.own(arena["act"].shape[1])
        self.exchanged = -1  # the last iteration

    def __getattr__(self, name: str) -> Any:
        return getattr(self.vec, name)

    def begin(self, resumed: ResumedEpisodes | None = None) -> list[int]:
        """See Serial.begin; the environments that cannot continue are those of all ranks."""
        own = self.vec.begin(resumed and resumed.part(self.own.start, self.own.stop))
        return [e for found in self.ranks.gather([self.own[e] for e in own]) for e in found]

    def rollout(self, iteration: int) -> None:
        """Does what Serial.rollout does, and exchanges it: all columns, and infos of episodes."""
        self.vec.rollout(iteration)
        if iteration != self.exchanged:
            own = slice(self.own.start, self.own.stop)
            arrays = [array[:, own].copy() for array in self._shared_arrays()]
            parts = self.ranks.gather((arrays, read_infos(self.arena)))
            for views, columns in zip(self._shared_arrays(), zip(*(found for found, _ in parts))):
                np.concatenate(columns, 1, out=views)
            infos = sorted(pair for _, found in parts for pair in found.items())
            for slot in self.arena["infos"]:
                write_infos(slot, {})
            write_infos(self.arena["infos"][0], dict(infos))
            self.exchanged = iteration

    def _shared_arrays(self) -> list[np.ndarray]:
        """Views [t e ...] of all that is exchanged; the last observations and states as one row."""
        last = rows_by_step(self.arena["obs"], len(self.arena["raw"]))[-1]
        return [*(self.arena[name] for name in EXCHANGED), last[None], self.arena["rows"][None]]
