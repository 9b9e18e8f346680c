"""Captures a step of fixed tensors as a CUDA graph.

Source: PyTorch's notes on CUDA semantics, "Whole-network capture".
"""

from typing import Callable

import torch

WARM_UP = 3  # steps before the capture, in which libraries choose their kernels


def captured(step: Callable[[], None], repeat: Callable[[], None] = lambda: None
             ) -> Callable[[], None]:
    """The function that replays `step` on the current device; before that it runs some times.

    `repeat` is called after each of these runs, and undoes what the next one must not see. Raises
    what `step` raises, or torch for what no graph can have.
    """
    graph, side, own = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.current_stream()
    try:
        side.wait_stream(own)
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                step()
                repeat()
        own.wait_stream(side)
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            step()
    finally:
        torch.cuda.set_stream(own)  # where a capture fails it is another one
        own.wait_stream(side)
    return graph.replay


def failure_text(error: Exception) -> str:
    """Why a capture failed, in a line."""
    cause = error.__context__ or error
    return f"{type(cause).__name__}: {str(cause).partition(chr(10))[0]}"
