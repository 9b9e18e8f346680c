"""A GRU over packed sequences, forwards and backwards: the compiled one beside torch's.

    python bench/recurrent.py [ROUNDS]
"""

import statistics
import sys
import time

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from fastppo.networks import compiled_gru
from fastppo.networks.recurrent import SequencePacking

STEPS, FEATURES, SIZE = 128, 64, 128


def by_torch(cell: nn.GRU, features, state, sizes):
    """What torch makes of it."""
    return cell(PackedSequence(features, sizes), state[None])[0].data


def seconds(way, cell, features, state, sizes) -> float:
    """Of one pass forwards and backwards."""
    start = time.perf_counter()
    way(cell, features, state, sizes).sum().backward()
    return time.perf_counter() - start


def compared(count: int, rounds: int) -> str:
    """A row of the table: `count` sequences of STEPS steps, the two by turns."""
    first = torch.arange(count * STEPS) % STEPS == 0
    packing, cell = SequencePacking.of(first), nn.GRU(FEATURES, SIZE)
    arrays = torch.randn(count * STEPS, FEATURES), torch.zeros(count, SIZE), packing.sizes
    ways = by_torch, compiled_gru.unroll_gru
    found = [[seconds(way, cell, *arrays) for way in ways] for _ in range(rounds + 1)][1:]
    torchs, ours = (statistics.median(one) * 1e3 for one in zip(*found))
    return f"| {count} x {STEPS} | {torchs:.1f} | {ours:.1f} | {torchs / ours:.1f}x |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("| sequences | torch, ms | compiled, ms | ratio |\n|---|---|---|---|")
    for sequences in (2, 8, 32):
        print(compared(sequences, int(sys.argv[1]) if len(sys.argv) > 1 else 9))
