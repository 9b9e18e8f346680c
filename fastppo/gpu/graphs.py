"""The learner whose minibatch is one CUDA graph: captured once, then replayed.

    samples, order, rates -> static tensors;  replay: rows -> gradient -> Adam -> statistics

A replay reads from the device which minibatch is the next, so between the beginning of an epoch and
its end nothing is sent to the device or awaited. On the CPU the same step runs as it is.
Source: PyTorch's notes on CUDA semantics, "Whole-network capture".
"""

import gc
import logging
import warnings
from contextlib import nullcontext
from typing import Callable

import torch
from torch import Tensor

from fastppo.config import Config, having
from fastppo.errors import Error
from fastppo.learner import Learner
from fastppo.networks.frame_stacks import FrameStacks
from fastppo.networks.torch_state import preserved_buffers
from fastppo.policy import Policy
from fastppo.spaces.leaves import tree_map
from fastppo.update.batches import Batch
from fastppo.update.flat_parameters import FlatParameters, restored_at_end
from fastppo.update.schedules import Coefficients
from fastppo.update.statistics import Statistics

WARM_UP = 3  # steps before the capture, in which libraries choose their kernels

# Why the first capture of this process failed. Torch's allocator then refuses every other one, and
# torch 2.11 random numbers on the GPU; so what waits for the GPU is refused before a capture.
failures: list[str] = []
log = logging.getLogger("fastppo")


def captured(step: Callable[[], None], repeat: Callable[[], None] = lambda: None
             ) -> Callable[[], None]:
    """The function that replays `step` on the current device; before that it runs some times.

    `repeat` is called after each of these runs, and undoes what the next one must not see. Raises
    Error, which says why, if that is impossible, or if an earlier capture has failed.
    """
    if failures:
        raise Error(f"an earlier capture in this process has failed: {failures[0]}")
    graph, side, own = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.current_stream()
    begun, mode, collects = False, torch.cuda.get_sync_debug_mode(), gc.isenabled()
    gc.disable()  # a capture in which an older graph is destroyed fails
    try:
        side.wait_stream(own)
        with torch.cuda.stream(side):
            for left in reversed(range(WARM_UP)):
                if not left:
                    with warnings.catch_warnings(action="ignore"):  # that this is a prototype
                        torch.cuda.set_sync_debug_mode("error")
                step()
                repeat()
        torch.cuda.set_sync_debug_mode(mode)
        own.wait_stream(side)
        begun = True
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            step()
    except Exception as error:  # a model of the user's may do what no graph can have
        text = in_one_line(error.__context__ or error)
        failures.extend([text] * begun)
        raise Error(text) from error
    finally:
        torch.cuda.set_sync_debug_mode(mode)
        if collects:
            gc.enable()
        torch.cuda.set_stream(own)  # where a capture fails it is another one
        own.wait_stream(side)
    return graph.replay


def in_one_line(error: BaseException) -> str:
    """The type of an error and the first line of its text.

    A function, because a caller's variable would keep the error, and it the tensors of the step.
    """
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


class StaticEpoch:
    """The tensors that a captured minibatch reads and writes, always at the same places."""

    def __init__(self, batch: Batch, order: Tensor, coefs: Coefficients, count: int):
        self.samples = Batch(*(tree_map(lambda x: x.clone(), field) for field in batch))
        self.order = order.clone().view(count, -1)  # i64 [minibatches rows]
        # See DeviceAdam.planned; these, of a trial, change no weight.
        self.rates = torch.tensor([[0.0, 0.0, 1.0]] * count, device=order.device)
        scheduled = (name for name in having("in_loss") if getattr(coefs, name) is not None)
        self.coefs = coefs._replace(**{name: order.new_zeros((), dtype=torch.float32)
                                       for name in scheduled})
        self.at = order.new_zeros(1)  # the number of the next minibatch
        self.names: list[str] = []
        self.rows: Tensor | None = None  # f32 [minibatches names]

    def fill(self, batch: Batch, order: Tensor, coefs: Coefficients, rates: Tensor) -> None:
        """Copies an epoch into the tensors, and begins it."""
        for own, given in zip(tensors_of(self.samples), tensors_of(batch), strict=True):
            own.copy_(given)
        self.order.copy_(order.view_as(self.order))
        self.rates.copy_(rates, non_blocking=True)
        for name in having("in_loss"):
            if (number := getattr(self.coefs, name)) is not None:
                number.fill_(getattr(coefs, name))
        self.at.zero_()

    def record(self, stats: Statistics) -> None:
        """Keeps the statistics of a minibatch; the next one is the next."""
        row = torch.stack([*stats.values()])
        if self.rows is None:
            self.names, self.rows = [*stats], row.new_zeros(len(self.order), len(row))
        self.rows.index_copy_(0, self.at, row[None])
        self.at.add_(1)


class GraphedLearner(Learner):
    """A Learner that replays its minibatch; equal to it but for the rounding of Adam.

    Learner's own are the epochs that a graph cannot have, with another number of samples than the
    first or with minibatches of two sizes, and all epochs if there is a `reason` against a graph.
    """

    def __init__(self, policy: Policy, config: Config, flat: FlatParameters):
        super().__init__(policy, config, flat)
        self.static: StaticEpoch | None = None
        self.replay: Callable[[], None] | None = None
        self.reason = ""
        if policy.memory:
            self._do_without("its network has a memory")

    def _epoch(self, batch: Batch, order: Tensor, coefs: Coefficients) -> Statistics:
        count = self.config.num_minibatches
        with torch.cuda.device(order.device) if order.is_cuda else nullcontext():
            if self.replay is None and not self.reason and not len(order) % count:
                self.static = StaticEpoch(batch, order, coefs, count)
                try:
                    self.static.fill(batch, order, coefs, self.static.rates)
                    with preserved_buffers(self.policy), restored_at_end(self.stateful):
                        self.replay = self._step if not order.is_cuda else captured(
                            self._step, self.static.at.zero_)
                except Error as error:
                    self.static = None
                    self._do_without(f"its minibatch cannot be captured: {error.what}")
            if self.replay is None or len(order) != self.static.order.numel():
                self.optimizer.numbers = None
                return super()._epoch(batch, order, coefs)
            self.static.fill(batch, order, coefs, self.optimizer.planned(count))
            for _ in range(count):
                self.replay()
            return dict(zip(self.static.names, self.static.rows.mean(0)))

    def _step(self) -> None:
        """The next minibatch of the static epoch."""
        static = self.static
        batch = static.samples.rows(static.order.index_select(0, static.at)[0])
        self.optimizer.numbers = static.rates.index_select(0, static.at)[0]
        static.record(self._minibatch(batch, static.coefs))

    def _do_without(self, reason: str) -> None:
        """Warns of a reason for which all epochs are Learner's."""
        self.reason = reason
        log.warning("the update runs without a CUDA graph, because %s", reason)


def tensors_of(batch: Batch) -> list[Tensor]:
    """All tensors of a batch, in order."""
    found: list = []
    for field in batch:
        tree_map(found.append, field)
    return [x for one in found for x in (
        (one.frames, one.stacks) if isinstance(one, FrameStacks) else (one,))]
