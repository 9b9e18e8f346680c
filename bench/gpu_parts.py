"""Milliseconds of one update of Pong, and of a step's frames on their way to the GPU.

    python bench/gpu_parts.py --json=found.json [--device=cpu --num_envs=4 --rounds=1]
    python bench/gpu_parts.py --compile         the network compiled
    python bench/gpu_parts.py --variants        other numbers of workers, shapes, precisions
    python bench/gpu_parts.py --profile         the operations of one update

Both are between two events on the GPU's stream; so an update is all that `ppo.update` does, also
what the GPU waits for. It is timed with learner=graph and learner=torch, and so is the whole loop,
in steps per second. The frames are copied from pinned memory, and from pageable memory; `pinned`
says which of them the arena is.
"""

import argparse
import functools
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


def pong(given: argparse.Namespace, learner: str = "graph", **settings: Any) -> Any:
    """A PPO on Pong, before its first step."""
    from fastppo import PPO
    return PPO("PongNoFrameskip-v4", preset="atari", model="cnn", **{
        "num_envs": given.num_envs, "num_steps": 32, "epochs": 4, "num_minibatches": 4,
        "device": given.device, "learner": learner, "compile": given.compile, "seed": 1,
        **settings})


def learning(given: argparse.Namespace, learner: str = "graph", layout: str = "",
             **settings: Any) -> dict[str, Any]:
    """The milliseconds of an update, and the steps per second of the whole loop."""
    begun = time.perf_counter()
    with pong(given, learner, **settings) as ppo:
        if layout:  # one more copy of the images than an own kernel would make
            first = next(x for x in ppo.policy.net.modules() if isinstance(x, torch.nn.Conv2d))
            first.register_forward_pre_hook(lambda layer, inputs: (
                inputs[0].contiguous(memory_format=torch.channels_last),))
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
                "steps_per_second": rollout.rew.numel() / whole,
                "num_workers": ppo.config.num_workers, "precision": ppo.config.precision,
                "pinned": torch.from_numpy(ppo.arena["obs"]).is_pinned()}


def variants(given: argparse.Namespace) -> dict[str, Callable[[], dict[str, Any]]]:
    """What measures other workers, another shape of the rollout, and other ways to compute."""
    call, few = functools.partial(learning, given), max(1, given.num_workers - 1)
    wide = {"num_envs": 2 * given.num_envs, "num_steps": 16}
    return {f"workers_{given.num_workers}": lambda: call(num_workers=given.num_workers),
            f"workers_{few}": lambda: call(num_workers=few),
            "wide": lambda: call(num_workers=given.num_workers, **wide),
            "channels_last": lambda: call(layout="channels_last"),
            "bf16": lambda: call(precision="bf16")}


def profiled(given: argparse.Namespace) -> dict[str, Any]:
    """Operations and milliseconds of one update, as a table; on a GPU it is a replayed one."""
    from torch.profiler import ProfilerActivity, profile
    on_gpu = given.device != "cpu"
    kinds = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]
    with pong(given) as ppo:
        for _ in range(2):
            rollout = ppo.collect()
            ppo.update(rollout)
        with profile(activities=kinds) as found:
            ppo.update(rollout)
            if on_gpu:
                torch.cuda.synchronize()
    rows, time_of = found.key_averages(), f"self_{'device' if on_gpu else 'cpu'}_time_total"
    print(rows.table(sort_by=time_of, row_limit=60, max_name_column_width=70))
    own = [row for row in rows if not on_gpu or row.device_type != torch.autograd.DeviceType.CPU]
    return {"operations": sum(row.count for row in own),
            "milliseconds": sum(getattr(row, time_of) for row in own) / 1e3}


def uploads(given: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of the copy of a step's frames to the device."""
    frames = torch.zeros(given.num_envs, 84, 84, dtype=torch.uint8)
    there = torch.empty_like(frames, device=given.device)
    pageable, pinned = frames, frames if given.device == "cpu" else frames.pin_memory()
    return {name: milliseconds(lambda here=here: there.copy_(here, non_blocking=True),
                               given.device, 20 * given.rounds)
            for name, here in (("upload_pageable", pageable), ("upload_pinned", pinned))}


def main() -> None:
    """Measures what is asked for, and prints it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--num_envs", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--num_workers", type=int, default=16, help="of --variants")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--compile", action="store_true", help="the network, for learner=graph")
    way.add_argument("--variants", action="store_true")
    way.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    calls: dict[str, Callable[[], dict[str, Any]]] = variants(given) if given.variants else {
        "profile": lambda: profiled(given)} if given.profile else {
        learner: functools.partial(learning, given, learner)
        for learner in (["graph"] if given.compile else ["graph", "torch"])} | {
        "frames": lambda: uploads(given)}
    result: dict[str, Any] = {}
    for name, call in calls.items():
        result[name] = call()
        print(name, json.dumps(result[name], indent=1), flush=True)
    if given.json:
        given.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
