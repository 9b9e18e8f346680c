"""Measures README's speed table: each task with its limit and other systems, in turns.

    python bench/table.py --against=sb3,rl_games --rounds=3

Takes the options of `python main.py bench`. Prints one section of Markdown, with the machine, the
versions and the settings; --json=FILE writes all measurements.
"""

import json
import sys
from typing import Any

from fastppo import __version__
from fastppo.benchmark import session, table
from fastppo.benchmark.peers import PEERS
from fastppo.cli import command_line
from fastppo.cli.bench import Bench
from fastppo.errors import ConfigError

SAME = {"preset": "none", "num_envs": 16, "num_steps": 512, "norm_obs": False,
        "norm_rewards": False}
FEW, MANY = {"epochs": 4, "num_minibatches": 8}, {"epochs": 10, "num_minibatches": 128}
TASKS = {"CartPole-v1": FEW, "LunarLander-v3": FEW, "HalfCheetah-v5": MANY}


def task_row(found: dict[str, Any], names: list[str]) -> str:
    """One task's row of the table."""
    config, loop = found["config"], found["best"]
    size = config["num_envs"] * config["num_steps"] // config["num_minibatches"]
    cells = [f"{config['env_name']}, {config['epochs']} epochs, minibatch {size:,}",
             f"**{loop['median']:,.0f}** ({loop['low']:,.0f} to {loop['high']:,.0f})",
             f"{loop['limit']:,.0f}", f"{loop['share']:.0%}"]
    peers = {one["name"]: one for one in found["peers"]}
    cells += ["failed" if peers[name]["median"] is None else
              f"{peers[name]['median']:,.0f} ({peers[name]['ratio']:.1f}x)" for name in names]
    return f"| {' | '.join(cells)} |"


def section(all_found: list[dict[str, Any]], names: list[str]) -> str:
    """The table, the machine and the versions."""
    first = all_found[0]
    machine, theirs = first["machine"], {
        one["name"]: one["version"] for found in all_found for one in found["peers"]
        if one["version"]}  # none where it failed
    titles = ["task", "fastppo", "limit", "share",
              *(f"{PEERS[name].title} {theirs.get(name, '')}".rstrip() for name in names)]
    versions = ", ".join(f"{name} {value}" for name, value in first["versions"].items())
    return "\n".join([
        "Training steps per second, medians (lowest to highest) of "
        f"{first['rounds']} interleaved rounds; in brackets fastppo's multiple. "
        "16 environments x 512 steps, 2x64 tanh, one torch thread.", "",
        f"| {' | '.join(titles)} |", "|" + "---|" * len(titles),
        *(task_row(found, names) for found in all_found), "",
        f"fastppo {__version__} on {machine['processor']}, {machine['usable_cores']} usable cores; "
        f"{versions}.", "",
        "The limit is an upper bound: the time of the bare environment, measured in the same "
        "session, plus the network's FLOPs at the cores' fp32 GEMM peak of "
        f"{max(found['limit']['peak_flops'] for found in all_found) / 1e9:.0f} GFLOP/s each."])


def main() -> None:
    """Measure every task and print the section."""
    request = command_line.read(sys.argv[1:], Bench)
    options = request.options
    names = [name for name in options.peers if PEERS[name].part == "loop"]
    all_found = []
    for env, sizes in TASKS.items():
        print(env, file=sys.stderr, flush=True)
        settings = {**SAME, **sizes, **request.given, "env_name": env}
        try:
            all_found.append(table.session_report(session.run_session(settings, options)))
        except ConfigError as error:  # most often a package that is not installed
            print(f"left out: {error}", file=sys.stderr, flush=True)
    if all_found:
        print(section(all_found, names))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(all_found, file, indent=1)


if __name__ == "__main__":
    main()
