"""From what was measured to figures: medians, limits, shares, and what holds the loop back.

    limit = cores / (environment + acting + update), each in seconds a step costs one core
"""

import shlex
from statistics import median
from typing import Any, NamedTuple, Sequence

from fastppo.benchmark.peers import PEERS
from fastppo.settings.fixes import format_value

TITLES = {"environments": "environments alone", "acting": "acting alone", "update": "update alone",
          "loop": "whole loop"}


class Figure(NamedTuple):
    """Steps per second of one part with some processes."""

    part: str
    processes: int
    median: float
    low: float
    high: float
    limit: float
    share: float  # median / limit


class Beside(NamedTuple):
    """Another system's figure, and ours over it; None where it failed in every round."""

    name: str
    title: str
    version: str | None
    median: float | None
    low: float | None
    high: float | None
    part: str  # which of our figures it stands beside
    ratio: float | None
    played: str  # the environment it had, where it is another one
    failures: int  # rounds without a figure,
    failed: str  # and why the last of them has none


class Costs(NamedTuple):
    """What a step costs one core at least, in seconds."""

    environment: float
    acting: float
    update: float

    @property
    def whole(self) -> float:
        """Of everything."""
        return sum(self)


def costs(session: dict[str, Any], resets: float, epochs: float) -> Costs:
    """The least costs of a step with so many resets a step and so many epochs."""
    limits, config = session["limits"], session["facts"]["config"]
    peak = max(one["peak"] for one in limits)
    env = median(one["cost"]["step"] for one in limits) + resets * median(
        one["cost"]["reset"] for one in limits)
    acting = limits[0]["act_flops"] * (1 + 1 / config["num_steps"]) / peak
    return Costs(env, acting, limits[0]["update_flops"] * epochs / peak)


def figure(session: dict[str, Any], measured: dict[str, Any]) -> Figure:
    """One figure with its limit."""
    part, count, rounds = measured["part"], measured["processes"], measured["rounds"]
    rates = [one["rate"] for one in rounds]
    config = session["facts"]["config"]
    least = costs(session, median(one.get("resets", 0.0) for one in rounds),
                  median(one.get("epochs", config["epochs"]) for one in rounds))
    cost = {"environments": least.environment, "acting": least.acting, "update": least.update,
            "loop": least.whole}[part]
    limit = cores(session, count) / cost
    return Figure(part, count, median(rates), min(rates), max(rates), limit, median(rates) / limit)


def figures(session: dict[str, Any]) -> list[Figure]:
    """All of fastppo's figures, part by part."""
    found = [figure(session, one) for one in session["measured"] if one["part"] in TITLES]
    return sorted(found, key=lambda one: (list(TITLES).index(one.part), one.processes))


def best(session: dict[str, Any]) -> Figure:
    """The fastest whole loop."""
    return max((one for one in figures(session) if one.part == "loop"), key=lambda one: one.median)


def cores(session: dict[str, Any], processes: int) -> int:
    """How many cores so many processes can use."""
    usable = session["machine"]["usable_cores"]
    return usable if session["facts"]["native"] else min(max(1, processes), usable)


def peers(session: dict[str, Any]) -> list[Beside]:
    """The other systems' figures, each beside the best of ours."""
    ours = {part: max((one.median for one in figures(session) if one.part == part), default=0.0)
            for part in TITLES}
    env_name = session["facts"]["config"]["env_name"]
    return [peer_figure(one["part"], one["rounds"], ours[PEERS[one["part"]].beside], env_name)
            for one in session["measured"] if one["part"] in PEERS]


def peer_figure(name: str, rounds: Sequence[dict[str, Any]], ours: float, env_name: str) -> Beside:
    """System `name` beside our figure, from the rounds in which it did not fail."""
    peer, rates = PEERS[name], [one["rate"] for one in rounds if "rate" in one]
    whys = [one["failed"] for one in rounds if "failed" in one]
    first = next((one for one in rounds if "rate" in one), {})
    played = first.get("played", env_name)
    middle, low, high, ratio = (median(rates), min(rates), max(rates), ours / median(rates)) \
        if rates else (None,) * 4
    return Beside(name, peer.title, first.get("version"), middle, low, high, peer.beside, ratio,
                  "" if played == env_name else played, len(whys), whys[-1] if whys else "")


def gaps(session: dict[str, Any], processes: int) -> dict[str, float]:
    """Where a step's time above its limit goes, in seconds, largest first; the parts add up to it.

    All from the round of the median rate, the upper one of an even number. stepping: the loop
    around the environments and what they lose by running side by side; waiting: collecting beyond
    the workers' own time, which is their starts, ends, and the slowest of them.
    """
    rounds = {one["part"]: one["rounds"] for one in session["measured"]
              if one["processes"] == processes}
    ordered = sorted(rounds["loop"], key=lambda one: one["rate"])
    loop = ordered[len(ordered) // 2]
    least, many = costs(session, loop["resets"], loop["epochs"]), cores(session, processes)
    act = 1 / median(one["rate"] for one in rounds["acting"])
    found = {"update": loop["update"] - least.update / many,
             "acting": act - least.acting / many,
             "stepping": loop["busy"] - act - least.environment / many,
             "waiting": loop["collect"] - loop["busy"],
             "reports": 1 / loop["rate"] - loop["collect"] - loop["update"]}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def parallel_speedup(session: dict[str, Any], loop: float) -> dict[str, float]:
    """How many times one bare process's steps one on every core makes, and `loop`'s share of that.

    The limit says as many times as there are cores; less where these share caches, memory or, two
    threads of one core, all of it. Nothing where there is one core. `loop` is in times of one.
    """
    times = session["at_once"]
    return {"median": median(times), "low": min(times), "high": max(times),
            "share": loop / median(times)} if times else {}


def fastest_command(session: dict[str, Any]) -> str:
    """The fastest setting as a command line; it changes nothing but speed."""
    asked = {name: value for name, value in session["settings"].items()
             if name not in ("run_dir", "logger", "progress", "num_workers", "seed")}
    asked = {"env_name": session["facts"]["config"]["env_name"], **asked}
    flags = [f"--{name}={format_value(value)}" for name, value in asked.items()]
    return shlex.join(["python", "main.py", *flags, f"--num_workers={best(session).processes}"])


def session_report(session: dict[str, Any]) -> dict[str, Any]:
    """The whole session as JSON has it: figures in steps per second, costs in seconds."""
    loop = best(session)
    held = next(one for one in session["measured"]
                if one["part"] == "loop" and one["processes"] == loop.processes)["rounds"]
    least = costs(session, median(one["resets"] for one in held),
                  median(one["epochs"] for one in held))
    limits = session["limits"]
    return {
        "machine": session["machine"], **session["facts"], "rounds": session["rounds"],
        "limit": {**least._asdict(), "act_flops": limits[0]["act_flops"],
                  "update_flops": limits[0]["update_flops"],
                  "peak_flops": max(one["peak"] for one in limits),
                  "step": median(one["cost"]["step"] for one in limits),
                  "reset": median(one["cost"]["reset"] for one in limits),
                  "resets": median(one["resets"] for one in held),
                  "same_episodes": all(one["cost"]["same"] for one in limits)},
        "at_once": parallel_speedup(session, loop.median * least.whole),
        "figures": [one._asdict() for one in figures(session)],
        "peers": [one._asdict() for one in peers(session)],
        "held_back": gaps(session, loop.processes), "best": loop._asdict(),
        "command": fastest_command(session), "measured": session["measured"]}
