"""Times a GRU over packed sequences, forward and backward: the compiled one and torch's.

    python bench/recurrent.py [ROUNDS]
"""

import statistics
import sys
import time

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from fastppo.networks import recurrent
from fastppo.networks.recurrent import SequencePacking

STEPS, FEATURES, SIZE = 128, 64, 128


def torch_gru(cell: nn.GRU, features, state, sizes):
    """The outputs of torch's own GRU."""
    return cell(PackedSequence(features, sizes), state[None])[0].data


def seconds(function, cell, features, state, sizes) -> float:
    """The time of one forward and backward pass."""
    start = time.perf_counter()
    function(cell, features, state, sizes).sum().backward()
    return time.perf_counter() - start


def table_row(count: int, rounds: int) -> str:
    """A row of the table: `count` sequences of STEPS steps, both in turns."""
    first = torch.arange(count * STEPS) % STEPS == 0
    packing, cell = SequencePacking.of(first), nn.GRU(FEATURES, SIZE)
    arrays = torch.randn(count * STEPS, FEATURES), torch.zeros(count, SIZE), packing.sizes
    functions = torch_gru, recurrent.unroll_gru
    times = [[seconds(function, cell, *arrays) for function in functions]
             for _ in range(rounds + 1)][1:]  # the first round is warm-up
    torchs, ours = (statistics.median(one) * 1e3 for one in zip(*times))
    return f"| {count} x {STEPS} | {torchs:.1f} | {ours:.1f} | {torchs / ours:.1f}x |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| sequences | torch, ms | compiled, ms | ratio |\n|---|---|---|---|")
    for sequences in (2, 8, 32):
        print(table_row(sequences, int(sys.argv[1]) if len(sys.argv) > 1 else 9))
