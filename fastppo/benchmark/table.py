"""The figures of a session's measurements, and their report as a table of text.

limit = cores / (environment + acting + update), each in core seconds per step
on a GPU: 1 / (environment / cores + acting + update)
"""

from statistics import median
from typing import Any, Sequence

from fastppo import __version__
from fastppo.benchmark.peers import PEERS

TITLES = {"environments": "environments alone", "acting": "acting alone", "update": "update alone",
          "loop": "whole loop"}
WHY = {"update": "the update", "acting": "acting", "stepping": "stepping the environments",
       "waiting": "waiting for the last worker", "reports": "metrics"}
WIDTH = 120  # longest line of another system's error
VOID = "void: other programs disturbed this; measure again"
HIGHEST_SHARE, LOWEST_PART = 1.05, -0.005  # of what can be: of a limit; of the whole loop's time


def costs(session: dict[str, Any], resets: float, epochs: float) -> dict[str, float]:
    """The least seconds of a core, or of the GPU, for the parts of a step.

    For this number of resets per step and of epochs.
    """
    limits, config = session["limits"], session["facts"]["config"]
    peak = max(one["peak"] for one in limits)
    env = median(one["cost"]["step"] for one in limits) + resets * median(
        one["cost"]["reset"] for one in limits)
    acting = limits[0]["act_flops"] * (1 + 1 / config["num_steps"]) / peak
    return {"environment": env, "acting": acting,
            "update": limits[0]["update_flops"] * epochs / peak}


def figure(session: dict[str, Any], measured: dict[str, Any]) -> dict[str, Any]:
    """Steps per second of one measured part, with a number of processes, and its limit."""
    part, count, rounds = measured["part"], measured["processes"], measured["rounds"]
    config, rates, used = session["facts"]["config"], spread(rounds), cores(session, count)
    resets = median(one.get("resets", 0.0) for one in rounds)
    least = costs(session, resets, median(one.get("epochs", config["epochs"]) for one in rounds))
    network = used if config["device"] == "cpu" else 1  # a GPU is one device
    env, acting, update = (least["environment"] / used, least["acting"] / network,
                           least["update"] / network)
    limit = 1 / {"environments": env, "acting": acting, "update": update,
                 "loop": env + acting + update}[part]
    return {"part": part, "processes": count, **rates, "limit": limit,
            "share": rates["median"] / limit, "costs": least, "resets": resets}


def spread(rounds: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The median, lowest and highest rate of some rounds."""
    rates = [one["rate"] for one in rounds]
    return {"median": median(rates), "low": min(rates), "high": max(rates)}


def figures(session: dict[str, Any]) -> list[dict[str, Any]]:
    """All of fastppo's figures, sorted by part."""
    found = [figure(session, one) for one in session["measured"] if one["part"] in TITLES]
    return sorted(found, key=lambda one: (list(TITLES).index(one["part"]), one["processes"]))


def best(session: dict[str, Any]) -> dict[str, Any]:
    """The figure of the fastest whole loop."""
    return max((one for one in figures(session) if one["part"] == "loop"),
               key=lambda one: one["median"])


def cores(session: dict[str, Any], processes: int) -> int:
    """The number of cores that `processes` workers can use."""
    usable = session["machine"]["usable_cores"]
    return usable if session["facts"]["native"] else min(max(1, processes), usable)


def peers(session: dict[str, Any]) -> list[dict[str, Any]]:
    """The other systems' figures, each compared with the best of ours.

    They are of the rounds in which a system did not fail. `ratio` is fastppo's median / its median,
    None as this where it failed in every round.
    """
    ours = best(session)["median"]
    found, env_name = [], session["facts"]["config"]["env_name"]
    for name, rounds in ((one["part"], one["rounds"]) for one in session["measured"]):
        if name not in PEERS:
            continue
        worked = [one for one in rounds if "rate" in one]
        failures = [one["failed"] for one in rounds if "failed" in one]
        rates = spread(worked) if worked else dict.fromkeys(("median", "low", "high"))
        first = worked[0] if worked else {}
        other_env = first.get("env_name", env_name)
        found.append({"name": name, "title": PEERS[name].title, "version": first.get("version"),
                      **rates, "ratio": ours / rates["median"] if worked else None,
                      "env_name": "" if other_env == env_name else other_env,
                      "failures": len(failures), "failed": failures[-1] if failures else ""})
    return found


def parts_of_step(session: dict[str, Any], processes: int) -> dict[str, float]:
    """The parts of a step's time in the whole loop, in seconds, largest first.

    All are from the round of the median rate (of an even number, the upper one). waiting:
    collecting minus the workers' own time, which is starting, ending, and waiting for the slowest
    worker.
    """
    rounds = {one["part"]: one["rounds"] for one in session["measured"]
              if one["processes"] == processes}
    ordered = sorted(rounds["loop"], key=lambda one: one["rate"])
    loop = ordered[len(ordered) // 2]
    acting = 1 / median(one["rate"] for one in rounds["acting"])
    found = {"update": loop["update"], "acting": acting, "stepping": loop["busy"] - acting,
             "waiting": loop["collect"] - loop["busy"],
             "reports": 1 / loop["rate"] - loop["collect"] - loop["update"]}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def session_report(session: dict[str, Any]) -> dict[str, Any]:
    """The whole session as it is written to JSON: figures in steps per second, costs in seconds."""
    loop, limits = best(session), session["limits"]
    return {
        "machine": session["machine"], **session["facts"], "rounds": session["rounds"],
        "limit": {**loop["costs"], "act_flops": limits[0]["act_flops"],
                  "update_flops": limits[0]["update_flops"],
                  "peak_flops": max(one["peak"] for one in limits),
                  "step": median(one["cost"]["step"] for one in limits),
                  "reset": median(one["cost"]["reset"] for one in limits),
                  "resets": loop["resets"]},
        "figures": figures(session), "peers": peers(session), "best": loop,
        "seconds": parts_of_step(session, loop["processes"]), "measured": session["measured"]}


def text(found: dict[str, Any]) -> str:
    """The report of figures.session_report as the lines that the command prints."""
    return "\n".join([*answer(found), "", *head(found), "", *rows(found)])


def answer(found: dict[str, Any]) -> list[str]:
    """The speed of the fastest whole loop, and the parts of its time, or that it is void.

    Without the parts if one was slower alone than with the rest, such as acting, which compiled
    environments do in C.
    """
    loop, seconds = found["best"], found["seconds"]
    count, whole = loop["processes"], sum(seconds.values())
    place = f"{count} worker process{'es' * (count > 1)}" if count else "the main process alone"
    parts = [f"{abs(value) / whole:.0%} {WHY[name]}" for name, value in seconds.items()]
    speed = f"{loop['median']:,.0f} steps per second, with {place}"
    time = [f"time      {', '.join(parts)}"] if min(seconds.values()) >= LOWEST_PART * whole else []
    return [f"fastest   {speed if loop['share'] <= HIGHEST_SHARE else VOID}", *time]


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
        measured = VOID if one["share"] > HIGHEST_SHARE else \
            f"{_spread(one):36}{one['limit']:>10,.0f}{one['share']:>8.0%}"
        lines.append(f"{title:27}{one['processes'] or 'main':>9}   {measured}")
        last = one["part"]
    if found["peers"]:
        lines += ["", f"{'other systems':39}{spread:36}{'':10}{'fastppo':>8}"]
    return lines + [line for one in found["peers"] for line in peer_rows(one, rounds)]


def peer_rows(one: dict[str, Any], rounds: int) -> list[str]:
    """Another system's row, and the reason where it failed."""
    version = f" {one['version']}" if one["version"] else ""
    title = f"{one['title']}{version}" + f" ({one['env_name']})" * bool(one["env_name"])
    rounds_failed = f" in {one['failures']} of {rounds} rounds" * (one["median"] is not None)
    lines = [] if one["median"] is None else [
        f"{title:39}{_spread(one):36}{'':10}{one['ratio']:>7.2f}x"]
    return lines + [f"{title} failed{rounds_failed}: {one['failed']}"[:WIDTH]] * bool(one["failed"])


def micro(seconds: float) -> str:
    """Seconds as microseconds, to three figures."""
    value = seconds * 1e6
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 \
        else f"{value:.2f}"


def _spread(one: dict[str, Any]) -> str:
    figure = f"{one['median']:>10,.0f}"
    return figure + f" ({one['low']:,.0f} to {one['high']:,.0f})" * (one["low"] < one["high"])
