"""Milliseconds of one update of Pong, and of a step's frames on their way to the GPU.

    python bench/gpu_parts.py --json=found.json [--device=cpu --num_envs=4 --rounds=1]
    python bench/gpu_parts.py --compile

Both are between two events on the GPU's stream; so an update is all that `ppo.update` does, also
what the GPU waits for. It is timed with learner=graph and learner=torch, and so is the whole loop,
in steps per second. The frames are copied from pinned memory, as the arena is, and from pageable
memory.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Callable

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))


def milliseconds(call: Callable[[], Any], device: str, rounds: int) -> float:
    """The median time of a call, between two events of its stream; on the CPU by its clock."""
    found = []
    for _ in range(rounds):
        if device == "cpu":
            begun = time.perf_counter()
            call()
            found.append(1e3 * (time.perf_counter() - begun))
            continue
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        found.append(first.elapsed_time(last))
    return statistics.median(found)


def learning(learner: str, given: argparse.Namespace) -> dict[str, Any]:
    """The milliseconds of an update with a learner, and the steps per second of the whole loop."""
    from fastppo import PPO
    begun = time.perf_counter()
    with PPO("PongNoFrameskip-v4", preset="none", model="cnn", num_envs=given.num_envs,
             num_steps=32, epochs=4, num_minibatches=4, device=given.device, learner=learner,
             compile=given.compile, seed=1) as ppo:
        for _ in range(2):  # in which the graphs are captured, and the network is compiled
            rollout = ppo.collect()
            ppo.update(rollout)
        ready = time.perf_counter()
        update = milliseconds(lambda: ppo.update(rollout), given.device, given.rounds)
        timed = time.perf_counter()
        for _ in range(given.rounds):
            ppo.update(ppo.collect())  # its statistics are read, so the device is done
        whole = (time.perf_counter() - timed) / given.rounds
        return {"samples": rollout.rew.numel(), "start_seconds": ready - begun, "update": update,
                "steps_per_second": rollout.rew.numel() / whole}


def main() -> None:
    """Measures both, and prints them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--num_envs", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--compile", action="store_true", help="the network, for learner=graph")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    learners = ["graph"] if given.compile else ["graph", "torch"]
    result: dict[str, Any] = {learner: learning(learner, given) for learner in learners}
    frames = torch.zeros(given.num_envs, 84, 84, dtype=torch.uint8)
    there = torch.empty_like(frames, device=given.device)
    pageable, pinned = frames, frames if given.device == "cpu" else frames.pin_memory()
    for name, here in (("upload_pageable", pageable), ("upload_pinned", pinned)):
        result[name] = milliseconds(lambda here=here: there.copy_(here, non_blocking=True),
                                    given.device, 20 * given.rounds)
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
