"""Computes figures from measurements: medians, limits, shares, and the parts of a step's time.

    limit = cores / (environment + acting + update), each in core seconds per step
    on a GPU: 1 / (environment / cores + acting + update)
"""

import shlex
from statistics import median
from typing import Any, NamedTuple, Sequence

from fastppo.benchmark.peers import PEERS
from fastppo.settings.fixes import format_value, program

TITLES = {"environments": "environments alone", "acting": "acting alone", "update": "update alone",
          "loop": "whole loop"}


class Figure(NamedTuple):
    """Steps per second of one part of training, with a number of worker processes."""

    part: str
    processes: int
    median: float
    low: float
    high: float
    limit: float
    share: float  # median / limit


class PeerFigure(NamedTuple):
    """Another system's steps per second; None where it failed in every round."""

    name: str
    title: str
    version: str | None
    median: float | None
    low: float | None
    high: float | None
    part: str  # the part of fastppo that it is compared with
    ratio: float | None  # fastppo's median / median
    env_name: str  # the environment it ran, "" where it is the same
    failures: int  # rounds that failed
    failed: str  # the reason of the last failure


class Costs(NamedTuple):
    """The least time that a step takes, in seconds: of one core, or of the GPU."""

    environment: float
    acting: float
    update: float

    @property
    def whole(self) -> float:
        """The sum of all parts."""
        return sum(self)


def costs(session: dict[str, Any], resets: float, epochs: float) -> Costs:
    """The least costs of a step, for this number of resets per step and of epochs."""
    limits, config = session["limits"], session["facts"]["config"]
    peak = max(one["peak"] for one in limits)
    env = median(one["cost"]["step"] for one in limits) + resets * median(
        one["cost"]["reset"] for one in limits)
    acting = limits[0]["act_flops"] * (1 + 1 / config["num_steps"]) / peak
    return Costs(env, acting, limits[0]["update_flops"] * epochs / peak)


def figure(session: dict[str, Any], measured: dict[str, Any]) -> Figure:
    """The figure of one measured part, with its limit."""
    part, count, rounds = measured["part"], measured["processes"], measured["rounds"]
    rates = [one["rate"] for one in rounds]
    config = session["facts"]["config"]
    least = costs(session, median(one.get("resets", 0.0) for one in rounds),
                  median(one.get("epochs", config["epochs"]) for one in rounds))
    least = shared(session, least, cores(session, count))
    limit = 1 / {"environments": least.environment, "acting": least.acting, "update": least.update,
                 "loop": least.whole}[part]
    return Figure(part, count, median(rates), min(rates), max(rates), limit, median(rates) / limit)


def figures(session: dict[str, Any]) -> list[Figure]:
    """All of fastppo's figures, sorted by part."""
    found = [figure(session, one) for one in session["measured"] if one["part"] in TITLES]
    return sorted(found, key=lambda one: (list(TITLES).index(one.part), one.processes))


def best(session: dict[str, Any]) -> Figure:
    """The figure of the fastest whole loop."""
    return max((one for one in figures(session) if one.part == "loop"), key=lambda one: one.median)


def shared(session: dict[str, Any], least: Costs, count: float) -> Costs:
    """The costs of a step that `count` cores share; a GPU is one device, whatever they are."""
    of_network = count if session["facts"]["config"]["device"] == "cpu" else 1
    return Costs(least.environment / count, least.acting / of_network, least.update / of_network)


def cores(session: dict[str, Any], processes: int) -> int:
    """The number of cores that `processes` workers can use."""
    usable = session["machine"]["usable_cores"]
    return usable if session["facts"]["native"] else min(max(1, processes), usable)


def peers(session: dict[str, Any]) -> list[PeerFigure]:
    """The other systems' figures, each compared with the best of ours."""
    ours = {part: max((one.median for one in figures(session) if one.part == part), default=0.0)
            for part in TITLES}
    env_name = session["facts"]["config"]["env_name"]
    return [peer_figure(one["part"], one["rounds"], ours[PEERS[one["part"]].part], env_name)
            for one in session["measured"] if one["part"] in PEERS]


def peer_figure(name: str, rounds: Sequence[dict[str, Any]], ours: float, env_name: str
                ) -> PeerFigure:
    """The figure of system `name` from the rounds in which it did not fail."""
    peer = PEERS[name]
    worked = [one for one in rounds if "rate" in one]
    failures = [one["failed"] for one in rounds if "failed" in one]
    reason = failures[-1] if failures else ""
    if not worked:
        return PeerFigure(name, peer.title, None, None, None, None, peer.part, None, "",
                          len(failures), reason)
    rates, other_env = [one["rate"] for one in worked], worked[0].get("env_name", env_name)
    return PeerFigure(name, peer.title, worked[0].get("version"), median(rates), min(rates),
                      max(rates), peer.part, ours / median(rates),
                      "" if other_env == env_name else other_env, len(failures), reason)


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


def fastest_command(session: dict[str, Any]) -> str:
    """The command line of the fastest number of workers; results do not depend on it."""
    given = {name: value for name, value in session["settings"].items()
             if name not in ("run_dir", "logger", "progress", "num_workers", "seed")}
    given = {"env_name": session["facts"]["config"]["env_name"], **given}
    flags = [f"--{name}={format_value(value)}" for name, value in given.items()]
    return f"{program()} {shlex.join([*flags, f'--num_workers={best(session).processes}'])}"


def session_report(session: dict[str, Any]) -> dict[str, Any]:
    """The whole session as it is written to JSON: figures in steps per second, costs in seconds."""
    loop = best(session)
    rounds = next(one for one in session["measured"]
                if one["part"] == "loop" and one["processes"] == loop.processes)["rounds"]
    least = costs(session, median(one["resets"] for one in rounds),
                  median(one["epochs"] for one in rounds))
    limits = session["limits"]
    return {
        "machine": session["machine"], **session["facts"], "rounds": session["rounds"],
        "limit": {**least._asdict(), "act_flops": limits[0]["act_flops"],
                  "update_flops": limits[0]["update_flops"],
                  "peak_flops": max(one["peak"] for one in limits),
                  "step": median(one["cost"]["step"] for one in limits),
                  "reset": median(one["cost"]["reset"] for one in limits),
                  "resets": median(one["resets"] for one in rounds),
                  "same_episodes": all(one["cost"]["same"] for one in limits)},
        "figures": [one._asdict() for one in figures(session)],
        "peers": [one._asdict() for one in peers(session)],
        "seconds": parts_of_step(session, loop.processes), "best": loop._asdict(),
        "command": fastest_command(session), "measured": session["measured"]}
