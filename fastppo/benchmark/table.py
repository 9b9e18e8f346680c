"""The report of a session as a table of text."""

from typing import Any

from fastppo import __version__
from fastppo.benchmark.figures import TITLES

WHY = {"update": "the update", "acting": "acting", "stepping": "stepping the environments",
       "waiting": "waiting for the last worker", "reports": "metrics"}

WIDTH = 120  # longest line of another system's error


def text(found: dict[str, Any]) -> str:
    """The report of figures.session_report as the lines that the command prints."""
    return "\n".join([*answer(found), "", *head(found), "", *rows(found)])


def answer(found: dict[str, Any]) -> list[str]:
    """The speed of the fastest whole loop, and the parts of its time."""
    loop, seconds = found["best"], found["seconds"]
    count, whole = loop["processes"], sum(seconds.values())
    place = f"{count} worker process{'es' * (count > 1)}" if count else "the main process alone"
    parts = [f"{value / whole:.0%} {WHY[name]}" for name, value in seconds.items()]
    return [f"fastest   {loop['median']:,.0f} steps per second, with {place}",
            f"time      {', '.join(parts)}"]


def head(found: dict[str, Any]) -> list[str]:
    """The settings, the machine, and the parts of the limit."""
    config, limit, machine = found["config"], found["limit"], found["machine"]
    minibatch = config["num_envs"] * config["num_steps"] // config["num_minibatches"]
    versions = ", ".join(f"{name} {value}" for name, value in found["versions"].items())
    cores, peak = machine["usable_cores"], limit["peak_flops"] / 1e9
    network = limit["acting"] + limit["update"]
    costs = f"one core at least {micro(limit['environment'] + network)} us" \
        if config["device"] == "cpu" else (f"a core {micro(limit['environment'])},"
                                           f" {config['device']} {micro(network)} us at least")
    used = f"all {cores} cores" if found["native"] else \
        f"a core for each process, {cores} at most"
    reset = f", reset {micro(limit['reset'])} every {1 / limit['resets']:,.0f} steps" \
        if limit["resets"] and limit["reset"] else ""
    return [
        f"fastppo {__version__}   {config['env_name']}, {config['num_envs']} environments x"
        f" {config['num_steps']} steps, {config['epochs']} epochs, minibatch {minibatch:,}",
        f"model     {found['network']}, {found['parameters']:,} parameters; acting"
        f" {config['acting']}, learner {config['learner']}, {config['device']}",
        f"machine   {machine['processor']}, {cores} usable core{'s' * (cores > 1)}; {versions}",
        f"limit     a step costs {costs}; a row's limit is of {used}:",
        f"          environment {micro(limit['environment'])} (step {micro(limit['step'])}{reset})",
        f"          acting      {micro(limit['acting'])} ({limit['act_flops']:,} FLOP at"
        f" {peak:.0f} GFLOP/s, the peak of {config['precision']} GEMM here)",
        f"          update      {micro(limit['update'])} ({limit['update_flops']:,} FLOP an epoch)"]


def rows(found: dict[str, Any]) -> list[str]:
    """The table: fastppo's figures, then the other systems'."""
    rounds = found["rounds"]
    spread = f"median of {rounds} (lowest to highest)" if rounds > 1 else "one measurement"
    lines = [f"{'steps per second':27}{'processes':>9}   {spread:36}{'limit':>10}{'share':>8}"]
    last = ""
    for one in found["figures"]:
        title = TITLES[one["part"]] if one["part"] != last else ""
        lines.append(f"{title:27}{one['processes'] or 'main':>9}   {_spread(one):36}"
                     f"{one['limit']:>10,.0f}{one['share']:>8.0%}")
        last = one["part"]
    if found["peers"]:
        lines += ["", f"{'other systems':39}{spread:36}{'':10}{'fastppo':>8}"]
    return lines + [line for one in found["peers"] for line in peer_rows(one, rounds)]


def peer_rows(one: dict[str, Any], rounds: int) -> list[str]:
    """Another system's row, and the reason where it failed."""
    version = f" {one['version']}" if one["version"] else ""
    title = f"{one['title']}{version}" + f" ({one['env_name']})" * bool(one["env_name"])
    part = "  stepping" * (one["part"] == "environments")
    rounds_failed = f" in {one['failures']} of {rounds} rounds" * (one["median"] is not None)
    lines = [] if one["median"] is None else [
        f"{title:39}{_spread(one):36}{part:>10}{one['ratio']:>7.2f}x"]
    return lines + [f"{title} failed{rounds_failed}: {one['failed']}"[:WIDTH]] * bool(one["failed"])


def micro(seconds: float) -> str:
    """Seconds as microseconds, to three figures."""
    value = seconds * 1e6
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 \
        else f"{value:.2f}"


def _spread(one: dict[str, Any]) -> str:
    figure = f"{one['median']:>10,.0f}"
    return figure + f" ({one['low']:,.0f} to {one['high']:,.0f})" * (one["low"] < one["high"])
