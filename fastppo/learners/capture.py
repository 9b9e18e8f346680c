"""Captures a step of fixed tensors as a CUDA graph.

Source: PyTorch's notes on CUDA semantics, "Whole-network capture".
"""

import gc
import warnings
from typing import Callable

import torch

from fastppo.errors import Error

WARM_UP = 3  # steps before the capture, in which libraries choose their kernels

# Why the first capture of this process failed. Torch's allocator then refuses every other one, and
# torch 2.11 random numbers on the GPU; so what waits for the GPU is refused before a capture.
failures: list[str] = []


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
        cause = error.__context__ or error
        text = f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}"
        failures.extend([text] * begun)
        raise Error(text) from error
    finally:
        torch.cuda.set_sync_debug_mode(mode)
        if collects:
            gc.enable()
        torch.cuda.set_stream(own)  # where a capture fails it is another one
        own.wait_stream(side)
    return graph.replay
